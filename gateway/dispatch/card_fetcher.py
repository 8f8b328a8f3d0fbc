"""Fetches the cards that workers announce and that are not here yet, so that their models can be listed.

Knows neither what a card is used for nor which worker has it. Invariant: a card is put into the fleet's view only after
`on_card` has accepted it; what fails is tried again for as long as a worker announces it.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from gateway.dispatch.fleet import FleetView
from shared import cards, log, wire
from shared.bus import Bus, BusUnavailable

RETRY_S: Final = 1.0

OnCard = Callable[[str, wire.ModelCard], Awaitable[None]]
"""Called with a new card (digest, card) before its model is listed; called again later if it raises."""


class CardFetcher:
    """`look_s` is the pause between two looks at what is missing."""

    def __init__(self, bus: Bus, fleet: FleetView, on_card: OnCard | None, *, look_s: float) -> None:
        self._bus = bus
        self._fleet = fleet
        self._on_card = on_card
        self._look_s = look_s
        self._log = log.get("dispatch")

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            for digest in self._fleet.missing():
                try:
                    await self._fetch(digest)
                except Exception as error:  # noqa: BLE001 - whatever `on_card` raises, the next try may succeed
                    self._log.warning("card.unavailable", digest=digest, error=repr(error))
                    await asyncio.sleep(RETRY_S)
            await asyncio.sleep(self._look_s)

    async def _fetch(self, digest: str) -> None:
        card = await cards.get(self._bus, digest)
        if card is None:
            raise BusUnavailable("no such card yet")
        if self._on_card is not None:
            await self._on_card(digest, card)
        self._fleet.put_card(digest, card)
        self._log.info("card.fetched", digest=digest, model=card.name)
