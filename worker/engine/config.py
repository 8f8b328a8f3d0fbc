"""The engine's settings: plain numbers, checked once."""

from dataclasses import dataclass


@dataclass(slots=True, frozen=True, kw_only=True)
class EngineConfig:
    """Raises ValueError for numbers that could not make progress."""

    block_size: int
    """Tokens in one block of the KV pool."""

    context_length: int
    """Tokens that one sequence may hold, prompt and output together."""

    tokens_per_step: int = 512
    """Budget of one step, shared by decodes (one token each, served first) and chunks of prompts."""

    tokens_beside_decodes: int = 512
    """The part of it that prompts may take in a step that also has decodes. All streams pause while a chunk is
    computed, and this bounds the pause.
    """

    pace: float | None = None
    """The bound on the time of such a step, as a multiple of the typical gap between tokens, predicted from earlier
    steps (`pace`). Above 1. None: no bound.
    """

    sequences_max: int = 256
    """Sequences that run at the same time."""

    watermark: float = 0.05
    """Share of the pool that stays free when a sequence is admitted while others run, as room for them to grow. With a
    pool of half of what is needed, 0, 3, 5 and 10 % cost about 50, 13, 8 and 3 % of computation in preempted work
    (`bench.scheduler`); beyond 5 % fewer sequences run at the same time.
    """

    def __post_init__(self) -> None:
        if self.block_size < 1 or self.context_length < 2 or self.sequences_max < 1:
            raise ValueError(f"block_size and sequences_max start at 1, context_length at 2: {self}")
        if self.tokens_per_step < self.sequences_max:
            # Otherwise the decodes of a full batch would not fit into one step, and the last ones would starve.
            raise ValueError(f"tokens_per_step {self.tokens_per_step} is below sequences_max {self.sequences_max}")
        if self.tokens_beside_decodes < 1:
            raise ValueError("with tokens_beside_decodes of 0 a prompt would wait until nobody else runs")
        if self.pace is not None and self.pace <= 1:
            raise ValueError(f"at a pace of {self.pace} a prompt would wait until nobody else runs")
        if not 0 <= self.watermark < 1:
            raise ValueError(f"watermark {self.watermark} is not a share of the pool")
