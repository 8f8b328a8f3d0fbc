"""The interfaces between the packages that serve a request, as protocols. Knows neither Postgres nor NATS nor HTTP.

`gateway.lifespan` wires the real implementations, tests wire scripted ones.
"""

import uuid
from collections.abc import Sequence
from ipaddress import IPv4Network, IPv6Network
from typing import Protocol

from gateway.admission.limiter import Limit
from gateway.db.queries import TierBounds
from gateway.dispatch.report import FleetReport
from gateway.dispatch.terms import Terms
from shared import wire


class Principal(Protocol):
    """The caller. Read from a cache, so it may be a second old."""

    @property
    def tenant_id(self) -> uuid.UUID: ...
    @property
    def key_id(self) -> uuid.UUID: ...
    @property
    def public_id(self) -> str: ...
    @property
    def plan_id(self) -> uuid.UUID: ...
    @property
    def tier(self) -> int: ...
    @property
    def tier_bounds(self) -> TierBounds: ...
    @property
    def scopes(self) -> frozenset[str]: ...
    @property
    def models(self) -> frozenset[uuid.UUID] | None:
        """The ids of the models that it may use; None: all."""
        ...

    @property
    def networks(self) -> tuple[IPv4Network | IPv6Network, ...] | None:
        """The networks that its key may be used from; None: all."""
        ...

    @property
    def ignore_unknown_fields(self) -> bool: ...
    @property
    def limits(self) -> tuple[Limit, ...]: ...


class Principals(Protocol):
    async def resolve(self, authorization_values: list[str]) -> Principal:
        """The principal behind all values of the Authorization header. Raises InvalidKey, Forbidden, Unavailable."""
        ...


class ReadyModel(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def digest(self) -> str: ...
    @property
    def pool(self) -> str: ...


class Fleet(Protocol):
    def models(self) -> Sequence[ReadyModel]:
        """The models that have a ready worker, by name."""
        ...

    def find(self, name: str) -> ReadyModel | None: ...


class RequestStream(Protocol):
    """The output of a job that a worker has accepted. Its reader must call `leave`."""

    @property
    def end(self) -> wire.End | None: ...
    @property
    def prompt_tokens(self) -> int: ...
    @property
    def completion_tokens(self) -> int:
        """Over all choices, so far; once the stream has been left, the number that is billed."""
        ...

    async def next(self, chunks_min: int = 1) -> list[wire.Chunk]:
        """Chunks in order, without repeats: about `chunks_min` or more, except at the end; none after the worker's end.
        Raises GatewayError if the answer breaks. Waiting may be cancelled and begun again.
        """
        ...

    async def leave(self) -> None:
        """Cancel unless it has ended, and wait a moment for the worker's counts. Idempotent."""
        ...


class Dispatcher(Protocol):
    @property
    def gateway_id(self) -> str: ...
    @property
    def fleet(self) -> Fleet: ...
    def report(self) -> FleetReport: ...

    def check_load(self, job: wire.Job, pool: str, terms: Terms) -> None:
        """Raise QueueFull or Unavailable if `open` would do so because of load. Changes nothing."""
        ...

    async def open(self, job: wire.Job, *, pool: str, terms: Terms, run_s: float) -> RequestStream:
        """Publish the job and return once a worker has accepted it. Raises GatewayError; the job is then cancelled."""
        ...
