"""The parts of a gateway process: builds them, starts them in order, stops them in reverse, and checks their health.

Wiring only. There are two layers, because the HTTP server stands between them: it starts after storage and stops after
traffic has ended, so that a request that a shutdown cuts off still gets its error event and its settlement.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

from sqlalchemy.exc import SQLAlchemyError

from gateway.admission.admission import Admission
from gateway.admission.pg_limiter import PgLimiter
from gateway.admission.prices import PriceBook
from gateway.admission.served_models import ServedModels
from gateway.api.gate import Gate
from gateway.api.services import Services
from gateway.auth.principals import Principals
from gateway.auth.uses import KeyUses
from gateway.db import engine, migrate, pools, queries
from gateway.dispatch.dispatcher import Dispatcher
from gateway.errors import Unavailable
from gateway.ledger.consumer import Ledger
from gateway.ledger.counters import Counters
from gateway.metrics import Metrics
from gateway.ops import Check, Impaired
from gateway.settings import GatewaySettings
from shared import log, tasks, wire
from shared.trace import Tracer

logger = log.get("gateway")

ENCODE_THREADS = 2
LIMITER_CONNECTIONS_MAX = 8
LEDGER_CONNECTIONS_MAX = 2
ADMIN_CONNECTIONS_MAX = 2
CLOCK_SKEW_S_MAX = 60.0
CHECK_TIMEOUT_S = 1.0

_FAULTS = (SQLAlchemyError, *pools.AWAY)


class Gateway:
    """Nothing is opened before `storage` and `traffic` are entered, in this order."""

    def __init__(self, settings: GatewaySettings, name: str, tracer: Tracer) -> None:
        self._settings = settings
        self._url = settings.postgres_url.reveal()
        self._schema_checked = False
        self._threads = ThreadPoolExecutor(ENCODE_THREADS, thread_name_prefix="encode")
        serves = not settings.postgres_pooler
        self._engine = engine.create(self._url, serves=serves)
        self._hot = self._pool(LIMITER_CONNECTIONS_MAX)
        self._cold = self._pool(LEDGER_CONNECTIONS_MAX)
        self._administration = engine.create(self._url, connections_max=ADMIN_CONNECTIONS_MAX, serves=serves)
        self._uses = KeyUses(self._engine)
        self._prices = PriceBook(self._engine)
        self._principals = Principals(self._engine, on_use=self._uses.note, on_change=self._prices.changed)
        self._limiter = PgLimiter(self._hot, gateway_id=name, budget_grace_s=settings.budget_grace_s)
        self._served_models = ServedModels(self._register, self._threads)
        self._dispatcher = Dispatcher(
            settings.nats_url.reveal(), on_card=self._served_models.add, gateway_id=name, tracer=tracer
        )
        self._ledger = Ledger(self._dispatcher.bus, self._cold)
        self._counters = Counters(self._cold, self._dispatcher.fleet.last_beats)
        self._metrics = Metrics()
        self.services = Services(
            settings=settings,
            principals=self._principals,
            database=self._administration,
            served_models=self._served_models,
            admission=self._admission(name),
            dispatcher=self._dispatcher,
            gate=Gate(settings.requests_open_max, closed=True),
            metrics=self._metrics,
            tracer=tracer,
        )
        self._metrics.watch_workers(self._dispatcher.fleet.states)
        self._metrics.watch_ledger(self._ledger)
        self._metrics.watch_usage(self._dispatcher.usage)
        self._metrics.watch_limiter(
            in_grace=lambda: self._limiter.in_grace, settlements_dropped=lambda: self._limiter.settlements_dropped_total
        )
        self._metrics.watch_tracer(tracer)

    @asynccontextmanager
    async def storage(self) -> AsyncGenerator[None]:
        """Postgres: keys, limits. Raises SchemaError for a schema that is not ours; waits for no server."""
        try:
            await self._check_schema()
        except _FAULTS as error:
            logger.warning("postgres.away", error=repr(error))
        try:
            async with self._hot, self._cold, self._uses, self._principals, self._prices, self._limiter:
                yield
        finally:
            await self._engine.dispose()
            await self._administration.dispose()
            self._threads.shutdown(wait=False, cancel_futures=True)

    @asynccontextmanager
    async def traffic(self) -> AsyncGenerator[None]:
        """NATS: jobs and usage. The gate is open inside; leaving ends what still runs with an error of its own."""
        async with self._dispatcher:
            background = [asyncio.create_task(tasks.keep(self._counters.run, "counters"))]
            if self._settings.ledger:
                background.append(asyncio.create_task(tasks.keep(self._ledger.run, "ledger")))
            self.services.gate.closed = False
            try:
                yield
            finally:
                self.services.gate.closed = True
                await tasks.stop(background)

    def checks(self) -> Mapping[str, Check]:
        """The checks of `/healthz/ready`, by name."""
        return {
            "gate": self._check_gate,
            "schema": self._check_schema,
            "postgres": self._check_postgres,
            "nats": self._dispatcher.ready,
            "worker": self._check_worker,
        }

    def _pool(self, connections_max: int) -> "pools.asyncpg.Pool":
        return pools.create(self._url, connections_max=connections_max, pooler=self._settings.postgres_pooler)

    def _admission(self, name: str) -> Admission:
        return Admission(
            self._served_models,
            self._dispatcher.fleet,
            self._limiter,
            self._prices,
            self._metrics,
            gateway_id=name,
            default_output=self._settings.default_output,
            run_s=self._settings.run_s,
        )

    async def _register(self, card: wire.ModelCard, digest: str) -> str:
        try:
            row = await queries.register_model(
                self._engine,
                card.name,
                context_length=card.context_length,
                vocab_size=card.vocab_size,
                card=digest,
            )
        except _FAULTS as error:
            raise Unavailable("Postgres cannot be reached.") from error
        return str(row)

    async def _check_gate(self) -> None:
        if self.services.gate.closed:
            raise Unavailable("starting or draining")

    async def _check_schema(self) -> None:
        """Once it has been ours it stays ours: later revisions keep what running programs need."""
        if not self._schema_checked:
            await migrate.check(self._url)
            self._schema_checked = True

    async def _check_postgres(self) -> None:
        statement = "SELECT extract(epoch FROM clock_timestamp())::float8"
        try:
            [row] = await pools.fetch(self._hot, statement, timeout_s=CHECK_TIMEOUT_S)
        except pools.AWAY as error:
            if self._serves_without_postgres(error):
                raise Impaired(f"away: {str(error) or type(error).__name__}") from error
            raise
        skew_s = abs(float(row[0]) - time.time())
        if skew_s > CLOCK_SKEW_S_MAX:
            raise Unavailable(f"the clocks of this machine and of Postgres differ by {skew_s:.0f} s")

    def _serves_without_postgres(self, error: Exception) -> bool:
        """A server that refuses is known to be away at the next request, one that is silent only after a while."""
        noticed = self._limiter.in_grace or not isinstance(error, TimeoutError)
        return noticed and self._principals.serve_some(self._limiter.may_grant)

    async def _check_worker(self) -> None:
        if not any(self._served_models.get(model.digest) for model in self._dispatcher.fleet.models()):
            raise Unavailable("no worker is ready")
