"""The connection itself: what holds after a reconnect, and what each NATS user may do."""

import asyncio
import json
import subprocess
from collections.abc import Iterator
from dataclasses import asdict
from typing import get_args

import nats
import pytest
from structlog.testing import capture_logs

from cli.embedded import nats as embedded
from shared import subjects
from shared.bus import Bus, BusUnavailable
from shared.jobs import ensure_stream, publish_stored
from tests import services
from tests.integration.fleet import fleet, gateway, job, opened, read, ready, until, usage


async def test_nothing_is_ready_before_every_hook_has_succeeded(nats_server: services.NatsServer) -> None:
    calls: list[str] = []

    async def fails_twice() -> None:
        calls.append("first")
        if len(calls) < 3:
            raise BusUnavailable("not yet")

    async def second() -> None:
        calls.append("second")

    async with Bus(nats_server.url, name="test", role="gateway") as bus_without_hooks:
        assert bus_without_hooks.ready_s() == 0
        await bus_without_hooks.wait_ready(60)
        assert bus_without_hooks.ready_s() > 0
    bus = Bus(nats_server.url, name="test", role="gateway")
    bus.on_connect(fails_twice)
    bus.on_connect(second)
    async with bus:
        await bus.wait_ready(60)
        assert calls == ["first", "first", "first", "second"]
        nats_server.stop()
        await until(lambda: not bus.ready)
        assert bus.down_s() > 0
        assert bus.ready_s() == 0
        nats_server.start()
        await bus.wait_ready(60)
        assert calls == ["first", "first", "first", "second", "first", "second"]
        assert bus.down_s() == 0
        assert bus.ready_s() > 0


async def test_what_stays_wrong_is_told_once(nats_server: services.NatsServer) -> None:
    """A server without room for our streams answers every attempt alike, ten a second for as long as it stays so."""
    tries = 0

    async def no_room() -> None:
        nonlocal tries
        tries += 1
        raise BusUnavailable("no room" if tries < 4 else "no room still")

    with capture_logs() as lines:
        bus = Bus(nats_server.url, name="test", role="gateway")
        bus.on_connect(no_room)
        async with bus:
            await until(lambda: tries > 4)
            with pytest.raises(BusUnavailable, match="no room still"):
                await bus.wait_ready(0)
    assert [line["error"] for line in lines if line["event"] == "bus.ensure_failed"] == ["no room", "no room still"]


async def test_subscriptions_survive_and_can_end(nats_server: services.NatsServer) -> None:
    async with Bus(nats_server.url, name="test", role="gateway") as bus:
        got: list[bytes] = []
        interest = await bus.subscribe("a.b", lambda _, data: got.append(data))  # before the first connect
        await bus.wait_ready(60)
        await bus.publish("a.b", b"1")
        await until(lambda: got == [b"1"])
        nats_server.stop()
        await until(lambda: not bus.ready)
        nats_server.start()
        await bus.wait_ready(60)
        await bus.publish("a.b", b"2")
        await until(lambda: got == [b"1", b"2"])
        await interest.cancel()
        await interest.cancel()
        await bus.publish("a.b", b"3")
        await bus.round_trip()
        assert got == [b"1", b"2"]


async def test_nothing_overtakes_what_the_client_still_keeps(nats_server: services.NatsServer) -> None:
    async with Bus(nats_server.url, name="test", role="gateway") as bus:
        got: list[bytes] = []
        await bus.subscribe("a.b", lambda _, data: got.append(data))
        await bus.wait_ready(60)
        await bus.client.publish("a.b", b"1")  # kept until the client's own task writes it
        await bus.publish("a.b", b"2")
        await bus.round_trip()
        await bus.publish("a.b", b"3")  # at once
        await bus.round_trip()
        assert got == [b"1", b"2", b"3"]


async def test_waiting_for_a_server_that_is_not_there_ends(nats_server: services.NatsServer) -> None:
    nats_server.stop()
    async with Bus(nats_server.url, name="test", role="gateway") as bus:
        with pytest.raises(BusUnavailable):
            await bus.wait_ready(0.2)
        with pytest.raises(BusUnavailable):
            await bus.round_trip(0.2)
        with pytest.raises(BusUnavailable):
            await bus.publish("a", b"")


async def test_a_client_that_the_server_closed_is_replaced(nats_server: services.NatsServer) -> None:
    async with Bus(nats_server.url, name="test", role="gateway") as bus:
        got: list[bytes] = []
        await bus.subscribe("a.b", lambda _, data: got.append(data))
        await bus.wait_ready(60)
        await bus.client.close()  # as nats-py does by itself after some errors, for good
        await until(lambda: bus.ready and not bus.client.is_closed)
        await bus.publish("a.b", b"1")
        await until(lambda: got == [b"1"])


@pytest.fixture
def guarded_server(nats_server: services.NatsServer) -> Iterator[services.NatsServer]:
    """The same server with one user per role, who may do what `subjects.permissions` says and nothing else."""
    nats_server.stop()
    users = [
        {"user": role, "password": role, "permissions": asdict(subjects.permissions(role))}
        for role in get_args(subjects.Role)
    ]
    config = nats_server.directory / "guarded.json"
    config.write_text(
        json.dumps(
            {
                "host": "127.0.0.1",
                "port": nats_server.port,
                "max_payload": 8 * 1024 * 1024,
                "jetstream": {"store_dir": str(nats_server.directory / "js"), "max_memory_store": 1 << 30},
                "authorization": {"users": users},
            }
        )
    )
    with (nats_server.directory / "guarded.log").open("wb") as log:
        nats_server.process = subprocess.Popen([embedded.program(), "-c", str(config)], stdout=log, stderr=log)
    yield nats_server
    nats_server.stop()


def url(server: services.NatsServer, role: str) -> str:
    return f"nats://{role}:{role}@127.0.0.1:{server.port}"


async def test_each_role_may_do_its_work(guarded_server: services.NatsServer) -> None:
    server = guarded_server
    async with fleet(url(server, "worker")) as workers, gateway(url(server, "gateway")) as dispatcher:
        errors: list[str] = []
        worker = workers.start()
        for bus in (worker.link.bus, dispatcher.bus):
            bus._on_error = _collect(errors)
        await ready(dispatcher)
        async with opened(dispatcher, job(dispatcher)) as stream:
            await read(stream)
        async with opened(dispatcher, job(dispatcher, max_tokens=2000)) as stream:
            await stream.next()
        await dispatcher.ready()
        await asyncio.sleep(1.2)  # a roll and several beats
        assert len(await usage(url(server, "admin"), expected=2)) == 2
        assert errors == []


@pytest.mark.parametrize("role", ["ledger", "gateway"])
async def test_the_ledger_may_take_usage_events_out(guarded_server: services.NatsServer, role: subjects.Role) -> None:
    async with (
        Bus(url(guarded_server, role), name="ledger", role=role) as bus,
        Bus(url(guarded_server, "worker"), name="worker", role="worker") as other,
    ):
        await bus.wait_ready(60)
        await ensure_stream(bus, subjects.usage_stream())
        jetstream = bus.jetstream()
        await jetstream.add_consumer(subjects.USAGE_STREAM, subjects.usage_consumer())
        await other.wait_ready(60)
        await publish_stored(other, subjects.USAGE_SUBJECT, b"event", {"Nats-Msg-Id": "1"})
        events = await jetstream.pull_subscribe_bind(subjects.USAGE_CONSUMER, subjects.USAGE_STREAM)
        [message] = await events.fetch(1, timeout=60)
        await message.ack_sync(timeout=60)
        await events.consumer_info()
        await events.unsubscribe()


async def test_no_role_can_listen_to_what_is_not_its_own(guarded_server: services.NatsServer) -> None:
    for role in ("gateway", "worker", "ledger"):
        errors: list[str] = []
        client = await nats.connect(url(guarded_server, role), error_cb=_collect(errors))
        for subject in (">", "forebay.v1.job.>", "forebay.v1.usage"):
            await client.subscribe(subject)
        await client.flush()
        await until(lambda errors=errors: len(errors) == 3)
        await client.close()


def _collect(errors: list[str]):
    async def on_error(error: Exception) -> None:
        if "permissions" in str(error):  # and not the attempts before the server was up
            errors.append(str(error))

    return on_error
