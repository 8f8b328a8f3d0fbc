"""Limits by metric, as an operator states them. Zero, null and leaving a metric out mean three different things."""

import uuid
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, UnsetType
from sqlalchemy import ColumnElement, ScalarSelect, func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.db.tables import quotas
from shared.ids import uuid7

ALLOWED_MAX = 1_000_000_000_000_000  # of a budget; the schema has a lower maximum for the other metrics

Allowed = Annotated[int, msgspec.Meta(ge=0, le=ALLOWED_MAX)]
Limit = Allowed | None | UnsetType

UNIQUE = "quotas_scope_metric_unique"


class Limits(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """By metric. Left out: no limit of its own here (a tenant then has its plan's). Null: unlimited. 0: nothing is
    allowed.
    """

    rpm: Limit = UNSET
    tpm: Limit = UNSET
    max_context: Limit = UNSET
    max_output: Limit = UNSET
    concurrency: Limit = UNSET
    queued_requests: Limit = UNSET
    queued_tokens: Limit = UNSET
    day_tokens: Limit = UNSET
    month_cost: Limit = UNSET

    def stated(self) -> dict[str, int | None]:
        return {name: value for name, value in msgspec.structs.asdict(self).items() if value is not UNSET}


NO_LIMITS = Limits()


def limits_of(scope: "ColumnElement[Any]", owner: "ColumnElement[Any]") -> "ScalarSelect[Any]":
    """A column for a select from `owner`'s table: its own quotas that apply to all models, by metric."""
    mine = (scope == owner) & quotas.c.model_id.is_(None)
    own = select(func.jsonb_object_agg(quotas.c.metric, quotas.c.allowed)).where(mine)
    return own.correlate_except(quotas).scalar_subquery()


def read(column: dict[str, int | None] | None) -> Limits:
    return msgspec.convert(column or {}, Limits)


async def write(connection: AsyncConnection, scope: str, scope_id: uuid.UUID, limits: Limits) -> None:
    """Set the stated limits. Limits that are not stated stay, and so do the burst and the mode of those that are."""
    rows = [
        {"id": uuid7(), scope: scope_id, "metric": metric, "allowed": allowed}
        for metric, allowed in limits.stated().items()
    ]
    if rows:
        new = insert(quotas)
        await connection.execute(
            new.on_conflict_do_update(constraint=UNIQUE, set_={"allowed": new.excluded.allowed}), rows
        )
