"""A request that the engine holds: its choices, and its counts for the bill and for its tenant's service.

Knows no schedule. Invariant: each token of a prompt is counted at most once, as cached or as computed, whatever n is
and however often it is computed again.
"""

from dataclasses import dataclass, field

from worker.engine.results import RequestTotals
from worker.engine.sequence import Account, Sequence


@dataclass(slots=True)
class Prompt:
    length: int
    known: int  # tokens that the cache may have had before the request began: later hits are the request's own work
    cached: int = 0  # tokens that were in the cache before the request began
    counted: int = 0  # tokens, from the first on, that were cached or computed at least once
    started: bool = False

    def start(self, cached: int) -> None:
        """Its first choice starts, with `cached` tokens from the cache."""
        self.started = True
        self.cached = self.counted = min(cached, self.known)

    def computed(self, start: int, end: int) -> int:
        """A choice has computed its tokens `start` to `end`. Returns how many of the prompt's tokens among them are
        new.
        """
        fresh = min(end, self.length) - max(start, self.counted)
        self.counted = max(self.counted, min(end, self.length))
        return max(fresh, 0)


@dataclass(slots=True)
class LiveRequest:
    """Choice `c` continues prompt `c // n`."""

    account: Account
    n: int
    prompts: list[Prompt]
    sequences: list[Sequence]
    recomputed: int = 0  # tokens, after preemptions
    unfinished: int = field(init=False)

    def __post_init__(self) -> None:
        self.unfinished = len(self.sequences)

    @property
    def started(self) -> bool:
        return any(prompt.started for prompt in self.prompts)

    def prompt_of(self, sequence: Sequence) -> Prompt:
        return self.prompts[sequence.choice // self.n]

    def totals(self) -> RequestTotals:
        started = [prompt for prompt in self.prompts if prompt.started]
        return RequestTotals(
            prompt_tokens=sum(prompt.length for prompt in started),
            cached_tokens=sum(prompt.cached for prompt in started),
            completion_tokens=sum(sequence.num_generated for sequence in self.sequences),
            preemptions=sum(sequence.preemptions for sequence in self.sequences),
            recomputed_tokens=self.recomputed,
        )
