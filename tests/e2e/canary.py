"""Every place where a secret could leak: logs, metrics, spans, commands, subjects, files, rows."""

import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import nats
from nats.aio.msg import Msg

from tests.collector import Collector
from tests.e2e.api import PATIENCE_S
from tests.e2e.stack import Stack

FOUND_BYTES_MIN = 12  # of the secret: shorter pieces may occur by chance
LOOK = """
import sys
from cli.main import main
for line in ("status", "tenant list", "key list", "quota list", "model list", "usage show", "audit list", "fleet"):
    try:
        main(line.split())
    except SystemExit as end:
        assert not end.code, line
"""


def shows(data: bytes, secret: str) -> bool:
    """Whether any long enough piece of the secret stands in `data`."""
    pieces = (secret[begin : begin + FOUND_BYTES_MIN] for begin in range(0, len(secret) - FOUND_BYTES_MIN + 1, 4))
    return any(piece.encode() in data for piece in pieces)


def logs(stack: Stack) -> list[Path]:
    return [path for path in stack.directory.logs.rglob("*") if path.is_file()]


def kept_by_nats(stack: Stack) -> list[Path]:
    """All files that NATS has on disk."""
    return [path for path in stack.directory.nats.rglob("*") if path.is_file()]


def rows_with(stack: Stack, secrets: list[str]) -> list[str]:
    """The tables in which a row, as text, shows one of the secrets."""
    names = [row["name"] for row in stack.query("SELECT tablename AS name FROM pg_tables WHERE schemaname = 'public'")]
    assert {"audit_log", "api_keys", "idempotent_answers"} <= set(names)
    pieces = [secret[:FOUND_BYTES_MIN] for secret in secrets]
    wanted = [piece for text in pieces for piece in (text, text.encode().hex())]
    where = " OR ".join(f"position('{piece}' in t::text) > 0" for piece in wanted)
    tables = [f"SELECT '{name}' AS name WHERE EXISTS (SELECT 1 FROM \"{name}\" t WHERE {where})" for name in names]
    return [row["name"] for row in stack.query(" UNION ALL ".join(tables))]


def watched(stack: Stack, collector: Collector) -> dict[str, bytes]:
    """Everything that an operator can look at, by name: logs, metrics, the output of commands, spans."""
    found = {path.name: path.read_bytes() for path in logs(stack)}
    for url in (*stack.ops_metrics_urls, *stack.worker_metrics_urls):
        found[url] = httpx.get(url, trust_env=False, timeout=PATIENCE_S).content
    done = subprocess.run(
        [sys.executable, "-c", LOOK],
        env={**os.environ, **stack.environ},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=2 * PATIENCE_S,
        check=True,
    )
    found["commands"] = done.stdout + done.stderr
    return {**found, "spans": b"\n".join(collector.raw)}


def wait_for_trace(collector: Collector, trace: str, *, spans: int) -> None:
    """Until the collector has so many spans of it."""
    deadline = time.monotonic() + PATIENCE_S
    while len(found := [span.name for span in collector.spans if span.trace == trace]) < spans:
        assert time.monotonic() < deadline, found
        time.sleep(0.02)


@dataclass
class Overheard:
    """What a subscriber to every subject has seen of messages, except their content."""

    subjects: set[str] = field(default_factory=set)
    heads: list[bytes] = field(default_factory=list)


@asynccontextmanager
async def overhearing(stack: Stack) -> AsyncIterator[Overheard]:
    """Subjects (JetStream's advisories included) and headers of everything that is sent meanwhile."""
    heard = Overheard()

    async def hear(message: Msg) -> None:
        heard.subjects.add(message.subject)
        heard.heads.append(repr(message.headers).encode())

    client = await nats.connect(stack.environ["FOREBAY_NATS_URL"])
    try:
        await client.subscribe(">", cb=hear)
        await client.flush()
        yield heard
    finally:
        await client.drain()
