"""The application and the process that serves it. Wiring only; the parts come from `gateway.lifespan`.

One process, one event loop: granian's server runs inside ours, so that we decide the order of starting and stopping.
"""

import asyncio
import errno
import gc
import os
import signal
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import uvloop
from granian.constants import HTTPModes, Interfaces
from granian.http import HTTP1Settings
from granian.server.embed import Server
from litestar import Litestar
from litestar.di import Provide
from litestar.exceptions import HTTPException

from gateway.api import chat, completions, errors, models, requestid
from gateway.api.admin.routes import ROUTES as ADMIN_ROUTES
from gateway.api.front import Front
from gateway.api.openapi import routes as openapi
from gateway.api.services import Services
from gateway.errors import GatewayError
from gateway.lifespan import Gateway
from gateway.ops import OpsServer
from gateway.settings import GatewaySettings
from shared import ids, log
from shared.trace import Tracer, tracing

logger = log.get("gateway")

BACKLOG = 2_048
PROBE_S = 0.005
START_S = 30.0  # a machine that stands still for seconds is no reason not to start
LEAVE_S = 5.0  # for connections to close once all requests have ended
_NOT_HERE = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)  # as ::1 of a localhost where IPv6 is off
COLLECT_EVERY = (20_000, 50, 100)  # thresholds of the garbage collector's three generations


def create_app(services: Services) -> Litestar:
    """The Litestar application. Opens and closes nothing itself."""
    services.metrics.requests_open.set_function(lambda: services.gate.taken)
    return Litestar(
        route_handlers=[
            chat.create_chat_completion,
            completions.create_completion,
            models.list_models,
            models.get_model,
            *ADMIN_ROUTES,
            *(openapi.routes(ADMIN_ROUTES) if services.settings.openapi else ()),
        ],
        dependencies={"services": Provide(lambda: services, sync_to_thread=False)},
        exception_handlers={
            GatewayError: errors.on_gateway_error,
            HTTPException: errors.on_http_error,
            Exception: errors.on_unexpected,
        },
        before_send=[requestid.add_header],
        openapi_config=None,
        logging_config=None,
    )


def serve(settings: GatewaySettings) -> None:
    """Run a gateway until SIGTERM or SIGINT, then drain. Raises SchemaError, SettingsError and, for a port that is
    taken, OSError.
    """
    name = ids.process_id("gw")
    log.configure(level=settings.log_level, service="gateway", gateway=name)
    # `tokenizers` reads this at each call. Its threads spin while they wait, which one short prompt is not worth.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    with tracing(os.environ, service="forebay-gateway", instance=name) as tracer:
        uvloop.run(_serve(settings, name, tracer))


async def _serve(settings: GatewaySettings, name: str, tracer: Tracer) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    gateway = Gateway(settings, name, tracer)
    gate = gateway.services.gate
    ops = OpsServer(gateway.services.metrics.exposition, gateway.checks())
    async with (
        ops.listening(settings.ops_host, settings.ops_port),
        gateway.storage(),
        listening(gateway.services, host=settings.host, port=settings.port) as server,
        gateway.traffic(),
    ):
        _tune_garbage_collector()
        logger.info("gateway.started", host=settings.host, port=settings.port, ops_port=settings.ops_port)
        stopped = asyncio.create_task(stop.wait())
        await asyncio.wait({server, stopped}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        logger.info("gateway.draining", requests=gate.taken)
        if not await gate.drain(settings.drain_s):
            logger.warning("gateway.cut_off", requests=gate.taken)


def _tune_garbage_collector() -> None:
    """Exempt everything that exists now from garbage collection, and collect the rest less often: requests leave few
    cycles behind, and searching for them took a seventh of the gateway's time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECT_EVERY)


@asynccontextmanager
async def listening(services: Services, *, host: str, port: int) -> AsyncGenerator["asyncio.Task[None]"]:
    """Serve HTTP on (host, port) in this event loop; the task ends only when the server does. Raises OSError."""
    address = _free_address(host, port)
    server = Server(
        Front(services, create_app(services)),
        address=address,
        port=port,
        interface=Interfaces.ASGINL,
        http=HTTPModes.http1,
        http1_settings=HTTP1Settings(header_read_timeout=round(services.settings.idle_s * 1_000)),
        websockets=False,
        backlog=BACKLOG,
        backpressure=services.settings.requests_open_max * 2,  # the gate refuses; the server must not queue before it
        log_enabled=False,
    )
    task = asyncio.create_task(server.serve())
    try:
        await _answers(address, port)
        yield task
    finally:
        server.stop()
        done, _ = await asyncio.wait({task}, timeout=LEAVE_S)
        if not done:
            task.cancel()
            await asyncio.wait({task})


def _free_address(host: str, port: int) -> str:
    """The first of the host's addresses that this machine has: the server takes no names, and would share the port
    with another one that listens on it. Raises OSError.
    """
    fault: OSError | None = None
    for family, _, _, _, where in socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM):
        try:
            socket.create_server((where[0], port), family=family).close()
        except OSError as error:
            if error.errno not in _NOT_HERE:
                raise
            fault = fault or error
        else:
            return str(where[0])
    raise fault or OSError(f"{host} has no address")


async def _answers(host: str, port: int) -> None:
    """Wait until the server accepts connections."""
    async with asyncio.timeout(START_S):
        while True:
            try:
                _, writer = await asyncio.open_connection(host, port)
            except OSError:
                await asyncio.sleep(PROBE_S)
                continue
            writer.close()
            return
