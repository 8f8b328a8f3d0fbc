"""The most that a request can cost, by the prices that this gateway last read, for reservations against budgets.

Owns a cache of prices, which it reads again after a change; while Postgres is away, it uses the last ones. Does not
poll for changes itself, and bills nothing: an event's cost is decided by the ledger.
"""

import asyncio
import uuid
from collections import defaultdict
from types import TracebackType
from typing import Final, Self

from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.db import pools
from gateway.db.changes import ALL, Changed
from gateway.db.tables import prices
from gateway.ledger import pricing
from gateway.ledger.pricing import Price
from shared import log, tasks
from shared.clock import Clock, SystemClock

READ_TIMEOUT_S: Final = 2.0
RETRY_S: Final = 0.5

_FAULTS: Final = (SQLAlchemyError, *pools.AWAY)

Periods = list[tuple[float, float, Price]]
"""From and to (exclusive), in Unix seconds."""


class PriceBook:
    """Use with `async with`: inside, prices are read again whenever they may have changed."""

    def __init__(self, engine: AsyncEngine, *, clock: Clock | None = None) -> None:
        self._engine = engine
        self._clock = clock or SystemClock()
        self._prices: dict[tuple[uuid.UUID, uuid.UUID | None], Periods] = {}
        self._stale = asyncio.Event()
        self._stale.set()
        self._log = log.get("prices")
        self._reader: asyncio.Task[None] | None = None

    def ceiling_micro(
        self, model_id: uuid.UUID, plan_id: uuid.UUID | None, prompt_tokens: int, output_tokens: int
    ) -> int:
        """The cost of so many tokens now, none of them cached; 0 when no price applies. An event with fewer tokens, or
        with cached ones, never costs more.
        """
        price = self._now(model_id, plan_id) or self._now(model_id, None)
        return 0 if price is None else pricing.cost_micro(price, prompt_tokens, 0, output_tokens)

    def changed(self, changed: Changed) -> None:
        """These tenants' rows have changed. Prices belong to no tenant, so a change of prices is reported for all of
        them.
        """
        if changed == ALL:
            self._stale.set()

    async def read(self) -> None:
        """Read prices if they may have changed. Raises what the database raises."""
        if self._stale.is_set():
            self._stale.clear()  # before reading: a change during the read is read next time
            try:
                await self._read()
            except BaseException:
                self._stale.set()
                raise

    async def __aenter__(self) -> Self:
        self._reader = asyncio.create_task(tasks.keep(self._keep_true, "prices"))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._reader is not None
        await tasks.stop([self._reader])

    def _now(self, model_id: uuid.UUID, plan_id: uuid.UUID | None) -> Price | None:
        periods = self._prices.get((model_id, plan_id))
        if periods is None:  # as for most plans
            return None
        now_s = self._clock.wall()
        return next((price for since_s, until_s, price in periods if since_s <= now_s < until_s), None)

    async def _read(self) -> None:
        async with self._engine.connect() as connection:
            rows = (await connection.execute(select(prices))).all()
        read: defaultdict[tuple[uuid.UUID, uuid.UUID | None], Periods] = defaultdict(list)
        for row in rows:
            price = Price(**{name: getattr(row, name) for name in Price.__struct_fields__})
            until_s = float("inf") if row.valid_to is None else row.valid_to.timestamp()
            read[row.model_id, row.plan_id].append((row.valid_from.timestamp(), until_s, price))
        self._prices = dict(read)

    async def _keep_true(self) -> None:
        while True:
            await self._stale.wait()
            try:
                async with asyncio.timeout(READ_TIMEOUT_S):
                    await self.read()
            except _FAULTS as error:
                self._log.debug("prices.postgres_away", error=repr(error))
                await asyncio.sleep(RETRY_S)
