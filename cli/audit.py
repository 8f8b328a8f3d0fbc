"""`forebay audit`: who changed what."""

from typing import Annotated

import cyclopts
import msgspec

from cli import database, table
from cli.whole_numbers import whole
from gateway.db import audit
from gateway.db.audit import AuditRow
from gateway.db.catalogue.transaction import connected

app = cyclopts.App(name="audit", help="Show who changed what.")


@app.command(name="list")
def list_audit(
    *,
    rows_max: Annotated[int, whole(1, 10_000)] = 50,
    object_type: str | None = None,
    object_id: str | None = None,
    actor: str | None = None,
    json: bool = False,
) -> None:
    """List changes, the newest first.

    Parameters
    ----------
    rows_max
        How many.
    object_type
        Only of tenants, plans, keys, ... (in the singular).
    object_id
        Only of this one: a key's public id, anything else's id.
    actor
        Only by this one: key:PUBLIC_ID, cli:USER or system.
    json
        One JSON object a line, with what was there before and after.
    """

    async def run(engine: database.AsyncEngine) -> list[AuditRow]:
        async with connected(engine) as connection:
            return await audit.rows(
                connection, object_type=object_type, object_id=object_id, actor=actor, rows_max=rows_max
            )

    table.show_rows(
        database.run(run),
        ("at", "actor", "from", "action", "object", "id", "after"),
        lambda row: (
            f"{row.at:%Y-%m-%d %H:%M:%S}",
            row.actor,
            row.actor_ip or "",
            row.action,
            row.object_type,
            row.object_id,
            msgspec.json.encode(row.after).decode() if row.after else "",
        ),
        json=json,
    )
