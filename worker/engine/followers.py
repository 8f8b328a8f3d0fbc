"""The sequences that wait until another one, their leader, has computed the prompt that they share.

Owns which sequence follows which, and how much room the followers will need. Knows no queue and no pool. Invariant: a
follower is counted from `hold` until it starts to wait for room by itself or leaves.
"""

from collections import Counter
from collections.abc import Iterable

from worker.engine.sequence import Sequence, Status


class Followers:
    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._of: dict[Sequence, list[Sequence]] = {}  # by leader
        self.counts = Counter[int]()  # followers by tier
        self.blocks = Counter[int]()  # blocks that they will not share, by tier

    @property
    def total(self) -> int:
        return self.counts.total()

    def hold(self, leader: Sequence, followers: Iterable[Sequence]) -> None:
        held = list(followers)
        if held:
            self._of[leader] = held
        for follower in held:
            follower.status = Status.HELD
            self._count(follower, 1)

    def leave(self, follower: Sequence) -> None:
        """A follower ends before its leader has computed the prompt."""
        self._count(follower, -1)

    def release(self, leader: Sequence) -> list[Sequence]:
        """The leader has computed the prompt, or will not: its followers, which now wait for room. Idempotent."""
        released = [follower for follower in self._of.pop(leader, []) if follower.status is Status.HELD]
        for follower in released:
            self._count(follower, -1)
            follower.chain = leader.chain.fork(follower.prompt_len // self._block_size)
            follower.status = Status.WAITING
        return released

    def check_idle(self) -> None:
        """Assert that no follower is left."""
        assert not self._of
        assert not self.total

    def check_integrity(self) -> None:
        """Assert that every leader may still compute its prompt."""
        assert all(leader.status in {Status.WAITING, Status.RUNNING} for leader in self._of)

    def _count(self, follower: Sequence, by: int) -> None:
        # Full blocks of the prompt are shared, except one that the last token fills: each computes that token itself.
        shared = (follower.prompt_len - 1) // self._block_size
        needed = -(-(follower.prompt_len + 1) // self._block_size)
        self.counts[follower.tier] += by
        self.blocks[follower.tier] += by * (needed - shared)
