"""What the statements of a request read: by indexes alone, however small the tables were when they were planned."""

import datetime as dt

import asyncpg

from gateway.admission import pg_limiter
from gateway.admission.leases import LEASE_MS
from gateway.admission.limiter import BUCKETS, BUDGETS, CAPS
from gateway.admission.prepared import Prepared
from tests.demands import KEY, demand, limit

EVERY = [limit(metric, 1_000_000, key=key) for metric in (*BUCKETS, *CAPS, *BUDGETS) for key in (None, KEY)]
SCANS = (
    "SELECT relname, seq_scan FROM pg_stat_xact_user_tables"
    " WHERE relname IN ('inflight', 'limiter_state', 'budget_state') AND seq_scan > 0"
)


async def test_no_statement_of_a_request_reads_a_whole_table(sql: asyncpg.Connection) -> None:
    one = demand(*EVERY, tokens=10, cost_micro=5)
    ids = [one.request_id]
    async with sql.transaction():
        arguments = Prepared.of(one).arguments(one, "gw-a", LEASE_MS)
        [admitted] = await sql.fetch(pg_limiter._ADMIT, *arguments)
        assert admitted["refused"] is None
        assert await sql.fetchval("SELECT started($1)", ids) == 1
        await sql.execute("SELECT renew('gw-a', $1, $2)", ids, LEASE_MS)
        await sql.execute("SELECT expire_leases(10)")
        assert await sql.fetchval("SELECT settle($1, $2, $3)", ids, [7], [3]) == 1
        await sql.execute("SELECT close_reservations($1, $2)", ids, [dt.datetime.now(dt.UTC)])
        assert await sql.fetch(SCANS) == []
    assert await sql.fetchval("SELECT count(*) FROM inflight") == 0
