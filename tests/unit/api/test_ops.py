"""The operators' port over a real socket."""

import asyncio
import json

import pytest

from gateway import ops
from gateway.ops import Impaired, OpsServer


async def fetch(port: int, request: bytes) -> tuple[int, bytes]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), body


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()


async def fine() -> None:
    pass


async def broken() -> None:
    raise ValueError("it is broken")


async def impaired() -> None:
    raise Impaired("served without it")


async def silent() -> None:
    await asyncio.sleep(3_600)


async def test_the_port_serves_metrics_and_health_and_nothing_else() -> None:
    async with OpsServer(lambda: b"metric 1\n", {"thing": fine}).listening("127.0.0.1", 0) as port:
        assert await fetch(port, get("/metrics")) == (200, b"metric 1\n")
        assert (await fetch(port, get("/healthz/live")))[0] == 200
        status, body = await fetch(port, get("/healthz/ready?x=1"))
        assert (status, json.loads(body)) == (200, {"ready": True, "wrong": {}, "impaired": {}})
        assert (await fetch(port, get("/")))[0] == 404
        assert await fetch(port, b"HEAD /healthz/live HTTP/1.1\r\n\r\n") == (200, b"")
        assert (await fetch(port, b"POST /metrics HTTP/1.1\r\n\r\n"))[0] == 405


async def test_what_is_wrong_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops, "CHECK_S", 0.02)
    checks = {"good": fine, "bad": broken, "slow": silent}
    async with OpsServer(bytes, checks).listening("127.0.0.1", 0) as port:
        status, body = await fetch(port, get("/healthz/ready"))
        assert status == 503
        assert json.loads(body)["wrong"] == {"bad": "it is broken", "slow": "no answer within 0.02 s"}
        assert (await fetch(port, get("/healthz/live")))[0] == 200


async def test_what_is_impaired_is_named_and_does_not_make_it_unready() -> None:
    async with OpsServer(bytes, {"good": fine, "away": impaired}).listening("127.0.0.1", 0) as port:
        status, body = await fetch(port, get("/healthz/ready"))
    assert (status, json.loads(body)) == (200, {"ready": True, "wrong": {}, "impaired": {"away": "served without it"}})


async def test_a_client_that_sends_no_request_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops, "REQUEST_S", 0.02)
    async with OpsServer(bytes, {}).listening("127.0.0.1", 0) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()
        monkeypatch.setattr(ops, "REQUEST_S", 60)
        assert (await fetch(port, get("/healthz/live")))[0] == 200
