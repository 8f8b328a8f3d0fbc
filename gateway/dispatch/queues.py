"""The work that waits for workers, by pool, tier and tenant: this gateway's own jobs, and what other gateways report.

Owns the counts. Pure; times are passed in. Invariant: a request counts from its admission until a worker has accepted
it or it has left, so that requests that arrive together see each other.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import msgspec

from shared import wire

ROWS_MAX: Final = 200  # in one beat
SAID_S: Final = 1.5  # for how long another gateway's report counts

Queue = tuple[str, int]  # pool, tier


class Work(msgspec.Struct, frozen=True):
    """Requests, the sequences in them, and the tokens of their prompts."""

    requests: float = 0
    sequences: float = 0
    tokens: float = 0

    def __add__(self, other: "Work") -> "Work":
        return Work(self.requests + other.requests, self.sequences + other.sequences, self.tokens + other.tokens)

    def __sub__(self, other: "Work") -> "Work":
        return Work(self.requests - other.requests, self.sequences - other.sequences, self.tokens - other.tokens)


NOTHING: Final = Work()


def added(works: Iterable[Work], *, turns: float = math.inf) -> Work:
    """The sum of all works; of each, at most the part that has `turns` sequences, assuming equal ones."""
    requests = sequences = tokens = 0.0
    for work in works:
        share = 1.0 if work.sequences <= turns else turns / work.sequences
        requests += work.requests * share
        sequences += work.sequences * share
        tokens += work.tokens * share
    return Work(requests, sequences, tokens)


def work_of(job: wire.Job) -> Work:
    return Work(1, job.choices, job.prompt_tokens)


@dataclass(slots=True)
class _Said:
    at: float
    rows: tuple[wire.QueuedWork, ...]


class _Holding:
    __slots__ = ("_tenant", "_tenants", "_work")

    def __init__(self, tenants: dict[str, Work], tenant: str, work: Work) -> None:
        self._tenants = tenants
        self._tenant = tenant
        self._work = work

    def __enter__(self) -> None:
        self._tenants[self._tenant] = self._tenants.get(self._tenant, NOTHING) + self._work

    def __exit__(self, *_: object) -> None:
        left = self._tenants[self._tenant] - self._work
        if left.requests:
            self._tenants[self._tenant] = left
        else:
            del self._tenants[self._tenant]


class Queues:
    def __init__(self) -> None:
        self._own: dict[Queue, dict[str, Work]] = {}
        self._said: dict[str, _Said] = {}

    def holding(self, job: wire.Job, pool: str) -> "_Holding":
        """A context in which the job counts as waiting."""
        return _Holding(self._own.setdefault((pool, job.tier), {}), job.tenant, work_of(job))

    def heard(self, beat: wire.GatewayBeat, now: float) -> None:
        """Note what another gateway has waiting."""
        if beat.queued:
            self._said[beat.gateway] = _Said(now, beat.queued)
        else:
            self._said.pop(beat.gateway, None)
        for gateway in [gateway for gateway, said in self._said.items() if now - said.at > SAID_S]:
            del self._said[gateway]

    def rows(self) -> tuple[wire.QueuedWork, ...]:
        """What this gateway has waiting, as its beat tells it: the largest entries first."""
        rows = [
            wire.QueuedWork(
                pool=pool,
                tier=tier,
                tenant=tenant,
                requests=int(work.requests),
                sequences=int(work.sequences),
                tokens=int(work.tokens),
            )
            for (pool, tier), tenants in self._own.items()
            for tenant, work in tenants.items()
        ]
        return tuple(sorted(rows, key=lambda row: -row.tokens)[:ROWS_MAX])

    def waiting(self, pool: str, tier: int, now: float) -> dict[str, Work]:
        """The work that waits in one queue, by tenant, over all gateways."""
        tenants = dict(self._own.get((pool, tier), {}))
        for row in self._others(now):
            if (row.pool, row.tier) == (pool, tier):
                work = Work(row.requests, row.sequences, row.tokens)
                tenants[row.tenant] = tenants.get(row.tenant, NOTHING) + work
        return tenants

    def known(self, now: float) -> list[Queue]:
        """The queues in which something waits."""
        own = {queue for queue, tenants in self._own.items() if tenants}
        return sorted(own | {(row.pool, row.tier) for row in self._others(now)})

    def total(self, pool: str, tier: int, now: float) -> Work:
        return added(self.waiting(pool, tier, now).values())

    def ahead(self, job: wire.Job, pool: str, now: float, *, alone: bool = False) -> Work:
        """What is served before a new job: all of more urgent tiers; what its tenant has waiting (left out if `alone`);
        and of every other tenant of its tier as much as of its own, since they take turns.
        """
        work = NOTHING
        for tier in range(job.tier):
            work += self.total(pool, tier, now)
        peers = self.waiting(pool, job.tier, now)
        own = peers.pop(job.tenant, NOTHING)
        own = NOTHING if alone else own
        turns = own.sequences + job.choices
        return added(peers.values(), turns=turns) + work + own

    def _others(self, now: float) -> Iterator[wire.QueuedWork]:
        for said in self._said.values():
            if now - said.at <= SAID_S:
                yield from said.rows
