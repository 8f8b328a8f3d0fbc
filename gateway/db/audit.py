"""The audit log: who changed what, and from where. A row is written in the transaction of its change, so neither exists
without the other.

Knows nothing of what was changed. Invariant: anything that looks like a key is cut to its public id, in any field.
"""

import uuid
from datetime import datetime
from typing import Any

import msgspec
from sqlalchemy import Text, cast, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway import keys
from gateway.db.tables import audit_log


class Author(msgspec.Struct, frozen=True, kw_only=True):
    """Who makes a change, and by which request from which address."""

    actor: str  # key:<public id>, cli:<user>, system
    ip: str | None = None
    request_id: uuid.UUID | None = None


SYSTEM = Author(actor="system")  # the program itself, for example when it creates the demo tenants


class AuditRow(msgspec.Struct, frozen=True, kw_only=True):
    """One change. `before` is null for a creation, `after` for a deletion."""

    id: int
    at: datetime
    actor: str
    actor_ip: str | None
    action: str
    object_type: str
    object_id: str
    before: Any
    after: Any
    request_id: uuid.UUID | None


async def record(
    connection: AsyncConnection,
    by: Author,
    action: str,
    object_type: str,
    object_id: object,
    *,
    before: msgspec.Struct | None = None,
    after: msgspec.Struct | None = None,
) -> None:
    """Add a row. `before` and `after` are the object's readable fields, which never include a secret."""
    row = {
        "actor": by.actor,
        "actor_ip": by.ip,
        "action": action,
        "object_type": object_type,
        "object_id": str(object_id),
        "before": _plain(before),
        "after": _plain(after),
        "request_id": by.request_id,
    }
    await connection.execute(
        insert(audit_log).values({name: value for name, value in row.items() if value is not None})
    )


async def rows(
    connection: AsyncConnection,
    *,
    object_type: str | None = None,
    object_id: str | None = None,
    actor: str | None = None,
    before: int | None = None,
    rows_max: int,
) -> list[AuditRow]:
    """The newest first, from those whose id is below `before`."""
    columns = [column for column in audit_log.c if column.name != "actor_ip"]
    statement = select(*columns, cast(audit_log.c.actor_ip, Text).label("actor_ip")).order_by(audit_log.c.id.desc())
    for column, wanted in (
        (audit_log.c.object_type, object_type),
        (audit_log.c.object_id, object_id),
        (audit_log.c.actor, actor),
    ):
        if wanted is not None:
            statement = statement.where(column == wanted)
    if before is not None:
        statement = statement.where(audit_log.c.id < before)
    rows = (await connection.execute(statement.limit(rows_max))).mappings()
    return [AuditRow(**{**row, "actor_ip": row["actor_ip"] and row["actor_ip"].partition("/")[0]}) for row in rows]


def _plain(value: msgspec.Struct | None) -> Any:
    return None if value is None else msgspec.json.decode(keys.redact(msgspec.json.encode(value).decode()))
