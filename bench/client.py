"""One HTTP client of an OpenAI-compatible server: sends requests, and records when events arrived and how they failed.

Knows nothing of other clients. Invariant: `send` returns an outcome whatever happens, and an outcome without a failure
is a complete answer.
"""

import time
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import aiohttp
import msgspec

from bench import events
from bench.workload import Workload

TIMEOUT_S = 600.0


@dataclass(slots=True)
class Outcome:
    """One request. Times are of `time.perf_counter`, in seconds."""

    planned_s: float  # when it was due; latencies count from here, so that a stalled client or server hides nothing
    sent_s: float
    first_s: float | None = None  # first text
    last_s: float = 0.0  # latest text
    end_s: float = 0.0
    gaps_s: list[float] = field(default_factory=list[float])  # between events with text
    events: int = 0  # with text
    prompt_tokens: int = 0
    output_tokens: int = 0
    failure: str | None = None  # http_<status>, timeout, connect, broken, error_event, no_done, bad_body


class Client:
    """Connections to one server, as one tenant; use with `async with`. `base_url` ends in /v1."""

    def __init__(self, base_url: str, key: str | None = None, *, timeout_s: float = TIMEOUT_S) -> None:
        self._base_url = base_url.rstrip("/")
        self._headers = {"Content-Type": "application/json"}
        if key is not None:
            self._headers["Authorization"] = f"Bearer {key}"
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)

    async def __aenter__(self) -> Self:
        connector = aiohttp.TCPConnector(limit=0)
        self._session = aiohttp.ClientSession(connector=connector, timeout=self._timeout, headers=self._headers)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def send(self, workload: Workload, index: int, planned_s: float | None = None) -> Outcome:
        body = workload.body(index)
        now_s = time.perf_counter()
        outcome = Outcome(planned_s=now_s if planned_s is None else planned_s, sent_s=now_s)
        try:
            async with self._session.post(self._base_url + workload.path, data=body) as response:
                if response.status != 200:
                    await response.read()
                    outcome.failure = f"http_{response.status}"
                elif workload.stream:
                    await _read_stream(response, outcome)
                else:
                    _note(events.parse(await response.read()), outcome)
        except TimeoutError:
            outcome.failure = "timeout"
        except aiohttp.ClientConnectorError:
            outcome.failure = "connect"
        except (aiohttp.ClientError, ConnectionError):
            outcome.failure = "broken"
        except msgspec.DecodeError:
            outcome.failure = "bad_body"
        outcome.end_s = time.perf_counter()
        return outcome


async def _read_stream(response: aiohttp.ClientResponse, outcome: Outcome) -> None:
    reader, done = events.EventReader(), False
    async for data in response.content.iter_any():
        for payload in reader.feed(data):
            if payload == events.DONE:
                done = True
            else:
                _note(events.parse(payload), outcome)
    if not done and outcome.failure is None:
        outcome.failure = "no_done"


def _note(answer: events.Answer, outcome: Outcome) -> None:
    if answer.has_error:
        outcome.failure = "error_event"
    if answer.usage is not None:
        outcome.prompt_tokens = answer.usage.prompt_tokens
        outcome.output_tokens = answer.usage.completion_tokens
    if not answer.has_text:
        return
    now_s = time.perf_counter()
    if outcome.first_s is None:
        outcome.first_s = now_s
    else:
        outcome.gaps_s.append(now_s - outcome.last_s)
    outcome.last_s = now_s
    outcome.events += 1
