"""The models whose cards this gateway has read: their prompt encoders and their rows in Postgres, by card digest.

A model can be served only once it is here. It stays when its last worker goes: its name is then known,
but the model is not ready.
"""

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from dataclasses import dataclass

from gateway.admission.tokenizer import PromptEncoder
from gateway.errors import Unavailable
from shared import wire

CARDS_MAX = 256

Register = Callable[[wire.ModelCard, str], Awaitable[str]]
"""(card, digest) to the id of the model's row. Raises Unavailable."""


@dataclass(slots=True, frozen=True)
class ServedModel:
    id: str  # of the row in `models`
    digest: str
    card: wire.ModelCard
    encoder: PromptEncoder
    created_s: int  # Unix seconds at which this gateway first saw it


class ServedModels:
    def __init__(self, register: Register, executor: Executor) -> None:
        self._register = register
        self._executor = executor
        self._by_digest: dict[str, ServedModel] = {}

    async def add(self, digest: str, card: wire.ModelCard) -> None:
        """Build the encoder of `card` and register the model in Postgres. Idempotent. Raises Unavailable."""
        if digest in self._by_digest:
            return
        loop = asyncio.get_running_loop()
        try:
            encoder = await loop.run_in_executor(self._executor, PromptEncoder, card, self._executor)
        except Exception as error:  # `tokenizers` raises bare Exceptions
            raise Unavailable(f"The card of {card.name} cannot be used: {error}") from error
        row = await self._register(card, digest)
        while len(self._by_digest) >= CARDS_MAX:
            del self._by_digest[next(iter(self._by_digest))]
        self._by_digest[digest] = ServedModel(row, digest, card, encoder, int(time.time()))

    def get(self, digest: str) -> ServedModel | None:
        return self._by_digest.get(digest)

    def knows(self, name: str) -> bool:
        return any(model.card.name == name for model in self._by_digest.values())

    def hides(self, usable: frozenset[uuid.UUID] | None, name: str) -> bool:
        """Whether `name` is a known model of which no row is in `usable` (None: every row is usable)."""
        if usable is None:
            return False
        rows = [uuid.UUID(model.id) for model in self._by_digest.values() if model.card.name == name]
        return bool(rows) and usable.isdisjoint(rows)
