"""`forebay quota`: set, list and delete, one by one."""

import uuid
from typing import Annotated

import cyclopts

from cli import database, limits, table
from cli.errors import CommandError
from cli.limits import UNLIMITED, Value
from cli.whole_numbers import whole
from gateway.admission.bucket import LIMIT_MAX
from gateway.db import catalogue
from gateway.db.catalogue import Mode, Scope
from gateway.db.tables import QUOTA_METRICS

app = cyclopts.App(name="quota", help="Set, list and delete quotas of plans, tenants and keys.")

Allowed = Annotated[Value, cyclopts.Parameter(converter=limits.value)]


@app.command(name="set")
def set_quota(
    metric: str,
    allowed: Allowed,
    /,
    *,
    plan: str | None = None,
    tenant: str | None = None,
    key: str | None = None,
    model: str | None = None,
    burst: Annotated[int | None, whole(1, LIMIT_MAX)] = None,
    mode: Mode = "enforce",
) -> None:
    """Set a quota, new or in place of the one of that scope, model and metric. Every gateway obeys within a second.

    Parameters
    ----------
    metric
        rpm, tpm, max_context, max_output, concurrency, queued_requests, queued_tokens, day_tokens or month_cost.
    allowed
        A whole number, 0 for none, or `unlimited`.
    plan
        The plan's name: for each of its tenants that has no quota of its own of that metric.
    tenant
        The tenant's name: in place of its plan's.
    key
        The key's public id: besides its tenant's.
    model
        The model's name: besides the quota of all models together, which it is when left out.
    burst
        How much may pass at once; one minute's worth when left out.
    mode
        In shadow it is counted when it would have refused, and never refuses.
    """
    if metric not in QUOTA_METRICS:
        raise CommandError(f"a metric is one of {', '.join(QUOTA_METRICS)}, not {metric}")
    row = database.run(
        lambda engine: catalogue.set_quota(
            engine,
            Scope(plan=plan, tenant=tenant, key=key, model=model),
            metric,
            allowed=allowed if isinstance(allowed, int) else None,
            burst=burst,
            mode=mode,
            by=database.author(),
        )
    )
    print(f"quota {row.id} set: {metric} {allowed}")


@app.command(name="list")
def list_quotas(
    *,
    plan: str | None = None,
    tenant: str | None = None,
    key: str | None = None,
    model: str | None = None,
    json: bool = False,
) -> None:
    """List quotas, all or those of one scope.

    Parameters
    ----------
    plan
        The plan's name.
    tenant
        The tenant's name.
    key
        The key's public id.
    model
        The model's name.
    json
        One JSON object a line.
    """
    scope = Scope(plan=plan, tenant=tenant, key=key, model=model)
    table.show_rows(
        database.run(lambda engine: catalogue.list_quotas(engine, scope)),
        ("plan", "tenant", "key", "model", "metric", "allowed", "burst", "mode", "id"),
        lambda row: (
            row.plan or "",
            row.tenant or "",
            row.key or "",
            row.model or "",
            row.metric,
            UNLIMITED if row.allowed is None else f"{row.allowed:,}",
            "" if row.burst is None else f"{row.burst:,}",
            row.mode,
            str(row.id),
        ),
        json=json,
    )


@app.command
def delete(quota_id: uuid.UUID, /) -> None:
    """Delete a quota by its id; a tenant then has its plan's."""
    database.run(lambda engine: catalogue.delete_quota(engine, quota_id, by=database.author()))
    print(f"quota {quota_id} deleted")
