"""The worker process, from its settings to a serving worker. The only place where its parts are wired together.

torch is imported only for the runners that compute, so that a fake worker starts in a fraction of a second.
"""

import asyncio
import contextlib
import gc
import os
import signal
import sys
import warnings
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
import uvloop

from shared import ids, log, wire
from shared.trace import Tracer, tracing
from worker import machine
from worker.device import choose
from worker.engine.config import EngineConfig
from worker.engine.engine import Engine
from worker.engine.fake_runner import FakeRunner
from worker.engine.runner import Runner, RunnerBroken
from worker.engine.service import Service
from worker.errors import CannotStart
from worker.link.limits import LinkLimits
from worker.link.link import Link
from worker.metrics import WorkerMetrics
from worker.models.card import Card, demo_model_path, read_card
from worker.models.errors import ModelFileError
from worker.models.first_compile import beside
from worker.models.memory import Memory, memory_of, pool_bytes
from worker.models.threads import prepare
from worker.ops import serving
from worker.settings import WorkerSettings

SWITCH_INTERVAL_S: Final = 0.0005  # the engine's thread gives the event loop its turn ten times as often as by default
COLLECT_EVERY: Final = (20_000, 50, 100)  # by default every step with hundreds of sequences looks for garbage
FAKE_WORDS_MAX: Final = 512
PROGRESS_STEP: Final = 0.25
CPU_PACE: Final = 4.0  # typical gaps: at p99 they then stay within three medians over HTTP (docs/log.md)


def run(settings: WorkerSettings) -> None:
    """Serve until SIGTERM or SIGINT, then drain. A worker that cannot start, or whose device has failed, exits with one
    sentence on stderr.
    """
    worker = ids.process_id("wk")
    log.configure(level=settings.log_level, service="worker", worker=worker)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.disable()  # until the model is loaded: what imports make stays, and looking through it takes half a second
    metrics = WorkerMetrics()
    links: list[Link] = []

    def not_live() -> str | None:
        return links[0].fault if links else None

    def not_ready() -> str | None:
        if not links:
            return "the model is being loaded (at the very first start also compiled, for half a minute)"
        return not_live() or (None if links[0].ready else "no NATS, no engine, or draining")

    try:
        with (
            serving(
                settings.metrics_host,
                settings.metrics_port,
                metrics=metrics.render,
                health={"/healthz/live": not_live, "/healthz/ready": not_ready},
            ),
            tracing(os.environ, service="forebay-worker", instance=worker) as tracer,
        ):
            settings = placed(settings)
            card, runner = load(settings, metrics)
            try:
                links.append(connect(settings, worker, card, runner, tracer))
                metrics.watch(links[0])
                gc.collect()
                gc.freeze()  # the model lives as long as the process: later collections need not look at it
                gc.enable()
                gc.set_threshold(*COLLECT_EVERY)
                uvloop.run(serve(links[0], settings.drain_s))
            finally:
                runner.close()
    except (CannotStart, RunnerBroken) as error:
        sys.exit(f"forebay worker: {error}")


def placed(settings: WorkerSettings) -> WorkerSettings:
    """The settings with runner and device chosen. Raises CannotStart."""

    def cuda_devices() -> int:
        _before_torch(settings)
        import torch  # noqa: PLC0415 - see the module's docstring

        return torch.cuda.device_count() if torch.cuda.is_available() else 0

    runner, device = choose(settings.runner, settings.device, cuda_devices)
    return msgspec.structs.replace(settings, runner=runner, device=device)


def load(settings: WorkerSettings, metrics: WorkerMetrics) -> tuple[Card, Runner]:
    """The model's card and its runner, for settings that are `placed`. Raises CannotStart."""
    try:
        path = Path(settings.model) if settings.model else demo_model_path()
        with _warnings_logged():
            if settings.runner == "fake":
                return _load_fake(settings, path)
            if settings.runner == "torch" and settings.kv_dtype != "auto":
                raise CannotStart(f"--kv-dtype {settings.kv_dtype} needs CUDA; on a CPU the KV pool is in fp32")
            _before_torch(settings)
            if settings.runner == "triton":
                from worker.cuda import load_cuda  # noqa: PLC0415 - see the module's docstring

                return load_cuda(settings, path, metrics, _progress(path))
            return _load_torch(settings, path)
    except ModelFileError as error:
        raise CannotStart(str(error)) from error
    except OSError as error:  # no room for compiled code, say
        raise CannotStart(f"the model cannot be loaded: {error}") from error


def _before_torch(settings: WorkerSettings) -> None:
    """Raises CannotStart."""
    try:
        prepare(os.environ, settings.threads or machine.cores())
    except OSError as error:
        raise CannotStart(f"compiled code has no place (NUMBA_CACHE_DIR names one): {error}") from error


@contextlib.contextmanager
def _warnings_logged() -> Generator[None]:
    """What a library or a reader of files warns about becomes a line of the log."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            yield
        finally:
            for warning in caught:
                log.get("worker").warning("model.odd", reason=str(warning.message))


def connect(settings: WorkerSettings, worker: str, card: Card, runner: Runner, tracer: Tracer) -> Link:
    """The worker's link, not yet running. Raises CannotStart."""
    try:
        config = EngineConfig(
            block_size=settings.block_size,
            context_length=card.context_length,
            tokens_per_step=settings.step_tokens,
            tokens_beside_decodes=settings.step_tokens_beside_decodes,
            pace=CPU_PACE if settings.runner == "torch" and settings.tokens_beside_decodes is None else None,
            sequences_max=settings.sequences_max,
        )
    except ValueError as error:
        raise CannotStart(str(error)) from error
    service = Service()
    engine = Engine(runner, card.vocabulary, config, service)
    return Link(
        nats_url=settings.nats_url.reveal(),
        worker=worker,
        incarnation=ids.process_id("in"),
        engine=engine,
        config=config,
        card=card_on_wire(card, name=settings.served_name, pool=settings.pool, tokens_max=engine.tokens_max),
        tiers=settings.tier_numbers(),
        service=service,
        limits=LinkLimits(step_s_max=settings.step_s_max),
        tracer=tracer,
    )


async def serve(link: Link, drain_s: float) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await link.run(stop, drain_s=drain_s)


def _load_fake(settings: WorkerSettings, path: Path) -> tuple[Card, Runner]:
    card = read_card(path)
    block_bytes = card.config.kv_elements_per_token * settings.block_size * 4
    kv_bytes = pool_bytes(settings.kv_bytes, room=None)
    runner = FakeRunner(
        vocab_size=card.vocab_size,
        blocks_total=_two_or_more(kv_bytes // block_bytes, kv_bytes),
        block_size=settings.block_size,
        context_length=card.context_length,
        ids=_words(card),
        step_us=settings.fake_step_us,
        token_us=settings.fake_token_us,
    )
    return card, runner


def _load_torch(settings: WorkerSettings, path: Path) -> tuple[Card, Runner]:
    import torch  # noqa: PLC0415 - see the module's docstring

    from kernels import shared_work  # noqa: PLC0415
    from kernels.cpu import CpuOps  # noqa: PLC0415
    from worker.engine.torch_runner import TorchRunner, kv_blocks, kv_dtype  # noqa: PLC0415
    from worker.models.load import load_model  # noqa: PLC0415

    torch.set_num_threads(settings.threads or machine.cores())
    device = torch.device("cpu")
    compiled = settings.weights != "fp32" and settings.dtype != "bf16"  # most likely: with `auto` the file has a say
    first = beside(os.environ) if compiled else contextlib.nullcontext(False)
    try:
        with first as compiling, ThreadPoolExecutor(max_workers=1) as another:
            if compiling:
                log.get("worker").info("model.compiling")
            woken = another.submit(shared_work.wake)
            model = load_model(path, settings.dtype, _progress(path), device=device, weights=settings.weights)
            woken.result()
        sized = partial(
            memory_of,
            model.config,
            weights_bytes=model.weights.nbytes,
            item_bytes=model.dtype.itemsize,
            kv_item_bytes=kv_dtype(device, model.dtype).itemsize,
            step_tokens=settings.step_tokens,
            step_samples=settings.sequences_max,
            gathers=True,
        )
        kv_bytes = pool_bytes(settings.kv_bytes, _room(sized(kv_tokens=0)))
    except ValueError as error:
        raise CannotStart(str(error)) from error
    blocks = kv_blocks(kv_bytes, model.config, block_size=settings.block_size, device=device, model_dtype=model.dtype)
    memory = sized(kv_tokens=(_two_or_more(blocks, kv_bytes) - 1) * settings.block_size)
    log.get("worker").info("model.memory", **asdict(memory))
    return model.card, TorchRunner(model, CpuOps(), blocks_total=blocks, block_size=settings.block_size)


def _room(loaded: Memory) -> int | None:
    """Bytes for the KV pool, beside what is held now and what a step takes."""
    limit = machine.memory()
    return None if limit is None else limit - machine.memory_held() - loaded.activations_bytes


def _two_or_more(blocks: int, kv_bytes: int) -> int:
    if blocks < 2:
        raise CannotStart(f"FOREBAY_KV_BYTES={kv_bytes} does not hold two blocks of the KV pool")
    return blocks


def _progress(path: Path) -> Callable[[float], None]:
    logger = log.get("worker")
    logger.info("model.loading", file=path.name)
    next_at = PROGRESS_STEP

    def report(fraction: float) -> None:
        nonlocal next_at
        if fraction >= next_at:
            logger.info("model.loading", file=path.name, percent=round(100 * fraction))
            next_at = (fraction // PROGRESS_STEP + 1) * PROGRESS_STEP

    return report


def _words(card: Card) -> list[int]:
    """Ordinary tokens for the fake runner to speak with: whole lower-case words."""
    vocabulary = card.vocabulary
    words: list[int] = []
    for token in range(vocabulary.vocab_size):
        text = vocabulary.token_bytes(token)
        if text.startswith(b" ") and text[1:].isalpha() and text.islower():
            words.append(token)
        if len(words) == FAKE_WORDS_MAX:
            break
    if not words:
        raise CannotStart("the model's vocabulary has no words for the fake runner")
    return words


def card_on_wire(card: Card, *, name: str | None = None, pool: str, tokens_max: int) -> wire.ModelCard:
    """What gateways are told; `tokens_max` of one sequence, by the pool."""
    return wire.ModelCard(
        name=name or card.name,
        pool=pool,
        context_length=card.context_length,
        vocab_size=card.vocab_size,
        tokenizer=card.tokenizer_json,
        chat_template=card.chat_template,
        bos_id=card.bos_id,
        eos_ids=card.eos_ids,
        add_bos=card.add_bos,
        special_ids=card.special_ids,
        request_tokens_max=tokens_max,
    )
