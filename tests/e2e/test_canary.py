"""What must not be told is found nowhere afterwards: not in answers, logs, metrics, spans, subjects, files or rows.

A key's secret, put wherever somebody may put a key; the stack's own passwords; what is asked and answered, and by whom.
"""

import asyncio
import json
import time
import uuid
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from gateway import keys
from tests.collector import Collector
from tests.e2e.api import MODEL, PATIENCE_S, Api, chat_body, new_client
from tests.e2e.canary import Overheard, kept_by_nats, logs, overhearing, rows_with, shows, wait_for_trace, watched
from tests.e2e.conftest import COLLECTOR_TOKEN
from tests.e2e.stack import Stack

SPANS = 9  # of a request that is answered


class Administrator:
    """Calls with the admin key; remembers every answer that is not meant to show a key."""

    def __init__(self, stack: Stack) -> None:
        self.base = stack.base_urls[0].removesuffix("/v1")
        self.headers = {"Authorization": f"Bearer {stack.environ['FOREBAY_ADMIN_KEY']}"}
        self.answers: list[httpx.Response] = []
        self.client = new_client()

    def call(self, method: str, path: str, *, shows: bool = False, **sent: Any) -> httpx.Response:
        headers = {**self.headers, **sent.pop("headers", {})}
        answer = self.client.request(method, f"{self.base}{path}", headers=headers, **sent)
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


def test_what_must_not_be_told_is_found_nowhere(
    stack: Stack, administrator: Administrator, collector: Collector
) -> None:
    said, texts = Said(), two_keys(administrator)
    for text in texts:
        misuse(stack, administrator, text)
    look(administrator)
    [first, *refused, stream], heard = asyncio.run(say(stack, said))
    assert [answer.status_code for answer in (first, stream)] == [200, 200]
    assert {answer.status_code for answer in refused} == {400}
    wait_for_trace(collector, stream.headers["x-trace-id"], spans=SPANS)
    places = {**watched(stack, collector), "NATS": b" ".join([*map(str.encode, heard.subjects), *heard.heads])}
    assert any(subject.startswith("forebay.v1.job") for subject in heard.subjects)
    answers = {str(answer.request.url): answer.text + repr(answer.headers) for answer in administrator.answers}
    refusals = {f"refusal {index}": answer.text + repr(answer.headers) for index, answer in enumerate(refused)}
    told = {**places, **{name: text.encode() for name, text in {**answers, **refusals}.items()}}
    answered = first.json()["choices"][0]["message"]["content"]
    assert len(answered) > 100
    secrets = [*(secret_of(text) for text in texts), *said.words.values(), answered[40:80]]
    kept = {str(path): path.read_bytes() for path in kept_by_nats(stack)}
    for secret in secrets:
        assert [name for name, data in {**told, **kept}.items() if shows(data, secret)] == []
    assert rows_with(stack, secrets) == []
    for secret in own_secrets(stack):
        assert [name for name, data in told.items() if shows(data, secret)] == []


def own_secrets(stack: Stack) -> list[str]:
    """Of the stack, which its own files and rows may hold."""
    environ = stack.environ
    passwords = [str(urlsplit(environ[name]).password) for name in ("FOREBAY_POSTGRES_URL", "FOREBAY_NATS_URL")]
    secrets = [*passwords, secret_of(environ["FOREBAY_ADMIN_KEY"]), secret_of(stack.acme_key), COLLECTOR_TOKEN]
    assert all(len(secret) >= 20 for secret in secrets)
    return secrets


def two_keys(administrator: Administrator) -> list[str]:
    """A key, before and after its rotation."""
    tenant, call = f"canary-{uuid.uuid4().hex[:8]}", administrator.call
    assert call("POST", "/admin/v1/tenants", json={"name": tenant, "plan": "standard"}).status_code == 201
    named = {"Idempotency-Key": str(uuid.uuid4())}
    made = call("POST", "/admin/v1/keys", json={"tenant": tenant}, headers=named, shows=True).json()
    assert call("POST", "/admin/v1/keys", json={"tenant": tenant}, headers=named).json()["text"] is None
    rotate = f"/admin/v1/keys/{made['key']['public_id']}/rotate"
    return [made["text"], call("POST", rotate, json={"overlap_s": 600}, shows=True).json()["text"]]


def misuse(stack: Stack, administrator: Administrator, text: str) -> None:
    """The key where it belongs, and everywhere else."""
    api = Api(stack.base_urls[0], text)
    assert api.chat(f"my key is {text}").status_code == 200
    answers = administrator.answers
    answers.append(api.post("/chat/completions", chat_body(**{text: 1})))
    answers.append(api.post("/chat/completions", {**chat_body(), "model": text}))
    answers.append(api.post("/chat/completions", {**chat_body(), "user": text, "stop": text}))
    answers.append(api.post("/chat/completions", f'{{"model":"{MODEL}","{text}'.encode()))
    traced = {**api.headers(), "traceparent": f"00-{uuid.uuid4().hex}-00f067aa0ba902b7-01", "tracestate": f"a={text}"}
    answers.append(api.client.post(f"{api.base_url}/chat/completions", json=chat_body(), headers=traced))
    assert answers[-1].status_code == 200
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


class Said:
    """Words that were never said before, each where a client may say something."""

    def __init__(self) -> None:
        self.words = {where: f"{where}{uuid.uuid4().hex}" for where in ("prompt", "system", "stop", "user", "name")}

    def body(self, **fields: Any) -> dict[str, Any]:
        messages = [
            {"role": "system", "content": self.words["system"], "name": self.words["name"]},
            {"role": "user", "content": f"say {self.words['prompt']} to me"},
        ]
        told = {"messages": messages, "stop": [self.words["stop"]], "user": self.words["user"], "logprobs": True}
        return {**chat_body(max_tokens=64), **told, **fields}

    @property
    def headers(self) -> dict[str, str]:
        names = ("x-user", "user-agent", "baggage", "traceparent", "cookie", "referer", "openai-organization")
        return dict.fromkeys(names, self.words["user"])

    def bodies(self) -> list[Any]:
        """Answered ones first, then those that are refused, as late as may be."""
        return [
            self.body(),
            self.body(max_tokens=1_000_000),
            self.body(tools=[{"type": "function", "function": {"name": self.words["name"]}}]),
            self.body(response_format={"type": "json_object", "name": self.words["name"]}),
            self.body(messages=[{"role": "user", "content": f"{self.words['prompt']} " * 20_000}]),
            self.body(
                messages=[{"role": "user", "content": [{"type": "image_url", "image_url": self.words["prompt"]}]}]
            ),
            self.body(temperature=-1),
            json.dumps(self.body()).encode()[:-1],
        ]


async def say(stack: Stack, said: Said) -> tuple[list[httpx.Response], Overheard]:
    """The answers to all bodies and, last, to the first of them streamed; and what NATS showed of them."""
    url, key = f"{stack.base_urls[0]}/chat/completions", {"Authorization": f"Bearer {stack.acme_key}"}
    bodies = [*said.bodies(), said.body(stream=True)]
    async with overhearing(stack) as heard, httpx.AsyncClient(timeout=PATIENCE_S, trust_env=False) as client:
        sent = [body if isinstance(body, bytes) else json.dumps(body).encode() for body in bodies]
        return [await client.post(url, content=body, headers={**key, **said.headers}) for body in sent], heard


def test_request_and_trace_stand_in_the_logs_of_both_programs(stack: Stack, collector: Collector) -> None:
    answer = Api(stack.base_urls[0], stack.acme_key).chat("hi")
    trace, request = answer.headers["x-trace-id"], answer.headers["x-request-id"]
    wait_for_trace(collector, trace, spans=SPANS)
    assert {span.service for span in collector.spans if span.trace == trace} == {"forebay-gateway", "forebay-worker"}
    ends = {"gateway-0.log": {"request.finished"}, "worker-0.log": {"attempt.ended"}}
    told: dict[str, list[dict]] = {}
    deadline = time.monotonic() + PATIENCE_S
    while not ends.keys() <= told.keys():  # a line comes after the spans
        assert time.monotonic() < deadline, told
        time.sleep(0.05)
        texts = {path.name: path.read_text().rpartition("\n")[0].splitlines() for path in logs(stack)}
        told = {name: found for name, lines in texts.items() if (found := [json.loads(x) for x in lines if trace in x])}
    assert all(line["request"] == request for lines in told.values() for line in lines)
    assert {name: {line["event"] for line in lines} for name, lines in told.items() if name in ends} == ends
