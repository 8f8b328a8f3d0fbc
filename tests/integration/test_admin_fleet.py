"""The fleet and the tiers' bounds, as administrators see and change them."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from sqlalchemy.exc import ProgrammingError

from cli import fleet as command
from cli.errors import CommandError
from gateway.db import catalogue, engine
from gateway.dispatch.report import FleetReport, QueueRow, WorkerRow
from tests.integration.test_admin import call
from tests.scripted_gateway import ADMIN_KEY, KEY, ScriptedGateway, scripted_gateway

REPORT = FleetReport(
    workers=(
        WorkerRow(
            worker="wk-1",
            pool="default",
            model="tiny",
            state="ready",
            running=3,
            waiting=1,
            places=8,
            kv_free=0.5,
            step_ms=12.5,
            prompt_tokens_per_s=350.0,
        ),
        WorkerRow(worker="wk-2", pool="default", model="tiny", state="silent", running=0, waiting=0, kv_free=1.0),
    ),
    queues=(QueueRow(pool="default", tier=2, requests=5, sequences=7, prompt_tokens=4_500, tenants=2),),
    pools_failing=("other",),
)


@pytest.fixture
async def gateway(database_url: str) -> AsyncIterator[ScriptedGateway]:
    async with scripted_gateway(database_url=database_url) as running:
        running.dispatcher.fleet_report = REPORT
        yield running


async def test_the_fleet_is_for_administrators(gateway: ScriptedGateway) -> None:
    answer = await call(gateway, "GET", "/fleet")
    assert answer.status == 200
    assert [worker["state"] for worker in answer.json["workers"]] == ["ready", "silent"]
    assert answer.json["queues"][0]["prompt_tokens"] == 4_500
    assert answer.json["pools_failing"] == ["other"]
    refused = await call(gateway, "GET", "/fleet", headers={"authorization": f"Bearer {KEY}"})
    assert (refused.status, refused.error["code"]) == (403, "insufficient_permissions")


async def test_the_command_line_shows_it(gateway: ScriptedGateway, capsys: pytest.CaptureFixture[str]) -> None:
    await asyncio.to_thread(command.fleet, base_url=gateway.base + "/v1", key=ADMIN_KEY)
    shown = capsys.readouterr().out
    for text in (
        "wk-1",
        "3 of 8 running, 1 waiting, 50% of KV free",
        "12.5 ms a step",
        "silent",
        "4,500",
    ):
        assert text in shown
    assert "the pool other fails" in shown
    await asyncio.to_thread(command.fleet, base_url=gateway.base + "/v1", key=ADMIN_KEY, json=True)
    assert '"pools_failing":["other"]' in capsys.readouterr().out
    with pytest.raises(CommandError, match=r"[Aa]dmin"):
        await asyncio.to_thread(command.fleet, base_url=gateway.base + "/v1", key=KEY)


async def test_a_tiers_bounds_are_changed_and_written_down(gateway: ScriptedGateway) -> None:
    before = (await call(gateway, "GET", "/tiers")).json["data"][1]
    assert (before["id"], before["wait_ms_max"], before["queued_requests_max"]) == (1, 60_000, None)
    change = {"wait_ms_max": 5_000, "first_token_ms_max": None, "queued_requests_max": 0}
    changed = await call(gateway, "PATCH", "/tiers/1", change)
    assert changed.status == 200
    assert changed.json == {**before, **change}
    assert (await call(gateway, "GET", "/tiers")).json["data"][1] == changed.json
    [row] = (await call(gateway, "GET", "/audit")).json["data"]
    assert (row["object_type"], row["object_id"], row["before"], row["after"]) == ("tier", "1", before, changed.json)
    assert (await call(gateway, "PATCH", "/tiers/1", {})).json == changed.json
    assert len((await call(gateway, "GET", "/audit")).json["data"]) == 1


@pytest.mark.parametrize(
    ("path", "change", "status"),
    [
        ("/tiers/1", {"wait_ms_max": None}, 400),
        ("/tiers/1", {"wait_ms_max": 0}, 400),
        ("/tiers/1", {"first_token_ms_max": 1.5}, 400),
        ("/tiers/1", {"queued_requests_max": -1}, 400),
        ("/tiers/1", {"queued_tokens_max": "10"}, 400),
        ("/tiers/1", {"name": "x"}, 400),
        ("/tiers/7", {"wait_ms_max": 1}, 404),
        ("/tiers/x", {"wait_ms_max": 1}, 404),
    ],
)
async def test_bounds_that_are_none_are_refused(gateway: ScriptedGateway, path: str, change: dict, status: int) -> None:
    assert (await call(gateway, "PATCH", path, change)).status == status


async def test_the_application_role_may_change_bounds_and_no_tier(gateway: ScriptedGateway, database_url: str) -> None:
    del gateway
    database = engine.create(database_url)
    try:
        async with database.begin() as connection:
            await connection.exec_driver_sql("SET LOCAL ROLE forebay_app")
            changed = await catalogue.update_tier(connection, 0, {"wait_ms_max": 7})
            assert changed.wait_ms_max == 7
            with pytest.raises(ProgrammingError, match="permission"):
                await connection.exec_driver_sql("UPDATE tiers SET name = 'x'")
    finally:
        await database.dispose()
