"""Stored answers of calls with an Idempotency-Key, so that a repeat is answered without being carried out again.

A call claims its key for as long as its transaction lasts, and its answer is a row of the same transaction. So whoever
has the claim and finds no row knows that nothing was done, even after a crash, and no claim outlives its call.
"""

import uuid
from dataclasses import dataclass
from typing import Final

from sqlalchemy import delete, func, select, text, tuple_
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.db.tables import idempotent_answers as answers

KEY_LENGTH_MAX: Final = 255
KEPT_H: Final = 24
FORGOTTEN_MAX: Final = 1_000  # expired answers that one call deletes
_KEPT_SINCE: Final = func.now() - text(f"interval '{KEPT_H} hours'")


@dataclass(slots=True, frozen=True)
class Owner:
    """An Idempotency-Key, and the tenant that uses it: all keys of the tenant share its Idempotency-Keys."""

    tenant_id: uuid.UUID
    key: str


@dataclass(slots=True, frozen=True)
class Stored:
    fingerprint: bytes
    status: int
    body: bytes


async def claim(connection: AsyncConnection, owner: Owner) -> bool:
    """Claim the key until the transaction ends. False while another transaction has it."""
    name = func.hashtextextended(f"{owner.tenant_id}:{owner.key}", 0)
    return bool((await connection.execute(select(func.pg_try_advisory_xact_lock(name)))).scalar_one())


async def find(connection: AsyncConnection, owner: Owner) -> Stored | None:
    """The answer that was stored under the key in the last KEPT_H hours."""
    statement = select(answers).where(
        answers.c.tenant_id == owner.tenant_id, answers.c.key == owner.key, answers.c.created_at >= _KEPT_SINCE
    )
    row = (await connection.execute(statement)).one_or_none()
    return None if row is None else Stored(row.fingerprint, row.status, row.body)


async def keep(connection: AsyncConnection, owner: Owner, *, fingerprint: bytes, status: int, body: bytes) -> None:
    """Store an answer, replacing one that has expired. Also deletes some expired answers of any owner."""
    old = select(answers.c.tenant_id, answers.c.key).where(answers.c.created_at < _KEPT_SINCE)
    old = old.limit(FORGOTTEN_MAX).with_for_update(skip_locked=True)  # other calls that delete do not wait for this one
    await connection.execute(delete(answers).where(tuple_(answers.c.tenant_id, answers.c.key).in_(old)))
    row = {
        "tenant_id": owner.tenant_id,
        "key": owner.key,
        "fingerprint": fingerprint,
        "status": status,
        "body": body,
        "created_at": func.now(),
    }
    await connection.execute(
        insert(answers).values(row).on_conflict_do_update(constraint="idempotent_answers_pk", set_=row)
    )
