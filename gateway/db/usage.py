"""Reports over `usage_events`."""

from datetime import datetime

import msgspec
from sqlalchemy import Text, cast, func, select
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.db.tables import models, tenants, usage_events


class UsageRow(msgspec.Struct, frozen=True, kw_only=True):
    """What a tenant used of a model. `requests` counts bills marked final, tokens those of every attempt."""

    tenant: str
    model: str
    requests: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


async def totals(engine: AsyncEngine, *, tenant: str | None = None, since: datetime | None = None) -> list[UsageRow]:
    """By tenant and model, in the order of their names. A tenant or model without a row goes by its id."""
    asked = (
        select(
            func.coalesce(tenants.c.name, cast(usage_events.c.tenant_id, Text)).label("tenant"),
            func.coalesce(models.c.alias, cast(usage_events.c.model_id, Text)).label("model"),
            func.count().filter(usage_events.c.final).label("requests"),
            func.sum(usage_events.c.prompt_tokens).label("prompt_tokens"),
            func.sum(usage_events.c.cached_tokens).label("cached_tokens"),
            func.sum(usage_events.c.completion_tokens).label("completion_tokens"),
        )
        .outerjoin(tenants, tenants.c.id == usage_events.c.tenant_id)
        .outerjoin(models, models.c.id == usage_events.c.model_id)
        .group_by("tenant", "model")
        .order_by("tenant", "model")
    )
    if tenant is not None:
        asked = asked.where(tenants.c.name == tenant)
    if since is not None:
        asked = asked.where(usage_events.c.occurred_at >= since)
    async with engine.connect() as connection:
        rows = (await connection.execute(asked)).all()
    return [
        UsageRow(
            tenant=row.tenant,
            model=row.model,
            requests=row.requests,
            prompt_tokens=int(row.prompt_tokens),  # Postgres sums bigint to numeric
            cached_tokens=int(row.cached_tokens),
            completion_tokens=int(row.completion_tokens),
        )
        for row in rows
    ]
