"""The command line itself: what it imports, and how it says no."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cli import main

COMMANDS = [
    "up",
    "status",
    "down",
    "gateway",
    "worker",
    "ledger",
    "migrate",
    "tenant",
    "plan",
    "key",
    "quota",
    "model",
    "fleet",
    "audit",
    "usage",
    "chat",
    "doctor",
]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    main.app([command, "--help"], result_action="return_value")
    assert f"Usage: forebay {command}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("command", "opposite", "offered"),
    [
        ("key list", "--no-json", False),
        ("key create", "--empty-model", False),
        ("tenant create", "--no-ignore-unknown-fields", False),
        ("tenant update", "--no-ignore-unknown-fields", True),  # left out, it stays as it was
    ],
)
def test_a_flag_has_an_opposite_only_where_leaving_it_out_means_a_third_thing(
    command: str, opposite: str, offered: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    main.app([*command.split(), "--help"], result_action="return_value")
    assert (opposite in capsys.readouterr().out) == offered


@pytest.mark.parametrize(
    ("program", "never"),
    [
        ("cli.main, cli.worker, worker.app", "litestar sqlalchemy torch"),
        ("cli.main, cli.gateway, gateway.app", "torch triton"),
        ("cli.main, cli.up, gateway.db.migrate, gateway.db.seed", "nats litestar torch"),
    ],
)
def test_a_program_starts_without_the_other_one_s_libraries(program: str, never: str) -> None:
    check = f"import sys, {program}; print([name for name in {never.split()} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["status"], "nothing is running on"),
        (["down"], "nothing is running on"),
        (["chat", "hi"], "OPENAI_BASE_URL and OPENAI_API_KEY are not set"),
        (["chat", "hi", "--base-url", "http://127.0.0.1:9/v1", "--key", "k"], "no gateway at http://127.0.0.1:9/v1"),
        (["fleet"], "OPENAI_BASE_URL and FOREBAY_ADMIN_KEY are not set"),
        (["fleet", "--base-url", "http://127.0.0.1:9/v1", "--key", "k"], "no gateway at http://127.0.0.1:9"),
        (["fleet", "--base-url", "http://host:port/v1", "--key", "k"], "no gateway at http://host:port"),
        (["chat", "hi", "--base-url", "http://[::1/v1", "--key", "k"], "no gateway at http://[::1/v1"),
        (["chat", "hi", "--base-url", "http://127.0.0.1:9/v1", "--key", "a\nb"], "that is no API key"),
        (["chat", "hi", "--base-url", "127.0.0.1:9/v1", "--key", "k"], "begins with http:// or https://"),
        (["chat", "hi", "--base-url", "http://127.0.0.1:9/v1", "--key", "k"], "/v1: Connection refused"),
        (["status", "--data-dir", "/dev/null/x"], "nothing is running on"),
        (["gateway", "--postgres-url", "p", "--nats-url", "n", "--log-level", "loud"], "FOREBAY_LOG_LEVEL"),
        (["tenant", "list"], "FOREBAY_POSTGRES_URL is not set: source the demo.env"),
        (["worker"], "FOREBAY_NATS_URL is not set"),
        (["gateway"], "FOREBAY_POSTGRES_URL is not set"),
        (["up", "--gateways", "0"], "FOREBAY_GATEWAYS"),
    ],
)
def test_an_expected_fault_is_one_sentence(
    arguments: list[str],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in [name for name in os.environ if name.startswith(("FOREBAY_", "OPENAI_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("FOREBAY_DATA_DIR", str(tmp_path))
    with pytest.raises(SystemExit) as ended:
        main.main(arguments)
    assert ended.value.code == 1
    message = capsys.readouterr().err
    assert words in message
    assert len(message.splitlines()) == 1


@pytest.mark.parametrize(
    "url",
    [
        "nonsense",
        "postgresql://user:hunter2@host:port/name",
        "postgresql://user:hunter2@host:5432,other:port/name",
        "mysql://user:hunter2@host/name",
    ],
)
@pytest.mark.parametrize("command", ["tenant list", "migrate", "ledger", "gateway", "usage export --month 2026-11"])
def test_a_url_that_is_none_is_told_without_its_password(
    url: str, command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FOREBAY_POSTGRES_URL", url)
    monkeypatch.setenv("FOREBAY_NATS_URL", "nats://127.0.0.1:1")
    with pytest.raises(SystemExit) as ended:
        main.main(command.split())
    assert ended.value.code == 1
    message = capsys.readouterr().err
    assert "FOREBAY_POSTGRES_URL is not of the form" in message
    assert "hunter2" not in message


def test_so_is_one_of_nats(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("FOREBAY_POSTGRES_URL", "postgresql://nobody@127.0.0.1:1/nothing")
    monkeypatch.setenv("FOREBAY_NATS_URL", "garbage:hunter2@host")
    with pytest.raises(SystemExit) as ended:
        main.main(["gateway"])
    assert ended.value.code == 1
    message = capsys.readouterr().err
    assert message.startswith("forebay: FOREBAY_NATS_URL is not of the form")
    assert "hunter2" not in message


PRINTS = "import sys; from cli import main; main.app = lambda _: print('row') or {}; main.main([])"


@pytest.mark.parametrize(("ends", "status"), [("0", 0), ("sys.exit(3)", 3)])
def test_whoever_has_read_enough_gets_no_fault_and_what_the_command_found(ends: str, status: int) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-c", PRINTS.format(ends)],
        stdout=writing,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": ""},  # a row that cannot be written at once ends the command there
        timeout=60,
        check=False,
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (status, b"")
