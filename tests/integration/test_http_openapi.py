"""The OpenAPI document as it is served: the same routes as the application's, and errors as it says."""

import re

import msgspec
from litestar.routes import HTTPRoute

from gateway.app import create_app
from tests.scripted_gateway import ADMIN_KEY, ScriptedGateway, scripted_gateway

UNDOCUMENTED = {"/openapi.json", "/docs"}


async def test_it_names_every_route_and_method() -> None:
    async with scripted_gateway() as gateway:
        served = await gateway.get("/openapi.json", headers={})
        assert served.status == 200
        told = {
            (path, method.upper())
            for path, methods in served.json["paths"].items()
            for method in methods
            if method != "parameters"
        }
        routes = {
            (re.sub(r":\w+}", "}", route.path_format), method)
            for route in create_app(gateway.services).routes
            if isinstance(route, HTTPRoute)
            for method in route.methods
            if method != "OPTIONS" and route.path not in UNDOCUMENTED
        }
        assert told == routes
        shown = await gateway.get("/docs", headers={})
        assert shown.headers["content-security-policy"].startswith("default-src 'none'")


async def test_a_setting_turns_it_off() -> None:
    async with scripted_gateway(openapi=False) as gateway:
        for path in UNDOCUMENTED:
            assert (await gateway.get(path)).status == 404


async def test_what_it_promises_of_errors_is_kept(database_url: str) -> None:
    """Every operation, called with nothing, with rubbish, and by whoever may not: a status that it lists."""
    async with scripted_gateway(database_url=database_url) as gateway:
        described = (await gateway.get("/openapi.json", headers={})).json
        for path, methods in described["paths"].items():
            for method, operation in methods.items():
                if method == "parameters":
                    continue
                for key in (None, "nobody", ADMIN_KEY):
                    for data in (None, b"[]", b'{"\\ud83d":'):
                        await check(gateway, path, method, key, data, operation)


async def check(
    gateway: ScriptedGateway, path: str, method: str, key: str | None, data: bytes | None, operation: dict
) -> None:
    headers = {"content-type": "application/json"} | ({} if key is None else {"authorization": f"Bearer {key}"})
    url = gateway.base + re.sub(r"{\w+}", "nothing", path)
    async with gateway.http.request(method.upper(), url, headers=headers, data=data) as response:
        body = await response.read()
        assert str(response.status) in operation["responses"], (method, path, key, data, response.status)
        assert response.status < 500
        if response.status >= 400:
            assert set(msgspec.json.decode(body)["error"]) == {"message", "type", "param", "code"}
