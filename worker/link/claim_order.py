"""The order in which a worker claims jobs from the queues: tiers by their turns, then tenants by the service counters.

Owns what this worker knows of the queues, and reports to the counters which tenants have work there: a tenant whose
jobs wait only in a queue is active as well. Knows neither NATS nor room. Invariant: the order is the one in which the
engine serves the sequences that it holds, so it does not matter where a job waits.
"""

from collections.abc import Set as AbstractSet
from heapq import heapify, heappop, heapreplace

from worker.engine.service import Service

TENANTS_MAX = 20_000  # tenants whose last turn is remembered


class TierOrder:
    """One look at the waiting tenants of one tier. `jobs` is the number of waiting jobs by tenant."""

    def __init__(self, service: Service, tier: int, jobs: dict[str, int], last_turns: dict[str, int]) -> None:
        self._service = service
        self._tier = tier
        self._jobs = dict(jobs)
        self._claimed: dict[str, float] = {}  # levels that include what was claimed in this look
        self._heap = [(service.level(tier, tenant), last_turns.get(tenant, 0), tenant) for tenant in jobs]
        heapify(self._heap)

    def first(self) -> str | None:
        """The tenant that was served least and, among equals, whose last turn was longest ago; None when no job
        waits.
        """
        while self._heap:
            level, turn, tenant = self._heap[0]
            now = self._level(tenant)
            if now <= level:
                return tenant
            heapreplace(self._heap, (now, turn, tenant))  # it was served in the meantime
        return None

    def claimed(self, turn: int, input_tokens: int) -> None:
        """A job of the first tenant was claimed."""
        level, _, tenant = self._heap[0]
        self._jobs[tenant] -= 1
        self._claimed[tenant] = self._level(tenant) + self._service.weighted(input_tokens=input_tokens)
        if self._jobs[tenant] > 0:
            heapreplace(self._heap, (level, turn, tenant))
        else:
            self.exhausted()

    def exhausted(self) -> None:
        """The first tenant has no more jobs for this worker."""
        heappop(self._heap)

    def _level(self, tenant: str) -> float:
        """The counter, or its value after this look's claims are charged. Not their sum: the engine may already have
        charged a claim.
        """
        return max(self._service.level(self._tier, tenant), self._claimed.get(tenant, 0.0))


class ClaimOrder:
    def __init__(self, service: Service) -> None:
        self._service = service
        self._waiting: dict[int, set[str]] = {}  # by tier: tenants that are active because of their queued jobs
        self._last_turns: dict[str, int] = {}
        self._turn = 0

    def owed(self, tier: int) -> bool:
        """Whether the tier's next turn comes before that of a more urgent one."""
        return self._service.owed(tier)

    def waiting(self, tier: int, tenants: AbstractSet[str]) -> None:
        """These tenants have jobs in the tier's queue; there may be others."""
        known = self._waiting.setdefault(tier, set())
        for tenant in tenants - known:
            self._service.arrived(tier, tenant, "queue")
        known.update(tenants)

    def only(self, tier: int, tenants: AbstractSet[str]) -> None:
        """No tenants other than these have jobs in the tier's queue."""
        known = self._waiting.get(tier, set())
        for tenant in known - tenants:
            self._service.left(tier, tenant, "queue")
        known &= tenants

    def of(self, tier: int, jobs: dict[str, int]) -> TierOrder:
        """The order of these tenants, with their numbers of jobs in the tier's queue."""
        return TierOrder(self._service, tier, jobs, self._last_turns)

    def took(self, order: TierOrder, tenant: str, input_tokens: int) -> None:
        """A job of the first tenant of `order` was claimed."""
        self._turn += 1
        self._last_turns.pop(tenant, None)
        self._last_turns[tenant] = self._turn
        if len(self._last_turns) > TENANTS_MAX:
            del self._last_turns[next(iter(self._last_turns))]
        order.claimed(self._turn, input_tokens)
