"""`forebay usage`: what was used, from the table that bills are made of."""

import asyncio
from datetime import UTC, datetime

import cyclopts
import msgspec

from cli import database, table
from gateway.db import usage
from gateway.db.usage import UsageRow

app = cyclopts.App(name="usage", help="Show what was used.")


@app.command
def show(*, tenant: str | None = None, since: datetime | None = None, json: bool = False) -> None:
    """Requests and tokens by tenant and model.

    Parameters
    ----------
    tenant
        Only this tenant's.
    since
        Only requests made at or after this time (ISO 8601, UTC unless it says otherwise).
    json
        One JSON object a line.
    """
    if since is not None and since.tzinfo is None:
        since = since.replace(tzinfo=UTC)

    async def run() -> list[UsageRow]:
        async with database.connected() as engine:
            return await usage.totals(engine, tenant=tenant, since=since)

    rows = asyncio.run(run())
    if json:
        for row in rows:
            print(msgspec.json.encode(row).decode())
        return
    shown_rows = table.of("tenant", "model", "requests", "prompt tokens", "cached", "output tokens")
    for row in rows:
        counts = (row.requests, row.prompt_tokens, row.cached_tokens, row.completion_tokens)
        shown_rows.add_row(row.tenant, row.model, *(f"{count:,}" for count in counts))
    table.show(shown_rows)
