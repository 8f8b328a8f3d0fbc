"""Which processes make up the stack, with their ports, environments and addresses. Starts nothing.

Invariant: no two processes are given one port, and each gets the NATS user of its own role only.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass

from cli.embedded import nats, ports, postgres
from cli.embedded.child import Child
from cli.embedded.directory import DataDirectory, Secrets
from cli.embedded.settings import UpSettings
from cli.errors import PortTaken

KILL_MARGIN_S = 10.0  # beyond the drain time, before a process is killed


@dataclass(frozen=True, slots=True)
class Urls:
    """The servers' addresses. Outside servers have the same for all roles, the embedded ones have a user per role."""

    postgres: str  # as the owner of the database
    gateway_postgres: str
    nats: Mapping[str, str]  # by role


def is_ours(url: str, secrets: Secrets) -> bool:
    """Whether an address is of this directory's own server, as it is in a shell that sourced demo.env."""
    return any(password in url for password in (secrets.forebay, *secrets.nats.values()))


def postgres_urls(secrets: Secrets, port: int) -> tuple[str, str, str]:
    """The superuser's (for the first set-up), the owner's and the gateways'."""
    return (
        postgres.url(postgres.SUPERUSER, secrets.postgres, port, "postgres"),
        postgres.url(postgres.OWNER, secrets.forebay, port, postgres.DATABASE),
        postgres.url(postgres.GATEWAY, secrets.gateway, port, postgres.DATABASE),
    )


def nats_urls(secrets: Secrets, port: int) -> dict[str, str]:
    return {role: nats.url(role, secrets, port) for role in nats.ROLES}


def command(name: str) -> list[str]:
    # -P keeps the caller's working directory, which may contain a folder named `worker`, out of the import path.
    return [sys.executable, "-P", "-m", "cli.main", name]


def gateways(settings: UpSettings, directory: DataDirectory, environ: Mapping[str, str], urls: Urls) -> list[Child]:
    return [
        Child(
            name=f"gateway-{index}",
            argv=command("gateway"),
            env={
                **environ,
                "FOREBAY_HOST": settings.host,
                "FOREBAY_PORT": str(settings.gateway_port(index)),
                "FOREBAY_OPS_PORT": str(settings.gateway_ops_port(index)),
                "FOREBAY_POSTGRES_URL": urls.gateway_postgres,
                "FOREBAY_NATS_URL": urls.nats["gateway"],
                "FOREBAY_DRAIN_S": str(settings.drain_s),
            },
            log=directory.logs / f"gateway-{index}.log",
            address=f"http://{settings.host}:{settings.gateway_port(index)}/v1",
            health=f"http://{ports.LOOPBACK}:{settings.gateway_ops_port(index)}/healthz/ready",
            grace_s=settings.drain_s + KILL_MARGIN_S,
        )
        for index in range(settings.gateways)
    ]


def workers(
    settings: UpSettings, directory: DataDirectory, environ: Mapping[str, str], nats_urls: Mapping[str, str]
) -> list[Child]:
    own = {name: value for name, value in environ.items() if name != "FOREBAY_POSTGRES_URL"}
    return [
        Child(
            name=f"worker-{index}",
            argv=command("worker"),
            env={
                **own,
                "FOREBAY_METRICS_PORT": str(settings.worker_metrics_port(index)),
                "FOREBAY_NATS_URL": nats_urls["worker"],
                "FOREBAY_DRAIN_S": str(settings.drain_s),
            },
            log=directory.logs / f"worker-{index}.log",
            address=f"http://{ports.LOOPBACK}:{settings.worker_metrics_port(index)}/metrics",
            health=f"http://{ports.LOOPBACK}:{settings.worker_metrics_port(index)}/healthz/ready",
            grace_s=settings.drain_s + KILL_MARGIN_S,
        )
        for index in range(settings.workers)
    ]


def claims(settings: UpSettings) -> list[tuple[int, str, str]]:
    """(port, its user, the option that moves it) for every port that people rely on."""
    found = [(settings.gateway_port(i), f"gateway {i}", "--port") for i in range(settings.gateways)]
    found += [(settings.gateway_ops_port(i), f"gateway {i}'s metrics", "--ops-port") for i in range(settings.gateways)]
    found += [
        (settings.worker_metrics_port(j), f"worker {j}'s metrics", "--metrics-port") for j in range(settings.workers)
    ]
    return found


def check_ports(settings: UpSettings) -> None:
    """Raises PortTaken with the port, its user and what to do."""
    wanted: dict[int, str] = {}
    for port, who, option in claims(settings):
        if port in wanted:
            raise PortTaken(f"port {port} is meant for {wanted[port]} and for {who}: choose another {option}")
        if port > 65_535 or not ports.is_free(port, settings.host if option == "--port" else ports.LOOPBACK):
            raise PortTaken(
                f"port {port}, meant for {who}, is taken: stop what listens there, or choose another {option}"
            )
        wanted[port] = who
