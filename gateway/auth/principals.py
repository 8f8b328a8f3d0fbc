"""From an Authorization header to the Principal who sent it, without a database round trip for a known key.

Owns the cache of keys and how it is kept current. Knows nothing of HTTP but the header's values. Invariants: while the
database cannot be reached, an unknown key is neither refused (the error is `Unavailable`, not `InvalidKey`) nor let in,
and known keys are served as they were last read; a change in Postgres is obeyed within a poll (500 ms) and a read.
"""

import asyncio
import contextlib
import uuid
from collections.abc import Callable
from datetime import datetime
from ipaddress import IPv4Network, IPv6Network
from types import TracebackType
from typing import Final, Self

import msgspec
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway import keys
from gateway.admission.limiter import Limit
from gateway.auth import authorization, quotas
from gateway.auth.cache import KeyCache
from gateway.db import pools, queries
from gateway.db.changes import Changed, Changes
from gateway.db.queries import StoredKey, TierBounds
from gateway.errors import Forbidden, InvalidKey, Unavailable
from gateway.keys import ParsedKey
from shared import log, tasks
from shared.clock import Clock, SystemClock

KEYS_MAX: Final = 20_000
UNKNOWN_MAX: Final = 20_000
UNKNOWN_S: Final = 5.0
READ_TIMEOUT_S: Final = 1.0
READS_MAX: Final = 3  # at one time; one of the engine's four connections stays free for the poll
POLL_S: Final = 0.5
POLL_TIMEOUT_S: Final = 2.0
RETRY_AFTER_MS: Final = 1_000

_FAULTS: Final = (SQLAlchemyError, *pools.AWAY)
_NO_DIGEST: Final = bytes(32)


class Principal(msgspec.Struct, frozen=True, kw_only=True):
    """Who is calling and what they may use."""

    tenant_id: uuid.UUID
    tenant: str
    key_id: uuid.UUID
    public_id: str
    plan_id: uuid.UUID
    plan: str
    tier: int
    tier_bounds: TierBounds
    scopes: frozenset[str]  # "inference", or "admin" and "admin:read": an admin key does not call inference
    models: frozenset[uuid.UUID] | None  # those that it may use; None: all
    networks: tuple[IPv4Network | IPv6Network, ...] | None  # those that it may be used from; None: all
    ignore_unknown_fields: bool  # the tenant's setting for the bodies of its requests
    limits: tuple[Limit, ...]


class Known(msgspec.Struct, frozen=True):
    """A key that exists: the row, for the checks of each call, and the Principal made from it once."""

    stored: StoredKey
    principal: Principal

    @property
    def tenant_id(self) -> uuid.UUID:
        return self.stored.tenant_id


class Principals:
    """Use with `async with`: the poll for changes runs inside, and calls `on_change` with what it finds."""

    def __init__(
        self,
        engine: AsyncEngine,
        *,
        clock: Clock | None = None,
        on_use: Callable[[uuid.UUID], None] | None = None,
        on_change: Callable[[Changed], None] | None = None,
    ) -> None:
        self._engine = engine
        self._on_use = on_use
        self._on_change = on_change
        self._clock = clock or SystemClock()
        self._log = log.get("principals")
        self._cache: KeyCache[Known] = KeyCache(known_max=KEYS_MAX, unknown_max=UNKNOWN_MAX, unknown_s=UNKNOWN_S)
        self._changes = Changes(engine)
        self._reading: dict[str, asyncio.Task[Known | None]] = {}
        self._reads = asyncio.Semaphore(READS_MAX)
        self._away = False
        self._poller: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._poller = asyncio.create_task(tasks.keep(self._poll, "principals poll"))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._poller is not None
        await tasks.stop([self._poller, *self._reading.values()])

    async def resolve(self, authorization_values: list[str]) -> Principal:
        """The sender of a request with these Authorization headers. Raises InvalidKey, Forbidden, Unavailable."""
        key = authorization.key(authorization_values)
        entry = self._cache.known(key.public_id)
        if entry is not None and (self._away or not entry.stale):
            try:
                return self._checked(key, entry.value)
            except InvalidKey:
                await self._read_as_unknown(key.public_id)
                raise
        if self._cache.is_unknown(key.public_id, self._clock.monotonic()):
            return self._checked(key, None)
        try:
            known = await self._read_once(key.public_id)
        except _FAULTS as error:
            if entry is None:
                raise Unavailable("API keys cannot be checked at the moment", retry_after_ms=RETRY_AFTER_MS) from error
            return self._checked(key, entry.value)
        try:
            return self._checked(key, known)
        except InvalidKey:
            self._cache.note_refused(key.public_id, self._clock.monotonic())
            raise

    async def _read_as_unknown(self, public_id: str) -> None:
        """Read a known key that is refused whenever an unknown id would be read: its time must not tell that it exists.
        The refusal stands, as what is known is fresh.
        """
        if self._away or self._cache.is_refused(public_id, self._clock.monotonic()):
            return
        with contextlib.suppress(*_FAULTS):
            await self._read_once(public_id)
            self._cache.note_refused(public_id, self._clock.monotonic())

    def serve_some(self, may_grant: Callable[[tuple[Limit, ...]], bool]) -> bool:
        """Whether some key can be served without Postgres: known, good, and granted something under its limits."""
        return any(
            self._is_valid(known.stored)
            and known.stored.tenant_status == "active"
            and "inference" in known.principal.scopes
            and may_grant(known.principal.limits)
            for known in self._cache.values()
        )

    def _checked(self, key: ParsedKey, known: Known | None) -> Principal:
        # An unknown id costs the same two comparisons as a wrong secret, a revoked key and an expired one.
        stored = known.stored if known else None
        current = keys.verify(key, stored.digest if stored else _NO_DIGEST)
        former = keys.verify(key, (stored and stored.former_digest) or _NO_DIGEST)
        former_is_good = stored is not None and self._is_before(stored.former_until)
        if known is None or not (current or (former and former_is_good)) or not self._is_good(known.stored, key):
            raise authorization.refused()
        if known.stored.tenant_status != "active":
            raise Forbidden("This account is suspended.", code="account_suspended")
        if self._on_use is not None:
            self._on_use(known.stored.key_id)
        return known.principal

    def _is_good(self, stored: StoredKey, key: ParsedKey) -> bool:
        return key.env == stored.env and self._is_valid(stored)

    def _is_valid(self, stored: StoredKey) -> bool:
        expired = stored.expires_at is not None and not self._is_before(stored.expires_at)
        return stored.revoked_at is None and not expired

    def _is_before(self, moment: datetime | None) -> bool:
        return moment is not None and self._clock.wall() < moment.timestamp()

    async def _read_once(self, public_id: str) -> Known | None:
        """The key's row, read once however many requests ask for it at the same time."""
        reading = self._reading.get(public_id)
        if reading is None:
            reading = asyncio.create_task(self._read(public_id), name=public_id)
            self._reading[public_id] = reading
            reading.add_done_callback(self._read_ended)
        return await asyncio.shield(reading)

    def _read_ended(self, reading: "asyncio.Task[Known | None]") -> None:
        del self._reading[reading.get_name()]
        if not reading.cancelled():
            reading.exception()  # retrieved here, since every request that waited for it may have left

    async def _read(self, public_id: str) -> Known | None:
        async with asyncio.timeout(READ_TIMEOUT_S), self._reads:
            generation = self._cache.generation
            stored = await queries.find_key(self._engine, public_id)
        if stored is None:
            self._cache.put_unknown(public_id, self._clock.monotonic(), generation=generation)
            return None
        return self._cache.put(public_id, Known(stored, principal(stored)), generation=generation).value

    async def _poll(self) -> None:
        while True:
            try:
                async with asyncio.timeout(POLL_TIMEOUT_S):
                    changed = await self._changes.look(self._clock.monotonic())
            except _FAULTS as error:
                if not self._away:
                    self._log.error("principals.postgres_away", error=repr(error))
                self._away = True
            else:
                self._cache.invalidate(changed)
                if self._on_change is not None:
                    self._on_change(changed)
                if self._away:
                    self._log.info("principals.postgres_back")
                self._away = False
            await asyncio.sleep(POLL_S)


def principal(stored: StoredKey) -> Principal:
    return Principal(
        tenant_id=stored.tenant_id,
        tenant=stored.tenant,
        key_id=stored.key_id,
        public_id=stored.public_id,
        plan_id=stored.plan_id,
        plan=stored.plan,
        tier=stored.tier,
        tier_bounds=stored.tier_bounds,
        scopes=stored.scopes,
        models=stored.models,
        networks=stored.networks,
        ignore_unknown_fields=stored.ignore_unknown_fields,
        limits=quotas.limits(stored),
    )
