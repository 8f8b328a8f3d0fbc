"""How fast this worker is, measured from its steps and its finished sequences; older measurements count less.

Pure arithmetic. Time is the time of steps, so an idle hour changes nothing. Invariant: a number that was never measured
is 0, which readers take as unknown.
"""

import math
from dataclasses import dataclass, field
from typing import Final

from worker.engine.results import RequestTotals

PROMPTS_MEMORY_S: Final = 5.0  # seconds of steps with prompts after which a measurement's weight has fallen to a third
STEPS_MEMORY_S: Final = 1.0
REQUESTS_KEPT: Final = 0.98  # the weight of all earlier requests is multiplied by this at each that finishes


@dataclass(slots=True)
class FadingRatio:
    """The ratio of two sums whose older terms weigh less. Zero while nothing was added."""

    above: float = 0.0
    below: float = 0.0

    def add(self, above: float, below: float, *, kept: float) -> None:
        self.above = self.above * kept + above
        self.below = self.below * kept + below

    @property
    def value(self) -> float:
        return self.above / self.below if self.below else 0.0


@dataclass(slots=True)
class Speed:
    """Prompts are timed only in steps with at least `prompt_tokens_min` of them. A step's fixed cost would make a few
    tokens look slow, and a request that waits behind many prompts has full steps before it.
    """

    prompt_tokens_min: int
    _prompts: FadingRatio = field(default_factory=FadingRatio)
    _steps: FadingRatio = field(default_factory=FadingRatio)
    _outputs: FadingRatio = field(default_factory=FadingRatio)
    _cached: FadingRatio = field(default_factory=FadingRatio)

    @property
    def prompt_tokens_per_s(self) -> float:
        """In steps that prompts fill, whatever else those steps do."""
        return self._prompts.value

    @property
    def step_s(self) -> float:
        return self._steps.value

    @property
    def output_tokens_mean(self) -> float:
        """Per sequence that finished."""
        return self._outputs.value

    @property
    def cached_share(self) -> float:
        """The share of recent prompt tokens that the prefix cache had."""
        return self._cached.value

    def stepped(self, seconds: float, *, tokens: int, sampled: int) -> None:
        """A step computed `tokens` tokens and sampled `sampled` of them. Tokens that led to no sample are prompt
        tokens.
        """
        if tokens <= 0 or seconds <= 0:
            return
        self._steps.add(seconds, 1, kept=math.exp(-seconds / STEPS_MEMORY_S))
        if tokens - sampled >= self.prompt_tokens_min:
            self._prompts.add(tokens - sampled, seconds, kept=math.exp(-seconds / PROMPTS_MEMORY_S))

    def finished(self, totals: RequestTotals, *, sequences: int) -> None:
        self._outputs.add(totals.completion_tokens, sequences, kept=REQUESTS_KEPT)
        self._cached.add(totals.cached_tokens, totals.prompt_tokens, kept=REQUESTS_KEPT)
