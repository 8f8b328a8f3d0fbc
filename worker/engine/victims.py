"""Which running sequences are preempted when there is no room. Reads the sequences and the pool, changes nothing.

The order of victims: the least urgent tier first; within it the sequence whose work is cheapest to repeat, not counting
blocks that others hold too and so keep; among equals the last to arrive. (A choice that ignores the work costs 10 to 23
% of all computation, vLLM #54644.) Cheapest first alone could hit a short sequence for ever while long ones come and
go. So a sequence that has been a victim `SPENT` times comes after all others of its rank, and of these the first to
arrive is the last: it is never a victim while another of its rank runs. So it ends, and then the next one.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from worker.engine.blocks import NULL_BLOCK, BlockPool
from worker.engine.sequence import Sequence

SPENT = 4


class Want(NamedTuple):
    """The blocks that a waiting sequence needs in order to run."""

    cached: list[int]  # blocks that the prefix cache has
    fresh: int  # how many further blocks


def worst(running: Iterable[Sequence], pool: BlockPool, block_size: int) -> Sequence:
    """The running sequence that is to be preempted first."""
    return max(running, key=_order(pool, block_size))


def for_urgent(
    want: Want, candidates: list[Sequence], pool: BlockPool, *, others: int, spare: int, block_size: int
) -> list[Sequence]:
    """The candidates to preempt so that `want` fits beside the sequences that continue (the `others` among them), with
    `spare` blocks for their growth: at least one, no more than needed, and none if preempting all would not be enough.
    """

    def enough(counts: NDArray[np.int32], victims: int) -> bool:
        free = int((counts == 0).sum()) - 1 - int((counts[want.cached] == 0).sum())  # less the null block
        return free >= want.fresh + (spare if others + len(candidates) > victims else 0)

    assert pool.counts[NULL_BLOCK] == 0
    held = np.concatenate([sequence.table.ids for sequence in candidates])
    if not enough(pool.counts - np.bincount(held, minlength=len(pool.counts)), len(candidates)):
        return []
    counts = pool.counts.copy()
    chosen: list[Sequence] = []
    for sequence in sorted(candidates, key=_order(pool, block_size), reverse=True):
        chosen.append(sequence)
        counts[sequence.table.ids] -= 1
        if enough(counts, len(chosen)):
            break
    # The last ones may have made others unnecessary: spare the most expensive of them first.
    for sequence in chosen[-2::-1]:
        counts[sequence.table.ids] += 1
        if enough(counts, len(chosen) - 1):
            chosen.remove(sequence)
        else:
            counts[sequence.table.ids] -= 1
    return chosen


def _order(pool: BlockPool, block_size: int) -> Callable[[Sequence], tuple[int, bool, int, int]]:
    """A sort key: the greatest is the first victim."""

    def key(sequence: Sequence) -> tuple[int, bool, int, int]:
        spent = sequence.preemptions >= SPENT
        kept = int((pool.counts[sequence.table.ids] > 1).sum()) * block_size
        return (sequence.rank, not spent, 0 if spent else kept - sequence.num_computed, sequence.arrival)

    return key
