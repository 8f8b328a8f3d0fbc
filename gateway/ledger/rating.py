"""Which price applies to an event: that of its own time, for the plan that its tenant had then.

Looks it up in the transaction that books the event; the price is stored with the row and never looked up again. So a
later change of prices or plans changes no bill, and a late event is billed as if it had been on time.
"""

import uuid
from typing import Final

from asyncpg.pool import PoolConnectionProxy

from gateway.db.arrays import literal
from gateway.ledger import pricing
from gateway.ledger.pricing import Price
from gateway.ledger.rows import Row

_PRICES: Final = "SELECT * FROM prices_at($1::text::uuid[], $2::text::uuid[], $3::text::timestamptz[])"

Rating = tuple[uuid.UUID | None, int | None]
"""The price's id and the cost in micro-units; both None where no price applies, which is not a cost of 0."""

UNPRICED: Final[Rating] = (None, None)


async def rate(connection: PoolConnectionProxy, batch: list[Row], *, timeout_s: float) -> list[Rating]:
    """One rating per row, in the same order."""
    columns = (
        literal([row.model_id for row in batch]),
        literal([row.tenant_id for row in batch]),
        literal([row.occurred_at for row in batch]),
    )
    ratings: list[Rating] = [UNPRICED] * len(batch)
    for found in await connection.fetch(_PRICES, *columns, timeout=timeout_s):
        row = batch[found["place"] - 1]
        price = Price(**{name: found[name] for name in Price.__struct_fields__})
        cost = pricing.cost_micro(price, row.prompt_tokens, row.cached_tokens, row.completion_tokens)
        ratings[found["place"] - 1] = (price.id, cost)
    return ratings
