"""The one place that connects to NATS.

Owns the connection and everything that has to be true again after it was lost: subscriptions, and the `ensure` hooks
that create streams and buckets (a killed server comes back with its memory streams gone). Knows no subject and no
message of ours.

Invariant: `ready` is true only while the connection stands and every hook has succeeded since it was made. Entering
never waits for a server, and the bus goes on trying for ever; callers bound their own patience with `wait_ready`.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Generator
from typing import Final, Self
from urllib.parse import urlsplit

import nats.errors
import nats.js.errors
from nats.aio.subscription import Subscription
from nats.js import JetStreamContext

from shared import log, tasks
from shared.nats_client import Answer, Handler, NatsClient, Told
from shared.settings import SettingsError

SCHEMES: Final = ("nats", "tls", "ws", "wss")
RECONNECT_WAIT_S: Final = 0.2
CONNECT_TIMEOUT_S: Final = 2
PING_INTERVAL_S: Final = 5  # a dead peer is noticed after three of them; nats-py's own 120 s takes four minutes
PINGS_OUTSTANDING_MAX: Final = 2
PENDING_BYTES_MAX: Final = 16 * 1024 * 1024  # written and not yet taken by the socket; beyond it publishing waits
FLUSH_TIMEOUT_S: Final = 2
HOOKS_TIMEOUT_S: Final = 15
HOOK_RETRY_S: Final = 0.1
JETSTREAM_PING: Final = "$JS.API.INFO"
JETSTREAM_PING_TIMEOUT_S: Final = 0.5
REQUEST_TIMEOUT_S: Final = 2.0

Hook = Callable[[], Awaitable[None]]


class BusError(Exception):
    """Base of what this module raises."""


class BusUnavailable(BusError):
    """NATS cannot be reached, did not answer in time, or has nobody to answer."""


class BusNobody(BusUnavailable):
    """Nobody listens on the subject: no such stream, or JetStream is not up yet."""


class BusTooLarge(BusError):
    """The message is larger than the server's limit. Nothing was written."""


@contextlib.contextmanager
def translated() -> Generator[None]:
    """Turns nats-py's errors, except JetStream's own answers (`APIError`), into ours."""
    try:
        yield
    except nats.errors.MaxPayloadError:
        raise BusTooLarge("message exceeds the NATS server's max_payload") from None
    except (nats.errors.NoRespondersError, nats.js.errors.ServiceUnavailableError) as error:
        raise BusNobody("nobody answers: no such stream, or JetStream is not up") from error
    except nats.js.errors.APIError:
        raise
    except (nats.errors.Error, TimeoutError, OSError) as error:
        raise BusUnavailable(str(error) or type(error).__name__) from error


class Interest:
    """One subscription, kept over reconnects. `handler` is called in order and must not block."""

    def __init__(self, bus: "Bus", subject: str, queue: str, handler: Handler) -> None:
        self._bus = bus
        self.subject = subject
        self.queue = queue
        self._handler = handler
        self._held_by: NatsClient | None = None
        self._subscription: Subscription | None = None

    async def attach(self, client: NatsClient) -> None:
        if self._held_by is client:
            return
        self._held_by = client
        self._subscription = await client.listen(self.subject, self.queue, self._handler)

    async def cancel(self) -> None:
        """Ends the subscription. Idempotent."""
        self._bus.forget(self)
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            with contextlib.suppress(nats.errors.Error):
                await subscription.unsubscribe()


class Bus:
    """A connection to NATS for as long as its `async with` lasts.

    `role` prefixes the reply inbox, so that a user's permissions can name it (`subjects.permissions`). Raises
    SettingsError for a URL that is none of NATS, which would be tried for ever.
    """

    def __init__(self, url: str, *, name: str, role: str) -> None:
        _check(url)
        self._url = url
        self._name = name
        self._role = role
        self._log = log.get("bus").bind(connection=name)
        self._hooks: list[Hook] = []
        self._interests: list[Interest] = []
        self._client: NatsClient | None = None
        self._changed = asyncio.Event()
        self._ready = asyncio.Event()
        self._down_since: float | None = time.monotonic()
        self._ready_since = 0.0
        self._task: asyncio.Task[None] | None = None
        self._last_error = ""
        self.reconnects = 0
        self.connection = 0  # grows each time the bus becomes ready

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run(), name=f"bus {self._name}")
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        await tasks.stop([self._task])
        if self._client is not None:
            if self._client.is_connected:
                with contextlib.suppress(nats.errors.Error, TimeoutError, OSError):
                    await self._client.flush(FLUSH_TIMEOUT_S)
            await self._client.close()

    # -- state

    @property
    def ready(self) -> bool:
        return self._ready.is_set()

    def down_s(self) -> float:
        """Seconds since the bus was last ready; 0 while it is."""
        return 0.0 if self._down_since is None else time.monotonic() - self._down_since

    def ready_s(self) -> float:
        """Seconds for which the bus has been ready; 0 while it is not."""
        return time.monotonic() - self._ready_since if self.ready else 0.0

    async def wait_ready(self, timeout_s: float) -> None:
        """Raises BusUnavailable when the bus is not ready within `timeout_s`."""
        if self._ready.is_set():
            return
        try:
            async with asyncio.timeout(timeout_s):
                await self._ready.wait()
        except TimeoutError:
            raise BusUnavailable(f"NATS cannot be reached: {self._last_error or 'no answer'}") from None

    async def round_trip(self, timeout_s: float = REQUEST_TIMEOUT_S) -> None:
        """Ask JetStream and wait for the answer in our inbox: an open socket may still be dead."""
        await self.wait_ready(timeout_s)
        await self.request(JETSTREAM_PING, b"", timeout_s=timeout_s)

    # -- use

    def on_connect(self, hook: Hook) -> None:
        """`hook` is awaited after every connect, in the order of registration, until it succeeds."""
        assert self._task is None, "hooks are registered before the bus starts"
        self._hooks.append(hook)

    async def subscribe(self, subject: str, handler: Callable[[str, bytes], None], *, queue: str = "") -> Interest:
        """`handler` takes (subject, data)."""
        return await self.subscribe_headed(subject, lambda subject, data, _: handler(subject, data), queue=queue)

    async def subscribe_headed(self, subject: str, handler: Handler, *, queue: str = "") -> Interest:
        """`subscribe` for who wants the headers too."""
        interest = Interest(self, subject, queue, handler)
        self._interests.append(interest)
        if self._client is not None and not self._client.is_closed:
            with translated():
                await interest.attach(self._client)
        return interest

    def forget(self, interest: Interest) -> None:
        if interest in self._interests:
            self._interests.remove(interest)

    async def publish(self, subject: str, data: bytes) -> None:
        """Core NATS: at most once. Raises BusUnavailable while disconnected, BusTooLarge."""
        with translated():
            client = self._connected_client()
            if not client.send(subject, data):
                await client.publish(subject, data)

    async def request(
        self,
        subject: str,
        data: bytes,
        *,
        headers: dict[str, str] | None = None,
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> Answer:
        """One question, one answer. Raises BusNobody when nobody listens on `subject`, BusUnavailable, BusTooLarge."""
        with translated():
            return await self._connected_client().ask(subject, data, headers=headers, timeout_s=timeout_s)

    def question(
        self, subject: str, data: bytes, told: Told, *, headers: dict[str, str] | None = None, timeout_s: float
    ) -> None:
        """`request` without a wait: `told` is called with the answer, or with None after `timeout_s`, and must neither
        block nor raise. Raises BusUnavailable, BusTooLarge; `told` is not called then.
        """
        if not self.ready:
            raise BusUnavailable("NATS is disconnected")
        with translated():
            self._connected_client().question(subject, data, told, headers=headers, timeout_s=timeout_s)

    def _connected_client(self) -> NatsClient:
        """nats-py would keep what is written while disconnected and send it later, when its sender has given up on it:
        a claim that nobody makes, a frame in front of those that were lost. Here it is refused at once.
        """
        client = self.client
        if not client.is_connected:
            raise BusUnavailable("NATS is disconnected")
        return client

    @property
    def client(self) -> NatsClient:
        """The nats-py client. Raises BusUnavailable before the first connect."""
        if self._client is None:
            raise BusUnavailable("NATS has not been reached yet")
        return self._client

    def jetstream(self, timeout_s: float = REQUEST_TIMEOUT_S) -> JetStreamContext:
        """A JetStream context of the present connection; not to be kept over a reconnect."""
        return self.client.jetstream(timeout=timeout_s)

    # -- the connection's life

    async def _run(self) -> None:
        # nats-py closes its client for good on some server errors (a changed password, a protocol error), so a new
        # one is made whenever the old one is closed.
        while True:
            client = NatsClient()
            try:
                await self._connect(client)
            except BaseException:
                await client.close()
                raise
            self._client = client
            await self._serve(client)

    async def _connect(self, client: NatsClient) -> None:
        await client.connect(
            self._url,
            name=self._name,
            inbox_prefix=f"_INBOX_{self._role}",
            skip_subject_validation=True,  # `subjects` makes them all, of checked parts
            error_cb=self._on_error,
            disconnected_cb=self._on_disconnected,
            reconnected_cb=self._on_reconnected,
            closed_cb=self._on_disconnected,
            max_reconnect_attempts=-1,
            reconnect_time_wait=RECONNECT_WAIT_S,  # pyright: ignore[reportArgumentType] (a float works: it is slept)
            connect_timeout=CONNECT_TIMEOUT_S,
            ping_interval=PING_INTERVAL_S,
            max_outstanding_pings=PINGS_OUTSTANDING_MAX,
            pending_size=PENDING_BYTES_MAX,
            flush_timeout=FLUSH_TIMEOUT_S,
        )

    async def _serve(self, client: NatsClient) -> None:
        while not client.is_closed:
            self._changed.clear()
            if client.is_connected and not self._ready.is_set():
                await self._restore(client)
            else:
                await self._changed.wait()

    async def _restore(self, client: NatsClient) -> None:
        """One attempt to make everything true again; `_serve` repeats it."""
        try:
            with translated():
                for interest in list(self._interests):
                    await interest.attach(client)
                # A server that just started accepts connections before JetStream answers; what is asked in between
                # gets no reply at all.
                await client.ask(JETSTREAM_PING, b"", headers=None, timeout_s=JETSTREAM_PING_TIMEOUT_S)
                async with asyncio.timeout(HOOKS_TIMEOUT_S):
                    for hook in self._hooks:
                        await hook()
        except (BusError, nats.js.errors.APIError) as error:
            self._tell_once("bus.ensure_failed", str(error))
            await asyncio.sleep(HOOK_RETRY_S)
            return
        if self._changed.is_set() or not client.is_connected:
            return  # lost again meanwhile
        self._down_since = None
        self._ready_since = time.monotonic()
        self.connection += 1
        self._ready.set()
        self._log.info("bus.ready", reconnects=self.reconnects)

    async def _on_disconnected(self) -> None:
        if self._client is not None:  # for the same reason: what the socket did not take any more
            self._client._pending.clear()  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
            self._client._pending_data_size = 0  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
        if self._ready.is_set():
            self._down_since = time.monotonic()
            self._ready.clear()
            self._log.warning("bus.disconnected")
        self._changed.set()

    async def _on_reconnected(self) -> None:
        self.reconnects += 1
        self._changed.set()

    async def _on_error(self, error: Exception) -> None:
        client = self._client
        if client is not None and not client.is_connected:
            transport = client._transport  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
            if transport is not None:
                transport.close()  # nats-py forgets the socket of a handshake that failed
        self._tell_once("bus.error", str(error) or type(error).__name__)

    def _tell_once(self, event: str, error: str) -> None:
        """One line per kind of trouble, not one per attempt."""
        if error != self._last_error:
            self._last_error = error
            self._log.warning(event, error=error)


def _check(url: str) -> None:
    """Check the URL. The error quotes nothing of it, since it may hold a password."""
    try:
        parts = [urlsplit(part.strip()) for part in url.split(",")]
        known = all(part.scheme in SCHEMES and part.hostname and part.port != 0 for part in parts)
    except ValueError:
        known = False
    if not known:
        form = "nats://USER:PASSWORD@HOST:PORT, or of several such with commas between"
        raise SettingsError(f"FOREBAY_NATS_URL is not of the form {form}")
