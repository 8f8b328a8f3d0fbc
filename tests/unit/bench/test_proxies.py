"""Other gateways, with the upstream itself in place of LiteLLM: what is measured is then the same server twice."""

import sys
from pathlib import Path

import msgspec
import pytest

from bench import proxies, upstream
from bench.events import DONE, EventReader, parse
from bench.workload import Workload

PROGRAM = f"""#!{sys.executable}
import json, os, sys
words = sys.argv[1:]
config = json.load(open(words[words.index("--config") + 1]))
assert len(config["general_settings"]["master_key"]) > 40
at = [word for option in ("--host", "--port") for word in (option, words[words.index(option) + 1])]
os.execv(sys.executable, [sys.executable, "-m", "granian", "--interface", "asginl", *at, "bench.upstream:app"])
"""


def loads() -> proxies.Loads:
    def workload(*, stream: bool) -> Workload:
        return Workload(model="m", api="chat", prompt_tokens=4, output_tokens=3, stream=stream)

    return proxies.Loads(
        idle=workload(stream=True),
        idle_requests=3,
        whole=workload(stream=False),
        whole_clients=2,
        whole_requests=400,
        streamed=workload(stream=True),
        stream_clients=50,
        streams=50,
    )


def test_a_gateway_that_is_not_installed_is_not_measured(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert proxies.measured(loads(), "m") == {}


def test_one_that_is_installed_is_measured_in_front_of_the_upstream(tmp_path, monkeypatch):
    program = tmp_path / "litellm"
    program.write_text(PROGRAM)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(Path(upstream.__file__).parent.parent))
    speed = proxies.measured(loads(), "m")[proxies.LITELLM]
    assert speed.requests_per_s > 0
    assert speed.requests_per_core_s > 0
    assert speed.chunks_per_s > 0
    assert speed.chunks_per_core_s > 0


def test_ratios_are_ours_over_theirs():
    theirs = proxies.Speed(
        added_ms=10, requests_per_s=100, requests_per_core_s=110, chunks_per_s=1_500, chunks_per_core_s=1_600
    )
    ours = proxies.Speed(
        added_ms=2, requests_per_s=500, requests_per_core_s=770, chunks_per_s=30_000, chunks_per_core_s=24_000
    )
    shown = {measure.what: measure for measure in proxies.compared(ours, "X", theirs)}
    assert shown["requests for a core, times X's"].value == 7
    assert shown["requests for a core, times X's"].cells[-1] == "yes"
    assert shown["SSE chunks for a core, times X's"].cells[-1] == "no"
    assert shown["requests, times X's"].value == 5
    assert shown["added to the first token, times X's"].value == 0.2


@pytest.mark.parametrize("stream", [False, True])
async def test_the_upstream_answers_as_the_load_generator_reads_it(stream):
    body = Workload(model="m", api="chat", prompt_tokens=4, output_tokens=3, stream=stream).body(0)
    sent: list[upstream.Message] = []

    async def receive() -> upstream.Message:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: upstream.Message) -> None:
        sent.append(message)

    await upstream.app({"type": "http", "method": "POST"}, receive, send)
    data = b"".join(message.get("body", b"") for message in sent)
    if not stream:
        answer = parse(data)
        assert answer.has_text
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 3
        return
    payloads = EventReader().feed(data)
    assert payloads[-1] == DONE
    answers = [parse(payload) for payload in payloads[:-1]]
    assert sum(answer.has_text for answer in answers) == 3
    assert [answer.usage.completion_tokens for answer in answers if answer.usage is not None] == [3]
    assert all(msgspec.json.decode(payload) for payload in payloads[:-1])
