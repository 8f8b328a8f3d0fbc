"""Circuit breakers: requests to a pool are refused for a while when its requests keep failing.

Pure: outcomes and the time go in, refusals come out. Only faults of workers count as failures, never a refusal, a full
queue or a client that left. Invariant: while a circuit is open, a probe is let through now and then, and three
successful probes in a row close it.

A tenant's requests may fail through its own fault. So each tenant also has a circuit of its own per pool, and failures
while that is open do not count against the pool: no tenant alone can close a pool to the others.
"""

from dataclasses import dataclass, field
from typing import Final

HALF_LIFE_S: Final = 10.0  # of an outcome's weight
SHARE: Final = 0.5  # of the weight of all outcomes that failures must have
TENANT_FAILURES_MIN: Final = 5.0
POOL_FAILURES_MIN: Final = 10.0
LOST_WORKER: Final = 5.0  # how many failures a lost worker counts as, however many requests it had
OPEN_S: Final = 1.0  # the first time; twice as long each time that a probe fails
OPEN_S_MAX: Final = 30.0
PROBE_S: Final = 0.5  # between two probes
PROBES: Final = 3  # successful ones in a row that close it
TENANTS_MAX: Final = 10_000  # with recent failures; beyond it the oldest is forgotten


@dataclass(slots=True)
class Circuit:
    """Closed until failures weigh enough, then open, then half open, when only probes pass."""

    failures_min: float
    _failed: float = 0.0
    _total: float = 0.0
    _counted_at: float = 0.0
    _open_until: float | None = None  # None: closed
    _open_s: float = OPEN_S
    _probe_at: float = 0.0  # time of the next probe
    _succeeded: int = 0  # successful probes since it is half open

    @property
    def closed(self) -> bool:
        return self._open_until is None

    def refused_s(self, now: float) -> float:
        """For how many seconds nothing passes; 0 if a request may pass now, perhaps as a probe."""
        if self._open_until is None:
            return 0.0
        wait_s = max(self._open_until, self._probe_at) - now
        if wait_s > 0:
            return wait_s
        self._probe_at = now + PROBE_S
        return 0.0

    def succeeded(self, now: float) -> None:
        if self._open_until is None:
            self._count(0.0, 1.0, now)
        elif now >= self._open_until:
            self._succeeded += 1
            if self._succeeded >= PROBES:
                self._open_until, self._open_s = None, OPEN_S
                self._failed = self._total = 0.0

    def failed(self, now: float, weight: float = 1.0) -> None:
        if self._open_until is None:
            self._count(weight, weight, now)
            if self._failed >= self.failures_min and self._failed >= SHARE * self._total:
                self._open(now)
        elif now >= self._open_until:
            self._open_s = min(2 * self._open_s, OPEN_S_MAX)
            self._open(now)

    def _open(self, now: float) -> None:
        self._open_until = now + self._open_s
        self._succeeded = 0

    def _count(self, failed: float, total: float, now: float) -> None:
        kept = 0.5 ** (max(0.0, now - self._counted_at) / HALF_LIFE_S)
        self._failed = self._failed * kept + failed
        self._total = self._total * kept + total
        self._counted_at = now


@dataclass(slots=True)
class Breakers:
    """The circuits of all pools, and of the tenants whose requests failed in them."""

    _pools: dict[str, Circuit] = field(default_factory=dict[str, Circuit])
    _tenants: dict[tuple[str, str], Circuit] = field(default_factory=dict[tuple[str, str], Circuit])

    def refused_s(self, pool: str, tenant: str, now: float) -> float:
        """For how many seconds the tenant's requests to the pool are refused; 0 if one may pass now."""
        own = self._tenants.get((pool, tenant))
        wait_s = 0.0 if own is None else own.refused_s(now)
        return wait_s or self._pool(pool).refused_s(now)

    def succeeded(self, pool: str, tenant: str, now: float) -> None:
        self._pool(pool).succeeded(now)
        if own := self._tenants.get((pool, tenant)):
            own.succeeded(now)

    def failed(self, pool: str, tenant: str, now: float) -> None:
        """A worker could not compute a request."""
        own = self._tenants.pop((pool, tenant), None) or Circuit(TENANT_FAILURES_MIN)
        self._tenants[pool, tenant] = own
        if len(self._tenants) > TENANTS_MAX:
            del self._tenants[next(iter(self._tenants))]
        if own.closed:
            self._pool(pool).failed(now)
        own.failed(now)

    def lost(self, pool: str, now: float) -> None:
        """A worker was lost, with all its requests."""
        self._pool(pool).failed(now, LOST_WORKER)

    def open_pools(self) -> list[str]:
        return [pool for pool, circuit in self._pools.items() if not circuit.closed]

    def _pool(self, pool: str) -> Circuit:
        return self._pools.setdefault(pool, Circuit(POOL_FAILURES_MIN))
