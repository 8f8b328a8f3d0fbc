"""Reports over the lines of bills: usage events and adjustments."""

from datetime import datetime

import msgspec
from sqlalchemy import Text, cast, column, func, select, table

from gateway.db.catalogue.tenants import find_tenant
from gateway.db.catalogue.transaction import Database, connected
from gateway.db.tables import models, tenants

_COUNTS = ("prompt_tokens", "cached_tokens", "completion_tokens", "cost_micro")
_lines = table("usage_lines", *map(column, ("occurred_at", "final", "tenant_id", "model_id", *_COUNTS)))


class UsageRow(msgspec.Struct, frozen=True, kw_only=True):
    """What a tenant used of a model. `requests` counts bills marked final, tokens those of every attempt. The cost is
    in micro-units, with adjustments and without `unpriced` bills.
    """

    tenant: str
    model: str
    requests: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    cost_micro: int
    unpriced: int


async def totals(
    database: Database,
    *,
    tenant: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    rows_max: int | None = None,
) -> list[UsageRow]:
    """The usage of requests made in [since, until), by tenant and model, ordered by their names. A tenant or model
    without a row appears by its id. Raises NotFound (tenant).
    """
    statement = (
        select(
            func.coalesce(tenants.c.name, cast(_lines.c.tenant_id, Text)).label("tenant"),
            func.coalesce(models.c.alias, cast(_lines.c.model_id, Text)).label("model"),
            func.count().filter(_lines.c.final).label("requests"),
            *(func.coalesce(func.sum(_lines.c[name]), 0).label(name) for name in _COUNTS),
            func.count().filter(_lines.c.cost_micro.is_(None)).label("unpriced"),
        )
        .outerjoin(tenants, tenants.c.id == _lines.c.tenant_id)
        .outerjoin(models, models.c.id == _lines.c.model_id)
        .group_by("tenant", "model")
        .order_by("tenant", "model")
    )
    if since is not None:
        statement = statement.where(_lines.c.occurred_at >= since)
    if until is not None:
        statement = statement.where(_lines.c.occurred_at < until)
    if rows_max is not None:
        statement = statement.limit(rows_max)
    async with connected(database) as connection:
        if tenant is not None:
            statement = statement.where(_lines.c.tenant_id == (await find_tenant(connection, tenant)).id)
        rows = (await connection.execute(statement)).all()
    return [
        UsageRow(
            tenant=row.tenant,
            model=row.model,
            requests=row.requests,
            unpriced=row.unpriced,
            **{name: int(getattr(row, name)) for name in _COUNTS},  # Postgres sums bigint to numeric
        )
        for row in rows
    ]
