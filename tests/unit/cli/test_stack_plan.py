"""Which processes `up` starts, where, and with what."""

import socket
from pathlib import Path

import pytest

from cli.embedded import demo, nats, stack
from cli.embedded.directory import DataDirectory, Secrets
from cli.embedded.settings import UpSettings, environment, from_environment
from cli.embedded.stack import Urls
from cli.errors import PortTaken
from shared.settings import SettingsError
from tests.services import free_port

URLS = Urls(
    postgres="postgresql://forebay:pw@127.0.0.1:1/forebay",
    gateway_postgres="postgresql://forebay_gateway:pw@127.0.0.1:1/forebay",
    nats={role: f"nats://{role}:x@h:1" for role in nats.ROLES},
)
SECRETS = Secrets(postgres="super", forebay="owner-pw", nats={role: f"{role}-pw" for role in nats.ROLES})


def test_ports_are_counted_up_as_documented(tmp_path: Path) -> None:
    settings = UpSettings(gateways=2, workers=2)
    directory = DataDirectory(tmp_path)
    gateways = stack.gateways(settings, directory, {}, URLS)
    workers = stack.workers(settings, directory, {}, URLS.nats)
    assert [(child.env["FOREBAY_PORT"], child.env["FOREBAY_OPS_PORT"]) for child in gateways] == [
        ("8080", "9100"),
        ("8081", "9200"),
    ]
    assert [child.env["FOREBAY_METRICS_PORT"] for child in workers] == ["9101", "9102"]


def test_each_program_gets_its_own_role_and_no_more(tmp_path: Path) -> None:
    outside = {"FOREBAY_POSTGRES_URL": "postgresql://somewhere", "FOREBAY_DTYPE": "fp32"}
    directory = DataDirectory(tmp_path)
    (gateway,) = stack.gateways(UpSettings(), directory, outside, URLS)
    (worker,) = stack.workers(UpSettings(), directory, outside, URLS.nats)
    assert gateway.env["FOREBAY_NATS_URL"] == URLS.nats["gateway"]
    assert gateway.env["FOREBAY_POSTGRES_URL"] == URLS.gateway_postgres
    assert worker.env["FOREBAY_NATS_URL"] == URLS.nats["worker"]
    assert "FOREBAY_POSTGRES_URL" not in worker.env
    assert worker.env["FOREBAY_DTYPE"] == "fp32"


def test_a_taken_port_is_named_with_who_needs_it_and_what_to_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        settings = UpSettings(port=free_port(), ops_port=port, metrics_port=free_port())
        with pytest.raises(PortTaken, match=rf"{port}, meant for gateway 0's metrics, is taken.*--ops-port"):
            stack.check_ports(settings)


def test_ports_that_collide_with_each_other_are_refused() -> None:
    port = free_port()
    with pytest.raises(PortTaken, match="is meant for gateway 0 and for worker 0's metrics"):
        stack.check_ports(UpSettings(port=port, ops_port=free_port(), metrics_port=port))


def test_demo_env_survives_a_shell_and_a_second_start_knows_its_own_urls(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path)
    urls = Urls(*stack.postgres_urls(SECRETS, 5)[1:], nats=stack.nats_urls(SECRETS, 6))
    demo.write(directory, UpSettings(port=8123), urls, {"acme": "a'b", "hobby": "h", "admin": "x"})
    found = demo.read(directory)
    assert found["OPENAI_BASE_URL"] == "http://127.0.0.1:8123/v1"
    assert found["OPENAI_API_KEY"] == "a'b"
    assert stack.is_ours(found["FOREBAY_POSTGRES_URL"], SECRETS)
    assert stack.is_ours(found["FOREBAY_NATS_URL"], SECRETS)
    assert not stack.is_ours("postgresql://forebay:other@db/forebay", SECRETS)


def test_options_win_over_the_environment_and_bad_ones_are_named() -> None:
    environ = environment({"FOREBAY_GATEWAYS": "3", "FOREBAY_PORT": "1"}, {"port": 2, "workers": None})
    settings = from_environment(environ)
    assert (settings.gateways, settings.port, settings.workers) == (3, 2, 1)
    with pytest.raises(SettingsError, match="FOREBAY_GATEWAYS"):
        from_environment({"FOREBAY_GATEWAYS": "0"})
