"""The retry budget of each tenant: how much it may add to a failing fleet's work by repeating failed requests.

Pure. A tenant whose requests have recently failed at workers may retry a tenth of the number of its first tries, and a
few more. Clients themselves declare which requests are retries: a client that hides it gains a few attempts, which its
rate limits still bound, and a false declaration only harms the client itself. A retry after a refusal costs no worker
anything and is not counted. Invariant: within one period of failures, admitted retries never exceed `RESERVE` + `SHARE`
x first tries.
"""

from dataclasses import dataclass
from typing import Final

SHARE: Final = 0.1  # retries, as a share of first tries
RESERVE: Final = 3.0  # retries that a tenant has at once when its requests begin to fail
CREDIT_MAX: Final = 10.0
SPELL_S: Final = 30.0  # so long after the last failure, a tenant's budget is forgotten
TENANTS_MAX: Final = 10_000


@dataclass(slots=True)
class _Spell:
    failed_at: float
    credit: float = RESERVE


class RetryBudget:
    def __init__(self) -> None:
        self._spells: dict[str, _Spell] = {}

    def failed(self, tenant: str, now: float) -> None:
        """A request of this tenant failed at a worker."""
        spell = self._spell(tenant, now) or _Spell(now)
        spell.failed_at = now
        self._spells.pop(tenant, None)
        self._spells[tenant] = spell  # moved to the end: forgotten last
        if len(self._spells) > TENANTS_MAX:
            del self._spells[next(iter(self._spells))]

    def allows(self, tenant: str, now: float) -> bool:
        """Whether one more retry may pass."""
        spell = self._spell(tenant, now)
        return spell is None or spell.credit >= 1

    def passes(self, tenant: str, now: float, *, retry: bool) -> bool:
        """Whether this request may pass; it is counted if so."""
        spell = self._spell(tenant, now)
        if spell is None:
            return True
        if not retry:
            spell.credit = min(spell.credit + SHARE, CREDIT_MAX)
            return True
        if spell.credit < 1:
            return False
        spell.credit -= 1
        return True

    def _spell(self, tenant: str, now: float) -> _Spell | None:
        spell = self._spells.get(tenant)
        if spell is not None and now - spell.failed_at > SPELL_S:
            del self._spells[tenant]
            return None
        return spell
