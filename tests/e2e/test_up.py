"""`forebay up` as its user meets it: a second start, a taken port, a restart, fallen processes, outside servers."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.embedded import health, orphans, state
from cli.embedded.directory import DataDirectory
from tests.e2e.api import Api, wait_for
from tests.e2e.conftest import FAKE
from tests.e2e.stack import Stack, forebay, running
from tests.services import free_port

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def mine() -> Iterator[Stack]:
    """A stack that the tests of this file stop, kill and start again; each leaves it running."""
    with running(env=FAKE) as own:
        yield own


def settings(stack: Stack, **more: str) -> dict[str, str]:
    """The environment that starts the same stack again."""
    return {
        **FAKE,
        "FOREBAY_RUNNER": "fake",
        "FOREBAY_DATA_DIR": str(stack.directory.root),
        "FOREBAY_PORT": str(stack.port),
        "FOREBAY_OPS_PORT": str(stack.ops_port),
        "FOREBAY_METRICS_PORT": str(stack.metrics_port),
        **more,
    }


def all_ready(stack: Stack) -> bool:
    return all(health.probe(url).ready for url in (*stack.ready_urls, *stack.worker_ready_urls))


def test_status_names_every_process(stack: Stack) -> None:
    shown = forebay("status", env=stack.environ)
    assert shown.returncode == 0, shown.stdout
    for service in stack.present.services:
        assert service.name in shown.stdout
        assert str(service.mark.pid) in shown.stdout


def test_demo_env_is_private_and_complete(stack: Stack) -> None:
    assert stack.directory.demo_env.stat().st_mode & 0o777 == 0o600
    assert set(stack.environ) - {"FOREBAY_DATA_DIR"} == {
        "OPENAI_BASE_URL",
        "OPENAI_API_KEY",
        "FOREBAY_HOBBY_KEY",
        "FOREBAY_ADMIN_KEY",
        "FOREBAY_POSTGRES_URL",
        "FOREBAY_NATS_URL",
    }


def test_gateways_own_nothing_in_the_database(stack: Stack) -> None:
    """All that the other tests here ask of them they do without: only operators' commands are the owner."""
    sql = "SELECT DISTINCT usename FROM pg_stat_activity WHERE application_name = 'forebay'"
    # A session of an operator's command, which has ended, may be there a moment longer.
    wait_for(lambda: [row["usename"] for row in stack.query(sql)] == ["forebay_gateway"], what="gateways alone")


def test_the_demo_tenants_have_their_limits(stack: Stack) -> None:
    sql = (
        "SELECT t.name, p.tier, q.metric, q.allowed FROM tenants t JOIN plans p ON p.id = t.plan_id"
        " JOIN quotas q ON q.tenant_id = t.id WHERE t.name IN ('acme', 'hobby')"
    )
    found = {(row["name"], row["tier"], row["metric"], row["allowed"]) for row in stack.query(sql)}
    assert found == {
        ("acme", 0, "rpm", 6_000),
        ("acme", 0, "tpm", 2_000_000),
        ("hobby", 2, "rpm", 120),
        ("hobby", 2, "tpm", 20_000),
    }


def test_a_second_up_on_one_directory_is_refused_in_words(stack: Stack) -> None:
    for flags in ([], ["--detach"]):
        second = forebay("up", *flags, env=settings(stack))
        assert second.returncode == 1
        assert f"already running on {stack.directory.root}" in second.stderr
        assert "Traceback" not in second.stderr
    Api(stack.base_urls[0], stack.acme_key).probe()


def test_a_taken_port_is_named_before_anything_starts(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        started = forebay("up", "--data-dir", str(tmp_path / "data"), "--port", str(port))
    assert started.returncode == 1
    assert f"port {port}, meant for gateway 0, is taken" in started.stderr
    assert not (tmp_path / "data" / "postgres").exists()


def test_a_damaged_model_stops_the_start_with_its_sentence(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF")
    env = {
        "FOREBAY_PORT": str(free_port()),
        "FOREBAY_OPS_PORT": str(free_port()),
        "FOREBAY_METRICS_PORT": str(free_port()),
    }
    started = forebay("up", "--data-dir", str(tmp_path / "data"), "--model", str(broken), env=env)
    assert started.returncode == 1
    assert "worker-0 ended with status 1" in started.stderr
    assert str(broken) in started.stderr


def test_whatever_falls_is_started_again_and_requests_pass(mine: Stack) -> None:
    api = Api(mine.base_urls[0], mine.acme_key)
    for name in ("nats", "postgres", "worker-0", "gateway-0"):
        before = mine.service(name)
        os.kill(before.mark.pid, signal.SIGKILL)
        wait_for(lambda was=before: mine.service(was.name).mark != was.mark, what=f"{name} started again")
        assert mine.service(name).restarts == before.restarts + 1
        wait_for(lambda: all_ready(mine), seconds=60, what="all ready")
        api.probe()


def test_state_survives_a_restart_and_a_shell_that_sourced_demo_env(mine: Stack) -> None:
    answer = Api(mine.base_urls[0], mine.acme_key).chat(max_tokens=5, ignore_eos=True)
    request = answer.headers["x-request-id"]
    wait_for(lambda: len(mine.usage(request)) == 1, what="the usage row")
    before = mine.environ
    assert forebay("down", env=settings(mine)).returncode == 0
    again = forebay("up", "--detach", env={**before, **settings(mine)}, seconds_max=240)
    assert again.returncode == 0, again.stderr
    assert mine.environ == before
    assert {service.name for service in mine.present.services} >= {"postgres", "nats"}
    assert len(mine.usage(request)) == 1
    Api(mine.base_urls[0], before["OPENAI_API_KEY"]).probe()


def test_a_killed_supervisor_s_leftovers_are_stopped_by_the_next_up(mine: Stack) -> None:
    left = mine.present
    os.kill(left.supervisor.pid, signal.SIGKILL)
    wait_for(lambda: left.supervisor.find() is None, what="the supervisor is gone")
    assert len(orphans.alive(left)) == 4
    again = forebay("up", "--detach", env=settings(mine), seconds_max=240)
    assert again.returncode == 0, again.stderr
    assert "left by an `up` that was killed" in again.stdout
    assert orphans.alive(left) == []
    Api(mine.base_urls[0], mine.acme_key).probe()


def test_servers_from_outside_replace_the_embedded_ones(stack: Stack, tmp_path: Path) -> None:
    outside = {name: stack.environ[name] for name in ("FOREBAY_POSTGRES_URL", "FOREBAY_NATS_URL")}
    with running(env={**FAKE, **outside}) as second:
        assert {service.name for service in second.present.services} == {"gateway-0", "worker-0"}
        Api(second.base_urls[0], second.acme_key).probe()
        Api(second.base_urls[0], stack.hobby_key).probe()


def test_ctrl_c_stops_every_process(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path / "data")
    ports = {"FOREBAY_PORT": free_port(), "FOREBAY_OPS_PORT": free_port(), "FOREBAY_METRICS_PORT": free_port()}
    env = {**os.environ, **FAKE, **{name: str(port) for name, port in ports.items()}, "FOREBAY_RUNNER": "fake"}
    argv = [sys.executable, "-m", "cli.main", "up", "--data-dir", str(directory.root)]
    process = subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        wait_for(lambda: _phase(directory) == "ready", seconds=240, what="ready")
        present = state.load(directory.state_file)
        assert present is not None
        marks = [service.mark for service in present.services]
        assert len({os.getpgid(mark.pid) for mark in marks}) == len(marks)
        os.killpg(process.pid, signal.SIGINT)  # what a terminal does
        output, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 0
    assert [line for line in output.splitlines() if line.startswith("stop")] == [
        "stopping gateway-0",
        "stopping postgres",
        "stopping worker-0",
        "stopping nats",
        "stopped",
    ]
    assert not any(mark.find() for mark in marks)


def _phase(directory: DataDirectory) -> str | None:
    present = state.load(directory.state_file)
    return present.phase if present else None
