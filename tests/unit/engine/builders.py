"""Engines over a fake model, schedulers alone, requests, and what comes out of them."""

from dataclasses import dataclass, field

from worker.engine.batch import Batch, Sampled
from worker.engine.blocks import BlockPool
from worker.engine.config import EngineConfig
from worker.engine.engine import Engine
from worker.engine.fake_runner import FakeRunner
from worker.engine.prefix import Chain, root
from worker.engine.request import EngineRequest, SamplingParams
from worker.engine.results import ChoiceChunk, RequestDone, StepResult, TierLoad
from worker.engine.runner import Runner
from worker.engine.schedule import Schedule
from worker.engine.scheduler import Scheduler
from worker.engine.sequence import Account, Sequence
from worker.engine.service import Service
from worker.models.token_table import TokenTable

EOS, EOT = 0, 1
_ASCII = [bytes([code]) for code in range(32, 127)]
_PIECES = [b"abc", b"\xc3", b"\xa9", b"\xf0\x9f", b"\x98\x80", b"\xe4\xbd", b"\xa0", b"\xff"]
VOCABULARY = TokenTable((b"", b"", *_ASCII, *_PIECES), eos_ids=frozenset({EOS, EOT}))
ORDINARY = range(2, 2 + len(_ASCII))
BLOCK_SIZE = 4


def token(text: str | bytes) -> int:
    """The id of the token with exactly this text."""
    return VOCABULARY.tokens.index(text.encode() if isinstance(text, str) else text)


def make_runner(*, blocks: int = 64, block_size: int = BLOCK_SIZE, context: int = 512) -> FakeRunner:
    """A pool of `blocks` usable blocks; the output depends on every token read through the block table."""
    return FakeRunner(
        vocab_size=VOCABULARY.vocab_size,
        blocks_total=blocks + 1,
        block_size=block_size,
        context_length=context,
        ids=ORDINARY,
        oracle=True,
    )


class AroundRunner:
    """The runner of `make_runner`, for one that looks at its steps or changes what they give."""

    def __init__(self, *, blocks: int = 64) -> None:
        self._inner = make_runner(blocks=blocks)
        self.vocab_size = self._inner.vocab_size
        self.block_size = self._inner.block_size
        self.blocks_total = self._inner.blocks_total
        self.context_length = self._inner.context_length
        self.steps_ahead = 0

    def submit(self, batch: Batch) -> Sampled:
        return self._inner.submit(batch)

    def close(self) -> None:
        pass


def make_engine(runner: Runner | None = None, *, service: Service | None = None, **config: float) -> Engine:
    runner = runner or make_runner()
    defaults = {"block_size": runner.block_size, "context_length": runner.context_length, "watermark": 0.0}
    defaults |= {"tokens_per_step": 32, "sequences_max": 8}
    return Engine(runner, VOCABULARY, EngineConfig(**(defaults | config)), service)


def make_request(
    name: str = "r", prompt: int | list[int] = 5, *, prompts: tuple[list[int], ...] | None = None, n: int = 1, **options
) -> EngineRequest:
    """`prompt` is the ids, or how many of them."""
    ids = [2 + (7 * i + len(name)) % 90 for i in range(prompt)] if isinstance(prompt, int) else prompt
    tier, tenant = options.pop("tier", 0), options.pop("tenant", "acme")
    sampling = SamplingParams(**({"max_tokens": 8} | options))
    return EngineRequest(
        id=name, prompts=prompts or (ids,), n=n, sampling=sampling, tier=tier, tenant=tenant, salt=tenant.encode()
    )


def make_sequence(
    arrival: int, prompt_len: int, *, tier: int = 0, tenant: str = "acme", tokens_max: int | None = None
) -> Sequence:
    """Of a tenant, with a salt of its own: it finds nothing of others in the cache."""
    tokens_max = tokens_max or prompt_len + 8
    return Sequence(
        request=f"r{arrival}",
        choice=0,
        account=Account(tier, tenant),
        arrival=arrival,
        tokens=[2] * prompt_len,
        prompt_len=prompt_len,
        tokens_max=tokens_max,
        sampling=SamplingParams(max_tokens=tokens_max - prompt_len),
        chain=Chain(root(b"%d" % arrival), BLOCK_SIZE),
    )


def make_scheduler(blocks: int = 64, *, service: Service | None = None, **options: float) -> Scheduler:
    config = {"tokens_per_step": 16, "sequences_max": 8, "watermark": 0.0, **options}
    return Scheduler(
        EngineConfig(block_size=BLOCK_SIZE, context_length=256, **config), BlockPool(blocks + 1), service or Service()
    )


def run_step(scheduler: Scheduler) -> Schedule:
    """Schedule, compute, and append a token where the gap is closed: what an engine does."""
    plan = scheduler.schedule()
    scheduler.launch(plan)
    scheduler.advance(plan)
    for sequence in plan.sequences():
        if sequence.num_computed == len(sequence.tokens):
            sequence.tokens.append(2)
    scheduler.check_integrity()
    return plan


def shape(plan: Schedule) -> list[tuple[int, int]]:
    """(arrival, tokens) of each part."""
    decodes = [(sequence.arrival, 1) for sequence in plan.decodes]
    return decodes + [(sequence.arrival, tokens) for sequence, tokens in plan.chunks]


def enqueue(scheduler: Scheduler, *sequences: Sequence) -> None:
    for sequence in sequences:
        scheduler.add(sequence)


def make_load(*, running: int = 0, waiting: int = 0, held: int = 0, blocks: int = 0, **options: int) -> TierLoad:
    more = {"held_blocks": 0, "owed": False, **options}
    return TierLoad(running=running, waiting=waiting, held=held, blocks=blocks, **more)


@dataclass
class Transcript:
    """All that an engine said, checked against the rules that always hold."""

    ids: dict[tuple[str, int], list[int]] = field(default_factory=dict)
    text: dict[tuple[str, int], str] = field(default_factory=dict)
    finish: dict[tuple[str, int], str] = field(default_factory=dict)
    done: dict[str, RequestDone] = field(default_factory=dict)
    steps: list[StepResult] = field(default_factory=list)

    def take(self, result: StepResult) -> None:
        self.steps.append(result)
        for chunk in result.chunks:
            self._take_chunk(chunk)
        for done in result.done:
            assert done.request not in self.done, "a request is done twice"
            self.done[done.request] = done

    def _take_chunk(self, chunk: ChoiceChunk) -> None:
        key = (chunk.request, chunk.choice)
        assert key not in self.finish, "a chunk after the last"
        assert chunk.request not in self.done
        assert chunk.ids, "text without ids"
        self.ids.setdefault(key, []).extend(chunk.ids)
        self.text[key] = self.text.get(key, "") + chunk.text
        if chunk.finish is not None:
            self.finish[key] = chunk.finish


def drain(engine: Engine, *, steps_max: int = 5_000) -> Transcript:
    """Step until there is no work; then every block must be free."""
    transcript = Transcript()
    for _ in range(steps_max):
        if not engine.has_work:
            break
        transcript.take(engine.step())
        engine.check_integrity()
    assert not engine.has_work, "the engine does not come to an end"
    assert_idle(engine)
    return transcript


def assert_idle(engine: Engine) -> None:
    engine.check_idle()
    engine.check_integrity()
    stats = engine.stats()
    assert (stats.running, stats.waiting, stats.held) == (0, 0, 0)
    assert stats.blocks_free == stats.blocks_total


def run_alone(request: EngineRequest, **config: float) -> Transcript:
    """The same request with the pool, the batch and the budget to itself."""
    runner = make_runner(blocks=512)
    engine = make_engine(runner, **({"tokens_per_step": 4096} | config))
    engine.add(request)
    return drain(engine)


class ScriptedRunner:
    """Says what it was told: `script[choice]` are the ids of a choice in order, by position. `faults` are what the
    steps raise, counted from 0."""

    def __init__(
        self, script: dict[int, list[int]], prompt_len: int, faults: dict[int, Exception] | None = None
    ) -> None:
        self.vocab_size = VOCABULARY.vocab_size
        self.block_size = BLOCK_SIZE
        self.blocks_total = 65
        self.context_length = 512
        self.steps_ahead = 0
        self._script = script
        self._prompt_len = prompt_len
        self._faults = faults or {}
        self.batches: list[Batch] = []

    def submit(self, batch: Batch) -> Sampled:
        self.batches.append(batch)
        fault = self._faults.get(len(self.batches) - 1)
        if fault is not None:
            raise fault
        ids = [self._script[params.choice][params.position - self._prompt_len] for params in batch.samples]
        return Sampled(ids, [None] * len(ids))

    def close(self) -> None:
        pass
