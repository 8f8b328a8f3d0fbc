"""The waiting sequences, and which of them is next.

Owns their order, which follows the levels of `Service`: tiers by their turns; within a tier the tenant that was served
least; of a tenant the sequence that arrived first. A sequence that leaves here to run has not been served yet, so until
the step is planned its tenant's level includes the cost: otherwise one tenant could take all places of a step.
Invariant: finding the next one costs no more with ten thousand waiting sequences than with ten.
"""

from bisect import bisect_left, insort
from heapq import heapify, heappop, heappush, heapreplace
from math import inf
from operator import attrgetter

from worker.engine.sequence import Sequence
from worker.engine.service import Service

_arrival = attrgetter("arrival")
_SPARE_TURNS = 64


class _Tier:
    """One tier's tenants. `_turns` is a heap of (level, arrival of the first sequence, tenant). Its entries may be out
    of date, but only by being too low: levels grow, and an earlier arrival gets an entry of its own. Tenants whose
    level includes work that is yet to be served are few, and are examined one by one.
    """

    def __init__(self, tier: int, service: Service) -> None:
        self._tier = tier
        self._service = service
        self._tenants: dict[str, list[Sequence]] = {}  # each sorted by arrival
        self._turns: list[tuple[float, int, str]] = []
        self._ahead: dict[str, float] = {}  # by tenant: cost of work that is yet to be served
        self._aside: set[str] = set()  # those of them whose entry was taken off the heap
        self.count = 0

    def add(self, sequence: Sequence) -> None:
        of_tenant = self._tenants.setdefault(sequence.tenant, [])
        insort(of_tenant, sequence, key=_arrival)
        self.count += 1
        if of_tenant[0] is sequence:
            self._push(sequence.tenant)

    def remove(self, sequence: Sequence) -> None:
        of_tenant = self._tenants[sequence.tenant]
        index = bisect_left(of_tenant, sequence.arrival, key=_arrival)
        assert of_tenant[index] is sequence, "the sequence is not in this queue"
        del of_tenant[index]
        self.count -= 1
        if not of_tenant:
            del self._tenants[sequence.tenant]

    def count_ahead(self, tenant: str, cost: float) -> None:
        self._ahead[tenant] = self._ahead.get(tenant, 0.0) + cost

    def settle(self) -> None:
        tenants = self._aside & self._tenants.keys()
        self._ahead, self._aside = {}, set()
        for tenant in tenants:
            self._push(tenant)

    def head(self) -> Sequence:
        turns = [self._turn(tenant) for tenant in self._ahead if tenant in self._tenants]
        first = self._first_in_heap()
        if first is not None:
            turns.append(first)
        return self._tenants[min(turns)[2]][0]

    def _first_in_heap(self) -> tuple[float, int, str] | None:
        while self._turns:
            turn = self._turns[0]
            tenant = turn[2]
            if tenant not in self._tenants:
                heappop(self._turns)
            elif tenant in self._ahead:
                heappop(self._turns)
                self._aside.add(tenant)
            elif (now := self._turn(tenant)) != turn:
                heapreplace(self._turns, now)
            else:
                return turn
        return None

    def sequences(self) -> list[Sequence]:
        return [sequence for of_tenant in self._tenants.values() for sequence in of_tenant]

    def _push(self, tenant: str) -> None:
        heappush(self._turns, self._turn(tenant))
        if len(self._turns) > 2 * len(self._tenants) + _SPARE_TURNS:  # most entries are out of date
            self._turns = [self._turn(name) for name in self._tenants]
            heapify(self._turns)

    def _turn(self, tenant: str) -> tuple[float, int, str]:
        level = self._service.level(self._tier, tenant) + self._ahead.get(tenant, 0.0)
        return (level, self._tenants[tenant][0].arrival, tenant)


class WaitingQueue:
    def __init__(self, service: Service) -> None:
        self._service = service
        self._tiers: dict[int, _Tier] = {}

    def __len__(self) -> int:
        return sum(tier.count for tier in self._tiers.values())

    def add(self, sequence: Sequence) -> None:
        tier = self._tiers.get(sequence.tier)
        if tier is None:
            tier = self._tiers[sequence.tier] = _Tier(sequence.tier, self._service)
        tier.add(sequence)

    def remove(self, sequence: Sequence) -> None:
        tier = self._tiers[sequence.tier]
        tier.remove(sequence)
        if not tier.count:
            del self._tiers[sequence.tier]

    def count_ahead(self, sequence: Sequence, cost: float) -> None:
        """Until `settle`, the level of the sequence's tenant is higher by `cost`."""
        if sequence.tier in self._tiers:
            self._tiers[sequence.tier].count_ahead(sequence.tenant, cost)

    def settle(self) -> None:
        for tier in self._tiers.values():
            tier.settle()

    def head(self, *, strict: bool) -> Sequence | None:
        """The next sequence, None if none waits. `strict`: of the most urgent tier, even if another tier is owed a
        turn.
        """
        if not self._tiers:
            return None
        tier = min(self._tiers) if strict else self._service.tiers(self._tiers)[0]
        return self._tiers[tier].head()

    @property
    def most_urgent(self) -> float:
        """The most urgent waiting tier; infinity if none waits."""
        return min(self._tiers, default=inf)

    def counts(self) -> dict[int, int]:
        """How many sequences wait, by tier."""
        return {number: tier.count for number, tier in self._tiers.items()}

    def sequences(self) -> list[Sequence]:
        """All waiting sequences, in no order."""
        return [sequence for tier in self._tiers.values() for sequence in tier.sequences()]
