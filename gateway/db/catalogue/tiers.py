"""The tiers: how long their requests may wait, and how many."""

from collections.abc import Mapping

import msgspec
from msgspec import UNSET, UnsetType
from sqlalchemy import select, update

from gateway.db import audit
from gateway.db.audit import SYSTEM, Author
from gateway.db.catalogue.errors import NotFound
from gateway.db.catalogue.transaction import Database, connected, transaction
from gateway.db.queries import TierBounds
from gateway.db.tables import tiers


class TierRow(TierBounds, frozen=True, kw_only=True):
    """Tier 0 is the most urgent. Bounds are in milliseconds, requests and prompt tokens; None is no bound."""

    id: int
    name: str


async def list_tiers(database: Database) -> list[TierRow]:
    async with connected(database) as connection:
        rows = (await connection.execute(select(tiers).order_by(tiers.c.id))).mappings()
    return [TierRow(**row) for row in rows]


async def find_tier(database: Database, tier: int) -> TierRow:
    """Raises NotFound."""
    async with connected(database) as connection:
        row = (await connection.execute(select(tiers).where(tiers.c.id == tier))).mappings().one_or_none()
    if row is None:
        raise NotFound(f"there is no tier {tier}")
    return TierRow(**row)


async def update_tier(
    database: Database, tier: int, bounds: Mapping[str, int | UnsetType | None], *, by: Author = SYSTEM
) -> TierRow:
    """`bounds` by the names of `TierBounds`; unset ones stay. Raises NotFound, Refused."""
    values = {name: bounds[name] for name in TierBounds.__struct_fields__ if bounds.get(name, UNSET) is not UNSET}
    async with transaction(database, f"the tier {tier}") as connection:
        await connection.execute(select(tiers.c.id).where(tiers.c.id == tier).with_for_update())
        before = await find_tier(connection, tier)
        if not values:
            return before
        await connection.execute(update(tiers).where(tiers.c.id == tier).values(values))
        after = msgspec.structs.replace(before, **values)
        await audit.record(connection, by, "update", "tier", tier, before=before, after=after)
        return after
