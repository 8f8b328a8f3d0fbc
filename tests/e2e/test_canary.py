"""A key's secret, put wherever somebody may put a key, is found nowhere afterwards: no answer, no file, no row."""

import json
import uuid
from typing import Any

import httpx
import pytest

from gateway.auth import keys
from tests.e2e.api import MODEL, Api, chat_body
from tests.e2e.stack import Stack

FOUND_BYTES_MIN = 12  # of the secret: less is chance


class Administrator:
    """Calls with the admin key; remembers every answer that is not meant to show a key."""

    def __init__(self, stack: Stack) -> None:
        self.base = stack.base_urls[0].removesuffix("/v1")
        self.headers = {"Authorization": f"Bearer {stack.environ['FOREBAY_ADMIN_KEY']}"}
        self.answers: list[httpx.Response] = []

    def call(self, method: str, path: str, *, shows: bool = False, **sent: Any) -> httpx.Response:
        headers = {**self.headers, **sent.pop("headers", {})}
        answer = httpx.request(method, f"{self.base}{path}", headers=headers, timeout=30, trust_env=False, **sent)
        assert answer.status_code < 500, answer.text
        if not shows:
            self.answers.append(answer)
        return answer


def secret_of(text: str) -> str:
    assert keys.parse(text) is not None
    return text.split("-")[3][: keys.SECRET_LENGTH]


@pytest.fixture
def administrator(stack: Stack) -> Administrator:
    return Administrator(stack)


def test_a_secret_is_found_nowhere(stack: Stack, administrator: Administrator) -> None:
    tenant = f"canary-{uuid.uuid4().hex[:8]}"
    call = administrator.call
    assert call("POST", "/admin/v1/tenants", json={"name": tenant, "plan": "standard"}).status_code == 201
    named = {"Idempotency-Key": str(uuid.uuid4())}
    made = call("POST", "/admin/v1/keys", json={"tenant": tenant}, headers=named, shows=True).json()
    assert call("POST", "/admin/v1/keys", json={"tenant": tenant}, headers=named).json()["text"] is None
    rotate = f"/admin/v1/keys/{made['key']['public_id']}/rotate"
    rotated = call("POST", rotate, json={"overlap_s": 600}, shows=True).json()
    texts = [made["text"], rotated["text"]]
    for text in texts:
        misuse(stack, administrator, text)
    look(administrator)
    for secret in map(secret_of, texts):
        for answer in administrator.answers:
            told = answer.text + repr(answer.headers)
            assert not shows(told.encode(), secret), answer.request.url
        assert [str(path) for path in files(stack) if shows(path.read_bytes(), secret)] == []
        assert rows_with(stack, secret) == []


def misuse(stack: Stack, administrator: Administrator, text: str) -> None:
    """The key where it belongs, and everywhere else."""
    api = Api(stack.base_urls[0], text)
    assert api.chat(f"my key is {text}").status_code == 200
    answers = administrator.answers
    answers.append(api.post("/chat/completions", chat_body(**{text: 1})))
    answers.append(api.post("/chat/completions", {**chat_body(), "model": text}))
    answers.append(api.post("/chat/completions", {**chat_body(), "user": text, "stop": text}))
    answers.append(api.post("/chat/completions", f'{{"model":"{MODEL}","{text}'.encode()))
    call = administrator.call
    for headers in ({"Authorization": f"Basic {text}"}, {"Authorization": text}, {"x-api-key": text}, {"Cookie": text}):
        call("GET", "/v1/models", headers={"Authorization": "", **headers})
    for header in ("x-request-id", "traceparent", "idempotency-key", "x-forwarded-for", "user-agent", "referer"):
        call("POST", "/admin/v1/tenants", json={"name": "acme", "plan": "standard"}, headers={header: text})
    for path in (
        f"/v1/models/{text}",
        f"/{text}",
        f"/v1/models?api_key={text}",
        f"/admin/v1/tenants/{text}",
        f"/admin/v1/keys/{text}",
        f"/admin/v1/keys?tenant={text}",
        f"/admin/v1/keys?{text}=1",
        f"/admin/v1/audit?actor={text}",
        f"/admin/v1/quotas/{text}",
    ):
        call("GET", path)
    for body in (
        {"tenant": text},
        {"tenant": "acme", "name": f"for {text}"},
        {"tenant": "acme", "env": text},
        {"tenant": "acme", "models": [text]},
        {"tenant": "acme", "networks": [text]},
        {"tenant": "acme", text: 1},
    ):
        refused = call("POST", "/admin/v1/keys", json=body)
        assert refused.status_code in (400, 404), refused.text


def look(administrator: Administrator) -> None:
    for path in ("tenants", "keys", "quotas", "audit"):
        listed = administrator.call("GET", f"/admin/v1/{path}?limit=100")
        assert listed.status_code == 200
        assert json.loads(listed.content)["data"] or path == "quotas"


def shows(data: bytes, secret: str) -> bool:
    """Whether any long enough piece of the secret stands in `data`."""
    pieces = (secret[begin : begin + FOUND_BYTES_MIN] for begin in range(0, len(secret) - FOUND_BYTES_MIN + 1, 4))
    return any(piece.encode() in data for piece in pieces)


def files(stack: Stack) -> list[Any]:
    """Logs, and all that NATS keeps on disk."""
    roots = (stack.directory.logs, stack.directory.nats)
    return [path for root in roots for path in root.rglob("*") if path.is_file()]


def rows_with(stack: Stack, secret: str) -> list[str]:
    """The tables in which a row, as text, shows the secret."""
    names = [row["name"] for row in stack.query("SELECT tablename AS name FROM pg_tables WHERE schemaname = 'public'")]
    assert {"audit_log", "api_keys", "idempotent_answers"} <= set(names)
    piece = secret[:FOUND_BYTES_MIN]
    hexed = piece.encode().hex()
    where = f"position('{piece}' in t::text) > 0 OR position('{hexed}' in t::text) > 0"
    return [name for name in names if stack.query(f'SELECT 1 AS found FROM "{name}" t WHERE {where} LIMIT 1')]
