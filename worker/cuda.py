"""A model on a CUDA device: loads it, divides the memory, and compiles every kernel before the worker reports ready.

Imported only where there is a device, since it imports torch and triton. Invariant: a kernel that is compiled later,
while requests are served, is counted and logged by name.
"""

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import torch
from triton import OutOfResources

from kernels.attention_table import HEAD_DIMS
from kernels.compilations import Compilations
from kernels.on_device import current
from kernels.rms_norm import HIDDEN_MAX
from kernels.triton_ops import TritonOps
from shared import log
from worker.engine.activations import BLOCKS_LEAST, activation_bytes
from worker.engine.decode_steps import decode_sizes
from worker.engine.device_memory import DeviceMemory, divide
from worker.engine.graph_runner import GraphRunner, Sizes
from worker.engine.graphs import CudaGraphs
from worker.engine.kv_pool import pool_dtype, token_bytes
from worker.errors import CannotStart
from worker.metrics import WorkerMetrics
from worker.models.card import Card, read_card
from worker.models.config import ModelConfig
from worker.models.decoder import Decoder
from worker.models.load import load_model
from worker.settings import WorkerSettings

CAPABILITY_MIN = (8, 0)  # the oldest for which kernels are compiled and listed


def check_kernels(capability: tuple[int, int], config: ModelConfig) -> None:
    """Check that there are kernels for this chip and this model. Raises CannotStart."""
    refusals = {
        f"a chip of capability {capability[0]}.{capability[1]}": capability < CAPABILITY_MIN,
        f"a head dimension of {config.head_dim}": config.head_dim > HEAD_DIMS[-1],
        f"a hidden size of {config.hidden}": config.hidden > HIDDEN_MAX,
    }
    for what, present in refusals.items():
        if present:
            raise CannotStart(f"there are no CUDA kernels for {what}; use --device cpu")


def load_cuda(
    settings: WorkerSettings, path: Path, metrics: WorkerMetrics, progress: Callable[[float], None]
) -> tuple[Card, GraphRunner]:
    """The card and the runner on the device that `settings` name by number. Raises ModelFileError, and CannotStart for
    a model that the device cannot compute or hold.
    """
    device = torch.device(settings.device)
    with current(device):
        return _load(settings, path, metrics, progress, device)


def _load(
    settings: WorkerSettings,
    path: Path,
    metrics: WorkerMetrics,
    progress: Callable[[float], None],
    device: torch.device,
) -> tuple[Card, GraphRunner]:
    """Called with the device as torch's current one, so that torch allocates and measures there."""
    logger = log.get("worker")
    compilations = Compilations()
    compilations.watch()
    check_kernels(torch.cuda.get_device_capability(device), read_card(path).config)
    sizes = Sizes(
        blocks_total=BLOCKS_LEAST,
        block_size=settings.block_size,
        sequences_max=settings.sequences_max,
        tokens_per_step=settings.step_tokens,
    )
    try:
        model = load_model(path, settings.dtype, progress, device=device, weights=settings.weights)
        decoder = Decoder(model.config, model.weights, TritonOps())
        kv_dtype = pool_dtype(settings.kv_dtype, model.dtype)
        memory = _divided(settings, decoder, sizes, kv_dtype)
        logger.info("model.memory", **asdict(memory))
        runner = GraphRunner(decoder, replace(sizes, blocks_total=memory.blocks), CudaGraphs(), kv_dtype=kv_dtype)
        runner.warm_up()
        torch.cuda.synchronize()
    except (ValueError, torch.OutOfMemoryError, OutOfResources) as error:
        raise CannotStart(str(error)) from error
    logger.info("model.warm", kernels_compiled=compilations.count, device_bytes=torch.cuda.memory_reserved())
    tell_late(compilations, metrics)
    return model.card, runner


def tell_late(compilations: Compilations, metrics: WorkerMetrics) -> None:
    """From now on each kernel that is compiled is a line of the log, and counted."""

    def on_late(kernel: str) -> None:
        log.get("worker").warning("kernel.compiled_late", kernel=kernel)
        metrics.compiled_late()

    compilations.ready(on_late)


def _divided(settings: WorkerSettings, decoder: Decoder, sizes: Sizes, kv_dtype: torch.dtype) -> DeviceMemory:
    config = decoder.config
    activations = activation_bytes(decoder, sizes, kv_dtype)
    free, total = torch.cuda.mem_get_info()
    return divide(
        total_bytes=total,
        free_bytes=free,
        share=settings.memory_share,
        weights_bytes=decoder.weights.nbytes,
        activations_bytes=activations,
        graphs=len(decode_sizes(sizes.sequences_max)),
        token_bytes=token_bytes(config, kv_dtype),
        block_size=sizes.block_size,
        context_length=config.context_length,
        kv_bytes_wanted=settings.kv_bytes,
    )
