"""What a principal may do, over real HTTP: from where, with which models and which fields; and headers that lie."""

import uuid

import aiohttp
import pytest

from gateway import address
from gateway.app import listening
from tests.integration.test_http_hostile import raw
from tests.scripted_gateway import (
    AUTH,
    KEY,
    Caller,
    ScriptedDispatcher,
    ScriptedGateway,
    ScriptedLimiter,
    ScriptedPrincipals,
    scripted_gateway,
    scripted_services,
)
from tests.services import free_port
from tests.tiny_model import MODEL, MODEL_ID

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
ASK = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 8}


def become(gateway: ScriptedGateway, **what: object) -> None:
    gateway.principals.callers[KEY] = Caller(**what)


class TestNetworks:
    async def test_a_key_works_from_its_networks_alone(self, gateway: ScriptedGateway) -> None:
        for networks, status in (("192.0.2.0/24", 403), ("127.0.0.0/8", 200), ("", 403)):
            become(gateway, networks=address.networks(networks))
            answer = await gateway.get("/v1/models", {**AUTH, "x-forwarded-for": "192.0.2.1"})
            assert answer.status == status, networks
            assert status == 200 or answer.error["code"] == "ip_not_authorized"
        refused = await gateway.post(CHAT, ASK)
        assert refused.status == 403
        assert not gateway.dispatcher.plays

    async def test_a_trusted_proxy_speaks_for_its_clients(self) -> None:
        async with scripted_gateway(trusted_proxies="127.0.0.1") as gateway:
            become(gateway, networks=address.networks("192.0.2.0/24"))
            for forwarded, status in (
                ("192.0.2.1", 200),
                ("198.51.100.7", 403),
                ("192.0.2.1, 198.51.100.7", 403),
                ("192.0.2.1, nonsense", 403),
            ):
                answer = await gateway.get("/v1/models", {**AUTH, "x-forwarded-for": forwarded})
                assert answer.status == status, forwarded
            assert (await gateway.get("/v1/models")).status == 403


class TestModels:
    async def test_a_model_that_is_not_allowed_is_as_if_it_did_not_exist(self, gateway: ScriptedGateway) -> None:
        unknown = await gateway.post(CHAT, {**ASK, "model": "nothing"})
        become(gateway, models=frozenset({uuid.uuid4()}))
        hidden = await gateway.post(CHAT, ASK)
        assert (hidden.status, unknown.status) == (404, 404)
        assert hidden.error == {
            **unknown.error,
            "message": unknown.error["message"].replace("nothing", MODEL),
        }
        assert (await gateway.get("/v1/models")).json["data"] == []
        assert (await gateway.get(f"/v1/models/{MODEL}")).status == 404
        assert not gateway.limiter.demands

    async def test_one_that_is_hidden_is_not_told_by_its_worker_being_away(self, gateway: ScriptedGateway) -> None:
        gateway.dispatcher.fleet.ready = [*gateway.dispatcher.fleet.ready]
        become(gateway, models=frozenset())
        gateway.dispatcher.fleet.ready[0] = type(gateway.dispatcher.fleet.ready[0])(name="other", digest="unread")
        assert (await gateway.post(CHAT, ASK)).status == 404

    async def test_one_that_is_listed_is_served(self, gateway: ScriptedGateway) -> None:
        become(gateway, models=frozenset({MODEL_ID}))
        assert (await gateway.post(CHAT, ASK)).status == 200
        assert [model["id"] for model in (await gateway.get("/v1/models")).json["data"]] == [MODEL]


class TestUnknownFields:
    async def test_a_tenant_may_ask_that_they_be_ignored(self, gateway: ScriptedGateway) -> None:
        for path, body in ((CHAT, ASK), (COMPLETIONS, {"model": MODEL, "prompt": "hi", "max_tokens": 8})):
            extra = {**body, "invented": {"deep": [1]}}
            become(gateway)
            refused = await gateway.post(path, extra)
            assert (refused.status, refused.error["param"]) == (400, "invented")
            become(gateway, ignore_unknown_fields=True)
            assert (await gateway.post(path, extra)).status == 200

    async def test_what_is_known_is_still_looked_at(self, gateway: ScriptedGateway) -> None:
        become(gateway, ignore_unknown_fields=True)
        for wrong in ({"n": "two"}, {"temperature": 9}, {"tools": [{"type": "function"}]}):
            answer = await gateway.post(CHAT, {**ASK, **wrong})
            assert (answer.status, answer.error["param"]) == (400, next(iter(wrong)))
        deep = b'{"model":"tiny","x":' + b"[" * 40_000 + b"]" * 40_000 + b"}"
        assert (await gateway.post(CHAT, deep)).status == 400


class TestHeadersThatLie:
    async def test_none_of_ours_is_believed_or_given_back(self, gateway: ScriptedGateway) -> None:
        """Sent once, twice and in odd case: what identifies a request is the key and what we drew ourselves."""
        for name in ("x-forebay-tenant", "X-FOREBAY-TIER", "X-Request-Id", "Nats-Msg-Id", "x-forebay-key", "Priority"):
            lines = f"{name}: spoofed-value\n{name.swapcase()}: spoofed-again"
            answer = await raw(
                gateway,
                f"POST {CHAT} HTTP/1.1\nHost: x\nConnection: close\nAuthorization: Bearer {KEY}\n{lines}\n"
                "Content-Type: application/json\nContent-Length: 80",
                b'{"model":"tiny","messages":[{"role":"user","content":"hi"}],"max_tokens":8}'.ljust(80),
            )
            assert b" 200 " in answer.split(b"\r\n")[0], name
            assert b"spoofed" not in answer
            job = gateway.play.job
            assert (job.tenant, job.key, job.tier) == (str(Caller().tenant_id), str(Caller().key_id), 0)
            assert "spoofed" not in repr(job)

    @pytest.mark.parametrize("value", ["a\x00b", "a\rb", "a\x0bb", "a" * 70_000])
    async def test_one_that_no_header_may_be(self, gateway: ScriptedGateway, value: str) -> None:
        head = f"GET /v1/models HTTP/1.1\nHost: x\nConnection: close\nAuthorization: Bearer {KEY}\nx-request-id: "
        answer = await raw(gateway, head + value)
        assert answer.split(b" ")[1:2] in ([b"400"], [b"431"], [b"200"])
        status, _, rest = answer.partition(b"\r\n")
        assert b"200" not in status or value.encode("latin-1") not in rest
        assert (await gateway.get("/v1/models")).status == 200

    async def test_one_cannot_smuggle_another(self, gateway: ScriptedGateway) -> None:
        """A line break inside a value is the end of the header: the rest is a header of its own, and harmless."""
        answer = await raw(
            gateway,
            f"GET /v1/models HTTP/1.1\nHost: x\nConnection: close\nAuthorization: Bearer {KEY}\n"
            "x-request-id: a\nset-cookie: stolen=1\nx-forwarded-for: 192.0.2.1",
        )
        assert b" 200 " in answer.split(b"\r\n")[0]
        assert b"stolen" not in answer
        assert b"set-cookie" not in answer.lower()

    async def test_the_key_counts_nowhere_else(self, gateway: ScriptedGateway) -> None:
        for path, headers in (
            (f"/v1/models?api_key={KEY}", {}),
            ("/v1/models", {"x-api-key": KEY}),
            ("/v1/models", {"cookie": f"authorization=Bearer {KEY}"}),
            ("/v1/models", {"proxy-authorization": f"Bearer {KEY}"}),
        ):
            answer = await gateway.get(path, headers=headers)
            assert answer.status == 401
            assert KEY.encode() not in answer.body


async def test_a_gateway_listens_on_a_name_too() -> None:
    """As in `--host localhost`, or a container's own name; what serves HTTP takes addresses alone."""
    port = free_port()
    async with (
        scripted_services(ScriptedPrincipals(), ScriptedLimiter(), ScriptedDispatcher()) as services,
        listening(services, host="localhost", port=port),
        aiohttp.ClientSession() as http,
        http.get(f"http://localhost:{port}/v1/models") as response,
    ):
        assert response.status == 401
