"""One step: which sequences take part in it, and with how many tokens.

Owns the arithmetic of the budget, in tokens and, if there is a pace, in time. Knows no blocks and no waiting sequences.
Invariant: a step never has more tokens than its budget. Sequences that lack one token (decodes) come before all others;
if there are none, the first of the others makes progress.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from worker.engine.pace import TOKENS_LEAST, Pace, Work
from worker.engine.sequence import Sequence, Status

_by_rank = attrgetter("rank", "turn")


class Chunk(NamedTuple):
    sequence: Sequence
    tokens: int  # from `num_computed` on


@dataclass(slots=True)
class Schedule:
    decodes: list[Sequence]  # one token each, the last one
    chunks: list[Chunk]  # of prompts, or of sequences that are computed again
    admitted: list[Sequence]  # in this step, each with tokens in it
    preempted: int
    ends: list[int] = field(default_factory=list[int])  # once launched: the computed tokens of each sequence

    def sequences(self) -> list[Sequence]:
        return [*self.decodes, *(chunk.sequence for chunk in self.chunks)]

    def rows(self) -> NDArray[np.int64]:
        """[sequences] their rows in the matrix of block tables."""
        return np.array([sequence.table.row for sequence in self.sequences()], dtype=np.int64)

    def counts(self) -> NDArray[np.int64]:
        """[sequences] their tokens in this step."""
        counts = np.ones(len(self.decodes) + len(self.chunks), dtype=np.int64)
        counts[len(self.decodes) :] = [chunk.tokens for chunk in self.chunks]
        return counts

    def work(self) -> Work:
        work = Work(len(self.decodes))
        for sequence, tokens in self.chunks:
            work = work.beside(tokens, sequence.num_computed)
        return work

    def awaits_tokens(self) -> bool:
        """Whether a draw depends on a token that is still in flight: penalties count the tokens generated so far."""
        return any(sequence.in_flight and sequence.sampling.penalises for sequence in self.sequences())

    def drop_finished(self) -> None:
        """Remove the sequences that have ended since the step was planned."""
        self.decodes = [sequence for sequence in self.decodes if sequence.status is Status.RUNNING]
        self.chunks = [chunk for chunk in self.chunks if chunk.sequence.status is Status.RUNNING]


class Draft:
    """A step while it is planned: the running sequences that decode, and the others."""

    def __init__(
        self,
        budget: int,
        beside_decodes: int,
        *,
        decodes: list[Sequence],
        prompts: Iterable[Sequence],
        pace: Pace | None = None,
    ) -> None:
        self._budget = budget
        self._beside_decodes = beside_decodes
        self._pace = pace
        self._decodes = decodes
        self._others: list[Sequence] = []
        self._wanted = Counter[int]()  # tokens that the others still lack, by rank
        self._wanted_s = defaultdict[int, float](float)  # the seconds that these would take; only if there is a pace
        self.admitted: list[Sequence] = []
        for sequence in prompts:
            self._take(sequence)

    def has_room(self, rank: int) -> bool:
        """Whether budget is left for one more sequence of this rank, after the decodes and all others at least as
        urgent.
        """
        if sum(tokens for other, tokens in self._wanted.items() if other <= rank) >= self._for_prompts():
            return False
        spare_s = self._spare_s()
        return spare_s is None or sum(s for other, s in self._wanted_s.items() if other <= rank) < spare_s

    def admit(self, sequence: Sequence) -> None:
        self.admitted.append(sequence)
        if sequence.decodes:
            self._decodes.append(sequence)
        else:
            self._take(sequence)

    def finish(self, preempted: int) -> Schedule:
        """The finished step, without the sequences that were preempted while it was planned."""
        if preempted:
            self._decodes = [sequence for sequence in self._decodes if sequence.status is Status.RUNNING]
            self._others = [sequence for sequence in self._others if sequence.status is Status.RUNNING]
        left, spare_s = self._for_prompts(), self._spare_s()
        chunks: list[Chunk] = []
        for sequence in sorted(self._others, key=_by_rank):
            tokens = min(sequence.gap, left)
            if tokens == 0:
                break
            if self._pace is not None and spare_s is not None:
                if spare_s <= 0:
                    break
                least = 1 if chunks else TOKENS_LEAST
                tokens = min(tokens, max(least, self._pace.tokens(spare_s, sequence.num_computed)))
                spare_s -= self._pace.chunk_s(tokens, sequence.num_computed)
            chunks.append(Chunk(sequence, tokens))
            left -= tokens
        return Schedule(self._decodes, chunks, self.admitted, preempted)

    def _for_prompts(self) -> int:
        left = self._budget - len(self._decodes)
        assert left >= 0, "the budget is below the number of sequences"
        return min(left, self._beside_decodes) if self._decodes else left

    def _spare_s(self) -> float | None:
        """The seconds that prompts may take; None if that is not limited."""
        return self._pace.spare_s(len(self._decodes)) if self._pace is not None and self._decodes else None

    def _take(self, sequence: Sequence) -> None:
        self._others.append(sequence)
        self._wanted[sequence.rank] += sequence.gap
        if self._pace is not None:
            self._wanted_s[sequence.rank] += self._pace.chunk_s(sequence.gap, sequence.num_computed)
