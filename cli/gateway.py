"""`forebay gateway`: one HTTP gateway, with a ledger inside unless told otherwise."""

import os
from dataclasses import dataclass

from cyclopts import Parameter

from cli.embedded.settings import environment
from cli.errors import CommandError
from cli.whole_numbers import Count
from shared.settings import load


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Options:
    """What is None is taken from the environment, else the default that is named here.

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

    host: str | None = None
    port: Count = None
    ops_host: str | None = None
    ops_port: Count = None
    postgres_url: str | None = None
    nats_url: str | None = None
    drain_s: float | None = None
    log_level: str | None = None


NOTHING = Options()


def gateway(options: Options = NOTHING) -> None:
    """Serve the API until SIGTERM, then let open requests finish.

    Every option can also be given in the environment (`--ops-port` as FOREBAY_OPS_PORT, and so on); settings without
    an option, such as FOREBAY_RUN_S, only there.

    Parameters
    ----------
    options
        What is set for this process.
    """
    from gateway import app
    from gateway.db.migrate import SchemaError
    from gateway.settings import GatewaySettings

    try:
        app.serve(load(GatewaySettings, environment(os.environ, vars(options))))
    except SchemaError as error:
        raise CommandError(str(error)) from error
    except OSError as error:
        raise CommandError(f"the gateway cannot listen: {error}") from error
