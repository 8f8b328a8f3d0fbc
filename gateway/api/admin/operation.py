"""One operation of the administrators' API: its method, path and types, and the function that carries it out."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.api.services import Services
from gateway.db.audit import Author


@dataclass(slots=True, frozen=True)
class Call:
    """One call while it is served. All its changes are in one transaction of `connection`."""

    connection: AsyncConnection
    author: Author
    path: Mapping[str, str]
    services: Services


class NoQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """No parameters."""


class Deleted(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    deleted: bool = True


Run = Callable[..., Awaitable[msgspec.Struct]]


@dataclass(slots=True, frozen=True)
class Operation:
    method: str
    path: str  # with {names}
    status: int  # of success
    run: Run
    answer: Any  # a Struct
    query: type[msgspec.Struct] = NoQuery
    body: type[msgspec.Struct] | None = None

    @property
    def changes(self) -> bool:
        return self.method != "GET"
