"""Which tenants' rows have changed since the last poll, whoever changed them and whenever they committed.

Sequence numbers and times are not in commit order, so a cursor over them skips late commits. Each poll instead reads
every row whose transaction is not older than the oldest one that was open at the previous poll, and leaves out the rows
that were already reported.
"""

import uuid
from typing import Final, Literal

from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.db import queries

ROWS_MAX: Final = 10_000  # per poll; more count as a change of every tenant
GAP_S_MAX: Final = 3_600.0  # rows are pruned after a day

ALL: Final = "all"
Changed = frozenset[uuid.UUID] | Literal["all"]


class Changes:
    """One gateway's position in the feed of changes."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._since: int | None = None
        self._reported: frozenset[int] = frozenset()
        self._looked_s = 0.0

    async def look(self, now_s: float) -> Changed:
        """Tenants with changes since the last call; `ALL` the first time, after a long gap, and when there are too
        many. A call that fails changes nothing.
        """
        since = 0 if self._since is None else self._since
        xmin, changes = await queries.changes_since(self._engine, since, rows_max=ROWS_MAX + 1)
        fresh = {tenant for change, tenant in changes.items() if change not in self._reported}
        blind = (
            self._since is None
            or now_s - self._looked_s > GAP_S_MAX
            or len(changes) > ROWS_MAX
            or xmin < self._since  # another server, perhaps a standby that lagged behind
        )
        self._since, self._reported, self._looked_s = xmin, frozenset(changes), now_s
        return ALL if blind or None in fresh else frozenset(tenant for tenant in fresh if tenant is not None)
