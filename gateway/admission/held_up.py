"""Tenants whose admissions Postgres does not answer, while it answers those of others: somebody holds a row of theirs.

Each of their requests would hold one of the few connections until its time is up, and every other tenant would wait
for one. So such a tenant asks once at a time until it is answered. Pure; knows no connection and no clock.
"""

import uuid


class HeldUp:
    def __init__(self) -> None:
        self._asks: dict[uuid.UUID, bool] = {}  # by tenant that is held up: whether one of its requests asks now

    def may_ask(self, tenant: uuid.UUID) -> bool:
        """Whether a request of the tenant may ask. If so, tell how it ends."""
        if self._asks.get(tenant):
            return False
        if tenant in self._asks:
            self._asks[tenant] = True
        return True

    def answered(self, tenant: uuid.UUID) -> None:
        self._asks.pop(tenant, None)

    def unanswered(self, tenant: uuid.UUID) -> None:
        self._asks[tenant] = False

    def unknown(self, tenant: uuid.UUID) -> None:
        """It left, or got no connection: that says nothing of the tenant."""
        if tenant in self._asks:
            self._asks[tenant] = False
