"""Every cap and budget of every scope at once: what an admission counts is what a plain sum over all requests says."""

import datetime as dt
import random
import uuid
from typing import Any

import asyncpg

from gateway.admission.claims import of as claims_of
from gateway.admission.limiter import BUDGETS, CAPS, Limit
from tests.demands import KEY, MODEL, TENANT, demand, limit
from tests.integration.test_limiter import admit

OTHER = uuid.UUID(int=99)
OWNERS = [(TENANT, KEY), (TENANT, OTHER), (OTHER, uuid.UUID(int=98))]  # (tenant, key)
ROWS = 300
INSERT = (
    "INSERT INTO inflight (request_id, tenant_id, api_key_id, model_id, state, tokens, cost_micro, admitted_at,"
    " expires_at, gateway, keys, bursts) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, 'gw', '{}', '{}')"
)


def row(chance: random.Random, now: dt.datetime) -> dict[str, Any]:
    tenant, key = chance.choice(OWNERS)
    return {
        "id": uuid.UUID(int=chance.getrandbits(128)),
        "tenant": tenant,
        "key": key,
        "model": chance.choice([MODEL, OTHER, None]),
        "state": chance.choice(["queued", "running", "settled"]),
        "tokens": chance.randrange(1_000),
        "cost_micro": chance.randrange(1_000),
        "admitted_at": now - dt.timedelta(days=chance.choice([0, 2, 40])),
        "expires_at": now + dt.timedelta(hours=chance.choice([-1, 1])),
    }


def counted(one: Limit, rows: list[dict[str, Any]], now: dt.datetime) -> int:
    day, month = (now.date(), now.date().replace(day=1))
    held = 0
    for each in rows:
        since = each["admitted_at"].date()
        if (
            each["tenant"] != TENANT
            or (one.key_id is not None and each["key"] != one.key_id)
            or (one.model_id is not None and each["model"] != one.model_id)
        ):
            continue
        if one.metric == "day_tokens":
            held += each["tokens"] if since >= day else 0
        elif one.metric == "month_cost":
            held += each["cost_micro"] if since >= month else 0
        elif each["state"] != "settled" and each["expires_at"] > now:
            waits = each["state"] == "queued"
            held += {"concurrency": 1, "queued_requests": waits, "queued_tokens": waits * each["tokens"]}[one.metric]
    return held


async def test_every_scope_is_counted_as_a_plain_sum_says(sql: asyncpg.Connection) -> None:
    chance, now = random.Random(12), dt.datetime.now(dt.UTC)
    rows = [row(chance, now) for _ in range(ROWS)]
    await sql.executemany(INSERT, [tuple(each.values()) for each in rows])
    every = [
        limit(metric, 10**9, key=key, model=model)
        for metric in (*CAPS, *BUDGETS)
        for key in (None, KEY)
        for model in (None, MODEL)
    ]
    spent = {one.scope: chance.randrange(10**6) for one in every}
    for scope, amount in spent.items():
        for metric, start in (("day_tokens", "day"), ("month_cost", "month")):
            await sql.execute(
                f"INSERT INTO budget_state VALUES ($1, $2, date_trunc('{start}', now(), 'UTC'), $3)",
                scope,
                metric,
                amount,
            )
    for limits in (every, [one for one in every if one.metric in CAPS], [one for one in every if one.key_id]):
        asked = demand(*chance.sample(limits, len(limits)), tokens=0)
        async with sql.transaction():
            found = await admit(sql, asked)
            wanted = claims_of(asked).caps
            assert found["held"] == [
                counted(cap.limit, rows, now)
                + cap.amount
                + (spent[cap.limit.scope] if cap.limit.metric in BUDGETS else 0)
                for cap in wanted
            ]
            await sql.execute("DELETE FROM inflight WHERE request_id = $1", asked.request_id)
