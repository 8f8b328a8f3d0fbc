"""`forebay gateway`: one HTTP gateway, with a ledger inside unless told otherwise."""

import os

from cli.embedded.settings import environment
from cli.errors import CommandError
from cli.whole import Count
from shared.settings import load


def gateway(
    *,
    host: str | None = None,
    port: Count = None,
    ops_host: str | None = None,
    ops_port: Count = None,
    postgres_url: str | None = None,
    nats_url: str | None = None,
    drain_s: float | None = None,
    log_level: str | None = None,
) -> None:
    """Serve the API until SIGTERM, then let open requests finish.

    Every option can also be given in the environment (`--ops-port` as FOREBAY_OPS_PORT, and so on); settings without
    an option, such as FOREBAY_RUN_S, only there.

    Parameters
    ----------
    host
        The address to listen on for clients. [default: 127.0.0.1]
    port
        The port for clients. [default: 8080]
    ops_host
        The address to listen on for operators. [default: 127.0.0.1]
    ops_port
        The port for metrics and health. [default: 9100]
    postgres_url
        Where Postgres is. [required here or in the environment]
    nats_url
        Where NATS is, with the gateway's user and password. [required here or in the environment]
    drain_s
        How long open requests may take to finish after SIGTERM. [default: 30]
    log_level
        debug, info, warning or error. [default: info]
    """
    from gateway import app
    from gateway.db.migrate import SchemaError
    from gateway.settings import GatewaySettings

    options = {
        "host": host,
        "port": port,
        "ops_host": ops_host,
        "ops_port": ops_port,
        "postgres_url": postgres_url,
        "nats_url": nats_url,
        "drain_s": drain_s,
        "log_level": log_level,
    }
    try:
        app.serve(load(GatewaySettings, environment(os.environ, options)))
    except SchemaError as error:
        raise CommandError(str(error)) from error
    except OSError as error:
        raise CommandError(f"the gateway cannot listen: {error}") from error
