"""Rows of `quotas`: what the schema takes, and what a key makes of them."""

import asyncpg
import pytest

from gateway import keys
from gateway.admission.limiter import Limit
from gateway.auth import quotas
from gateway.db import catalogue, engine, queries
from gateway.db.catalogue import Limits

INSERT = "INSERT INTO quotas (tenant_id, model_id, metric, allowed, mode) SELECT id, $1, $2, $3, $4 FROM tenants"


async def test_what_the_schema_takes_is_what_holds_for_the_key(database_url: str) -> None:
    database = engine.create(database_url)
    sql = await asyncpg.connect(database_url)
    try:
        await catalogue.create_tenant(database, "acme", plan="standard", limits=Limits(tpm=5))
        model = await queries.register_model(database, "m", context_length=10, vocab_size=5, card="a" * 64)
        _, record = keys.generate("test")
        await catalogue.create_key(database, "acme", record, scopes=frozenset({"inference"}))
        for metric, allowed, mode in (
            ("concurrency", 3, "shadow"),
            ("month_cost", 10**15, "enforce"),
            ("day_tokens", 0, "enforce"),
            ("max_output", None, "enforce"),
        ):
            await sql.execute(INSERT, model, metric, allowed, mode)
        for metric, allowed, mode in (
            ("tpm", 10**10 + 1, "enforce"),
            ("month_cost", 10**15 + 1, "enforce"),
            ("concurrency", -1, "enforce"),
            ("concurrency", 4, "enforce"),  # there is one already
            ("rps", 1, "enforce"),
            ("rpm", 1, "perhaps"),
        ):
            with pytest.raises(asyncpg.IntegrityConstraintViolationError):
                await sql.execute(INSERT, model, metric, allowed, mode)
        stored = await queries.find_key(database, record.public_id)
        assert stored is not None
        tenant = stored.tenant_id
        assert sorted(quotas.limits(stored), key=lambda limit: limit.metric) == [
            Limit(metric="concurrency", tenant_id=tenant, model_id=model, allowed=3, enforced=False),
            Limit(metric="day_tokens", tenant_id=tenant, model_id=model, allowed=0),
            Limit(metric="month_cost", tenant_id=tenant, model_id=model, allowed=10**15),
            Limit(metric="tokens", tenant_id=tenant, allowed=5),
        ]
        await sql.execute("DELETE FROM models")
        assert await sql.fetchval("SELECT count(*) FROM quotas") == 1
    finally:
        await sql.close()
        await database.dispose()
