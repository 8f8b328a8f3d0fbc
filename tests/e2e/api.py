"""A plain HTTP client for tests that must send what no SDK would: raw bodies, odd headers, broken connections."""

import contextlib
import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httpx

MODEL = "SmolLM2-135M-Instruct"
PATIENCE_S = 60  # for what is sure to come, on a machine that may stand still for seconds


def new_client() -> httpx.Client:
    """Keeps no connection open, so that nobody has to close it."""
    return httpx.Client(timeout=PATIENCE_S, trust_env=False, limits=httpx.Limits(max_keepalive_connections=0))


@dataclass
class Api:
    """One tenant's view of one gateway. `base_url` ends in /v1."""

    base_url: str
    key: str
    client: httpx.Client = field(default_factory=new_client)

    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"}

    def post(self, path: str, body: Any) -> httpx.Response:
        """`body` as JSON, or exactly as it is when it is bytes."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.client.post(self.base_url + path, content=content, headers=self.headers())

    def chat(self, content: Any = "hi", **fields: Any) -> httpx.Response:
        return self.post("/chat/completions", chat_body(content, **fields))

    def complete(self, prompt: Any = "hi", **fields: Any) -> httpx.Response:
        return self.post("/completions", {"model": MODEL, "prompt": prompt, "max_tokens": 5, **fields})

    def probe(self) -> None:
        """Assert that an ordinary request is answered, before the client's patience ends."""
        answer = self.chat("ping", max_tokens=4, temperature=0)
        assert answer.status_code == 200, answer.text

    def stream(self, path: str, body: Any) -> list[dict[str, Any]]:
        """All data events of a finished stream, without the closing [DONE], whose presence is asserted."""
        answer = self.post(path, {**body, "stream": True})
        assert answer.status_code == 200, answer.text
        return events(answer.content)


def chat_body(content: Any = "hi", **fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": content}], "max_tokens": 8, **fields}


def events(raw: bytes, *, done: bool = True) -> list[dict[str, Any]]:
    """Parse server-sent events strictly: each line alone is valid UTF-8 and JSON, exactly one [DONE], at the end."""
    frames = [frame for frame in raw.split(b"\n\n") if frame and not frame.startswith(b":")]
    assert all(frame.startswith(b"data: ") and b"\n" not in frame for frame in frames), raw[:500]
    payloads = [frame.removeprefix(b"data: ").decode("utf-8") for frame in frames]
    assert payloads.count("[DONE]") == (1 if done else 0), payloads[-2:]
    if done:
        assert payloads.pop() == "[DONE]"
    return [json.loads(payload) for payload in payloads]


def text_of(chunks: list[dict[str, Any]], index: int = 0) -> str:
    """The concatenated text of one choice, on either endpoint."""
    choices = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
    parts = [choice["text"] if "text" in choice else choice["delta"].get("content") or "" for choice in choices]
    return "".join(parts)


def finish_of(chunks: list[dict[str, Any]], index: int = 0) -> str:
    """The one finish_reason of a choice."""
    reasons = [
        choice["finish_reason"]
        for chunk in chunks
        for choice in chunk["choices"]
        if choice["index"] == index and choice["finish_reason"]
    ]
    assert len(reasons) == 1, reasons
    return reasons[0]


def counts(answer: dict[str, Any]) -> dict[str, int]:
    """The token counts of an answer or of a stream's last event, without those that depend on earlier requests."""
    usage = answer["usage"]
    assert 0 <= usage["prompt_tokens_details"]["cached_tokens"] < usage["prompt_tokens"]
    return {name: usage[name] for name in ("prompt_tokens", "completion_tokens", "total_tokens")}


def assert_error(answer: httpx.Response, status: int | tuple[int, ...], param: str | None = None) -> dict[str, Any]:
    """OpenAI's error shape, with no stack trace and no echo of the input."""
    allowed = (status,) if isinstance(status, int) else status
    assert answer.status_code in allowed, (answer.status_code, answer.text[:500])
    assert answer.headers["content-type"].startswith("application/json")
    assert answer.headers["x-request-id"]
    assert len(answer.content) < 4096
    body = json.loads(answer.content.decode("utf-8"))
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["message"]
    assert "Traceback" not in answer.text
    if param is not None:
        assert (body["error"]["param"] or "").split(".")[0].split("[")[0] == param, body
    return body["error"]


def force(token_id: int) -> dict[str, Any]:
    """Fields that make the answer a repetition of one token, whatever the model."""
    return {"logit_bias": {str(token_id): 100}, "temperature": 0}


@contextlib.contextmanager
def bystander(api: Api, tokens: int = 200) -> Iterator[None]:
    """A stream of another tenant that runs during the body of the `with`, and must not be affected."""
    outcome: list[httpx.Response | Exception] = []

    def run() -> None:
        try:
            body = chat_body("Tell me a story", max_tokens=tokens, stream=True, ignore_eos=True)
            outcome.append(api.post("/chat/completions", {**body, "stream_options": {"include_usage": True}}))
        except Exception as error:  # noqa: BLE001 - the test that waits for it tells
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        thread.join(120)
    (answer,) = outcome
    assert isinstance(answer, httpx.Response), answer
    assert answer.status_code == 200, answer.text
    chunks = events(answer.content)
    assert finish_of(chunks) == "length"
    assert chunks[-1]["usage"]["completion_tokens"] == tokens


def raw_exchange(base_url: str, head: bytes, body: bytes = b"") -> bytes:
    """Send bytes that an HTTP library would refuse to build; return all that comes back until the server closes."""
    url = urlsplit(base_url)
    with socket.create_connection((url.hostname or "", url.port or 80), timeout=PATIENCE_S) as connection:
        with contextlib.suppress(ConnectionError):
            connection.sendall(head + b"\r\nConnection: close\r\n\r\n" + body)
        received = b""
        with contextlib.suppress(ConnectionError):
            while data := connection.recv(65536):
                received += data
        return received


def status_of(raw: bytes) -> int:
    return int(raw.split(b" ", 2)[1])


@contextlib.contextmanager
def open_request(api: Api, path: str, body: dict[str, Any]) -> Iterator[socket.socket]:
    """A raw connection on which `body` has been posted. Leave the `with` to hang up with FIN; see `reset`."""
    url = urlsplit(api.base_url)
    content = json.dumps(body).encode()
    lines = [
        f"POST {url.path}{path} HTTP/1.1",
        f"Host: {url.netloc}",
        *(f"{name}: {value}" for name, value in api.headers().items()),
        f"Content-Length: {len(content)}",
    ]
    with socket.create_connection((url.hostname or "", url.port or 80), timeout=PATIENCE_S) as connection:
        connection.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + content)
        yield connection


def reset(connection: socket.socket) -> None:
    """Hang up with RST instead of FIN."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def wait_for(condition: Callable[[], bool], seconds: float = PATIENCE_S, what: str = "condition") -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s: {what}")
        time.sleep(0.05)


def metric(url: str, name: str) -> float:
    """The sum over all label sets of one Prometheus sample name at `url`."""
    text = httpx.get(url, trust_env=False, timeout=PATIENCE_S).text
    values = [float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.split("{")[0].split(" ")[0] == name]
    assert values, f"{name} is not exported at {url}"
    return sum(values)
