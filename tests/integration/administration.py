"""A gateway over a real catalogue, as an administrator calls it."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from tests.answers import Answer
from tests.scripted_gateway import ADMIN_KEY, Caller, ScriptedGateway, eventually, scripted_gateway

ADMIN = {"authorization": f"Bearer {ADMIN_KEY}"}
READ_KEY = "fb-test-reader"
ROOT = "/admin/v1"


@asynccontextmanager
async def administered(database_url: str, **settings: object) -> AsyncGenerator[ScriptedGateway]:
    """READ_KEY exists besides the tenant's and the administrator's keys, and may only read."""
    async with scripted_gateway(database_url=database_url, **settings) as gateway:
        gateway.principals.callers[READ_KEY] = Caller(scopes=frozenset({"admin:read"}))
        yield gateway
        await eventually(lambda: gateway.services.gate.taken == 0)


async def call(
    gateway: ScriptedGateway, method: str, path: str, body: object = None, headers: dict[str, str] | None = None
) -> Answer:
    sent = {"json": body} if body is not None else {}
    async with gateway.http.request(
        method, gateway.base + ROOT + path, headers={**ADMIN, **(headers or {})}, **sent
    ) as response:
        return Answer(response.status, response.headers.copy(), await response.read())


async def make_tenant(gateway: ScriptedGateway, name: str = "acme", **fields: object) -> dict:
    made = await call(gateway, "POST", "/tenants", {"name": name, "plan": "standard", **fields})
    assert made.status == 201, made.body
    return made.json


async def make_key(gateway: ScriptedGateway, **fields: object) -> dict:
    made = await call(gateway, "POST", "/keys", {"tenant": "acme", **fields})
    assert made.status == 201, made.body
    return made.json
