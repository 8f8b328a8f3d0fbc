"""Model cards in the object store. A card is named by the digest of its encoding, so a name's content never changes.

Owns the bucket, and checks that a card that is read has the digest in its name.
"""

import asyncio
import contextlib
import hashlib
from collections.abc import Generator
from typing import Final

import msgspec
import nats.js.errors

from shared import subjects, wire
from shared.bus import Bus, BusUnavailable, translated

TRANSFER_TIMEOUT_S: Final = 10.0


class CardDamaged(Exception):
    """The stored object does not have the digest that names it, or is no model card."""


def pack(card: wire.ModelCard) -> tuple[str, bytes]:
    """The card's digest (sha256, hex) and its encoding."""
    data = wire.encode(card)
    return hashlib.sha256(data).hexdigest(), data


@contextlib.contextmanager
def _answers() -> Generator[None]:
    """Turns JetStream's refusals into BusUnavailable: whatever the reason, the card is not available now."""
    try:
        with translated():
            yield
    except nats.js.errors.APIError as error:
        raise BusUnavailable(str(error)) from error


async def ensure_bucket(bus: Bus) -> None:
    with _answers():
        jetstream = bus.jetstream()
        try:
            await jetstream.object_store(subjects.CARD_BUCKET)
        except nats.js.errors.BucketNotFoundError:
            await jetstream.create_object_store(subjects.CARD_BUCKET, subjects.card_bucket())


async def put(bus: Bus, digest: str, data: bytes) -> None:
    """Store the card unless it is stored already."""
    with _answers():
        store = await bus.jetstream(TRANSFER_TIMEOUT_S).object_store(subjects.CARD_BUCKET)
        try:
            await store.get_info(digest)
        except nats.js.errors.ObjectNotFoundError:
            await store.put(digest, data)


async def get(bus: Bus, digest: str) -> wire.ModelCard | None:
    """The card, or None if nobody has stored it yet. Raises CardDamaged, BusUnavailable."""
    with _answers():
        jetstream = bus.jetstream(TRANSFER_TIMEOUT_S)
        try:
            store = await jetstream.object_store(subjects.CARD_BUCKET)
            async with asyncio.timeout(TRANSFER_TIMEOUT_S):
                result = await store.get(digest)
        except (nats.js.errors.BucketNotFoundError, nats.js.errors.ObjectNotFoundError):
            return None
        except nats.js.errors.DigestMismatchError as error:
            raise CardDamaged(digest) from error
    data = bytes(result.data or b"")
    if hashlib.sha256(data).hexdigest() != digest:
        raise CardDamaged(digest)
    try:
        return wire.decode(data, wire.ModelCard)
    except msgspec.DecodeError as error:
        raise CardDamaged(digest) from error
