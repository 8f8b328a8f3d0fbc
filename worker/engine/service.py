"""Service counters: the weighted tokens served per tier and tenant, and the floor share of less urgent tiers.

Owns numbers only: no sequence, no queue, no clock. The scheduler and the intake ask here whose turn it is, and charge
the work done. The engine's thread and the event loop share one instance, so a lock guards it.

Fairness within a tier (Sheng and others, Fairness in Serving Large Language Models, OSDI 2024): a counter grows by the
weighted tokens that its tenant was served, and the tenant with the least counter is served next. A tenant that returns
from idling has no claim to service that it did not ask for. The paper raises it to the least counter of the active
ones, which stands still as long as somebody new always waits, so that tenants who come and go starve one who stays.
Here it starts at the fair share: what an active tenant would have been served if all had got the same (the virtual time
of generalized processor sharing; Parekh and Gallager, 1993; docs/adr/0028). No counter counts for less than
`SPREAD_TOKENS` below the share, nor is the share further below the greatest counter: capacity that others left unused
is neither a debt nor a claim. Invariant: a counter never falls while its tenant is active, so a value read earlier is a
lower bound.

Between tiers the most urgent goes first, but each less urgent tier with work is owed `floor_share` of all service. What
it is owed grows with every token that the tiers are served while a more urgent tier has work, and shrinks by what it is
served itself; from `OWED_TOKENS` on it has the next turn.
"""

import threading
from collections import OrderedDict, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, heapreplace
from typing import Literal

Place = Literal["engine", "queue"]  # where a tenant has work: in the engine, or in the queue that jobs wait in

OWED_TOKENS = 1_024.0  # weighted; less would give a turn to a tier that has only just begun to wait
CREDIT_TOKENS_MAX = 4_096.0  # the most that a tier can be owed, however long it found no room
DEBT_TOKENS_MAX = 16_384.0  # the most that it can get in advance, however long its prompts are
SPREAD_TOKENS = 16_384.0  # the most that a tenant can be ahead of the fair share, or behind it, by its counter
IDLE_TENANTS_MAX = 4_096  # per tier; beyond it the one that has been idle longest is forgotten


@dataclass(slots=True)
class _Tier:
    counters: dict[str, float] = field(default_factory=dict[str, float])  # of active and idle tenants
    places: dict[str, set[Place]] = field(default_factory=dict[str, set[Place]])  # of active tenants
    idle: OrderedDict[str, None] = field(default_factory=OrderedDict[str, None])  # longest idle first
    bounds: list[tuple[float, str]] = field(default_factory=list[tuple[float, str]])  # a heap: below the counters
    base: float = 0.0  # the counter of the last tenant to leave the tier empty
    share: float = 0.0  # what was served, for each of those who were active
    credit: float = 0.0

    def least(self) -> float:
        """The least counter of an active tenant; with none, where the next one starts."""
        while self.bounds:
            bound, tenant = self.bounds[0]
            if tenant not in self.places:
                heappop(self.bounds)
            elif bound == self.counters[tenant]:
                return bound
            else:
                heapreplace(self.bounds, (self.counters[tenant], tenant))
        return self.base

    def level(self, tenant: str) -> float:
        own = self.counters.get(tenant, 0.0)
        return max(own, self.share - SPREAD_TOKENS) if tenant in self.places else max(own, self.share, self.least())

    def charge(self, tenant: str, amount: float) -> None:
        assert tenant in self.places, "an idle tenant is not served"
        counter = self.counters[tenant] = self.level(tenant) + amount
        self.share = max(self.share + amount / len(self.places), counter - SPREAD_TOKENS)

    def enter(self, tenant: str) -> None:
        self.counters[tenant] = self.level(tenant)
        self.places[tenant] = set()
        self.idle.pop(tenant, None)
        heappush(self.bounds, (self.counters[tenant], tenant))
        if len(self.bounds) > 2 * len(self.places) + IDLE_TENANTS_MAX:  # most entries are of tenants that have left
            self.bounds = [(self.counters[name], name) for name in self.places]
            heapify(self.bounds)

    def leave(self, tenant: str) -> None:
        del self.places[tenant]
        self.idle[tenant] = None
        if not self.places:
            self.base = max(self.base, self.counters[tenant])
            self.credit = min(self.credit, 0.0)  # an empty tier is owed nothing
        if len(self.idle) > IDLE_TENANTS_MAX:
            forgotten, _ = self.idle.popitem(last=False)
            del self.counters[forgotten]


class Service:
    """Weights are per token. Raises ValueError for weights or a share out of range."""

    def __init__(self, *, input_weight: float = 1.0, output_weight: float = 2.0, floor_share: float = 0.05) -> None:
        if min(input_weight, output_weight) < 0 or not 0 <= floor_share < 1:
            raise ValueError(f"weights {input_weight}, {output_weight} or floor share {floor_share} out of range")
        self._input_weight = input_weight
        self._output_weight = output_weight
        self._floor_share = floor_share
        self._tiers: dict[int, _Tier] = {}
        self._lock = threading.Lock()

    @property
    def floor_share(self) -> float:
        return self._floor_share

    def arrived(self, tier: int, tenant: str, place: Place = "engine") -> None:
        """The tenant has work at `place`. Idempotent."""
        with self._lock:
            state = self._tiers.setdefault(tier, _Tier())
            if tenant not in state.places:
                state.enter(tenant)
            state.places[tenant].add(place)

    def left(self, tier: int, tenant: str, place: Place = "engine") -> None:
        """The tenant has no more work at `place`. Without work at any place, it is idle."""
        with self._lock:
            state = self._tiers.get(tier)
            if state is None or tenant not in state.places:
                return
            state.places[tenant].discard(place)
            if not state.places[tenant]:
                state.leave(tenant)

    def weighted(self, *, input_tokens: int = 0, output_tokens: int = 0) -> float:
        """The amount by which computing these tokens raises a counter."""
        return input_tokens * self._input_weight + output_tokens * self._output_weight

    def charge(self, tier: int, tenant: str, *, input_tokens: int = 0, output_tokens: int = 0) -> None:
        """Charge an active tenant for tokens that were computed for the first time."""
        self.charge_all([(tier, tenant, self.weighted(input_tokens=input_tokens, output_tokens=output_tokens))])

    def charge_all(self, amounts: Iterable[tuple[int, str, float]]) -> None:
        """Charge a whole step: (tier, tenant, amount) for each."""
        of_tiers = defaultdict[int, float](float)
        with self._lock:
            for tier, tenant, amount in amounts:
                self._tiers[tier].charge(tenant, amount)
                of_tiers[tier] += amount
            for tier, amount in of_tiers.items():
                self._balance(tier, amount)

    def level(self, tier: int, tenant: str) -> float:
        """The tenant's counter; the least is served first. For an idle tenant, the counter that it would start with
        now.
        """
        with self._lock:
            state = self._tiers.get(tier)
            return 0.0 if state is None else state.level(tenant)

    def tiers(self, waiting: Iterable[int]) -> list[int]:
        """The waiting tiers in the order of their turns."""
        with self._lock:
            first = self._most_urgent()
            return sorted(waiting, key=lambda tier: (not self._owed(tier, first), tier))

    def owed(self, tier: int) -> bool:
        """Whether the tier is due its floor share, so that its next turn comes before that of a more urgent tier."""
        with self._lock:
            return self._owed(tier, self._most_urgent())

    def _most_urgent(self) -> int | None:
        return min((tier for tier, state in self._tiers.items() if state.places), default=None)

    def _owed(self, tier: int, most_urgent: int | None) -> bool:
        state = self._tiers.get(tier)
        return state is not None and most_urgent is not None and tier > most_urgent and state.credit >= OWED_TOKENS

    def _balance(self, served: int, amount: float) -> None:
        """Credit each tier that a more urgent one keeps waiting with its share, and debit what it was served."""
        first = self._most_urgent()
        for tier, state in self._tiers.items():
            if first is None or tier <= first:
                continue
            credit = state.credit + self._floor_share * amount - (amount if tier == served else 0.0)
            most = CREDIT_TOKENS_MAX if state.places else 0.0
            state.credit = min(max(credit, -DEBT_TOKENS_MAX), most)
