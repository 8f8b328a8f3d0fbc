"""The gateway's settings: each field is the environment variable `FOREBAY_<NAME>`."""

import msgspec

from gateway import address
from gateway.address import Network
from shared.log import Level
from shared.settings import DrainSeconds, Port, Positive, Seconds, Secret


class GatewaySettings(msgspec.Struct, frozen=True, kw_only=True):
    postgres_url: Secret
    nats_url: Secret
    postgres_pooler: bool = False  # the URL leads to a pooler in transaction mode
    host: str = "127.0.0.1"
    port: Port = 8080
    ops_host: str = "127.0.0.1"
    ops_port: Port = 9100
    log_level: Level = "info"
    trusted_proxies: str = ""  # networks, separated by commas, whose X-Forwarded-For is trusted
    openapi: bool = True  # serve /openapi.json and /docs
    ledger: bool = True  # also write usage events into Postgres in this process

    budget_grace_s: Seconds = 60  # without Postgres: how long requests under a budget are admitted, then 503
    default_output: Positive = 2_048  # max_tokens where the client gives none, cut to the context
    body_bytes_max: Positive = 8 * 1024 * 1024
    body_s: Seconds = 30  # for the client to send its body
    idle_s: Seconds = 75  # between two requests, and for a request's head; longer than a load balancer keeps it
    requests_open_max: Positive = 4_096  # in this process, streams included; more are refused
    run_s: Seconds = 600  # from a request's start on a worker to its end
    keepalive_s: Seconds = 15  # silence after which a stream gets a comment
    stall_s: Seconds = 30  # a client that reads nothing for so long is cut off
    drain_s: DrainSeconds = 30  # for open requests to end after SIGTERM

    def __post_init__(self) -> None:
        address.networks(self.trusted_proxies)

    @property
    def trusted_networks(self) -> tuple[Network, ...]:
        return address.networks(self.trusted_proxies)
