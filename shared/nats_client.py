"""nats-py's client with a fast path: messages are handed over where they are read and written where they are
published, and all answers come to one inbox.

nats-py sends each message through a queue and a task, those that come as those that go, and makes an id of 26 random
characters for each question: about as much work as all that a gateway itself does with either. Knows no subject and no
message of ours. Invariant: messages of one subscription are handed over in the order in which they came, what a handler
raises ends nothing but that call, and messages leave in the order in which they were published.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec
import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.aio.transport import TcpTransport

STATUS: Final = "Status"
NO_RESPONDERS: Final = "503"
SOCKET_BYTES_MAX: Final = 65_536  # not yet taken by the socket; beyond it messages wait where nats-py counts them

Handler = Callable[[str, bytes, bytes], None]
"""Takes (subject, data, headers as `read_headers` does)."""


class Answer(msgspec.Struct, frozen=True):
    data: bytes
    headers: dict[str, str]

    @property
    def nobody(self) -> bool:
        """It is the server's, which has nobody who listens on the question's subject."""
        return self.headers.get(STATUS) == NO_RESPONDERS


Headers = dict[str, str] | None
Told = Callable[[Answer | None], None]


class NatsClient(Client):
    def __init__(self) -> None:
        super().__init__()
        self._handlers: dict[int, Handler] = {}  # by id of the subscription
        self._inbox = ""  # whose last token names the question; subscribed to with the first one
        self._asked: dict[str, tuple[Told, asyncio.TimerHandle]] = {}
        self._questions = 0
        self._answers: int | None = None  # id of the inbox's subscription

    async def listen(self, subject: str, queue: str, handler: Handler) -> Subscription:
        """`handler` is called for each message as it is read, and must not block."""
        self._handlers[self._sid + 1] = handler
        return await self.subscribe(subject, queue=queue, cb=_unused)

    async def ask(self, subject: str, data: bytes, *, headers: Headers, timeout_s: float) -> Answer:
        """One question, one answer. Raises nats-py's NoRespondersError, TimeoutError and what publishing raises."""
        if not self._inbox:
            self._inbox = self.new_inbox()
            self._answers = self._sid + 1
            await self.subscribe(f"{self._inbox}.*", cb=_unused)
        asked: asyncio.Future[Answer | None] = asyncio.get_running_loop().create_future()
        self.question(subject, data, partial(_resolve, asked), headers=headers, timeout_s=timeout_s)
        answer = await asked
        if answer is None:
            raise nats.errors.TimeoutError
        if answer.nobody:
            raise nats.errors.NoRespondersError
        return answer

    def question(self, subject: str, data: bytes, told: Told, *, headers: Headers, timeout_s: float) -> None:
        """`ask` without a wait, once that has been called: `told` gets the answer, or None after `timeout_s`. Raises
        what publishing raises.
        """
        if self.is_closed or not self._inbox:
            raise nats.errors.ConnectionClosedError
        if len(data) > self.max_payload:
            raise nats.errors.MaxPayloadError
        self._questions += 1
        token = str(self._questions)
        self._write(_question(subject, f"{self._inbox}.{token}", data, headers))
        timer = asyncio.get_running_loop().call_later(timeout_s, self._expire, token)
        self._asked[token] = (told, timer)

    def send(self, subject: str, data: bytes) -> bool:
        """`publish` without a wait; False, with nothing written, where that would wait. Raises MaxPayloadError."""
        if len(data) > self.max_payload:
            raise nats.errors.MaxPayloadError
        writer = self._free_writer()
        if writer is None:
            return False
        writer.write(b"PUB %b %d\r\n%b\r\n" % (subject.encode(), len(data), data))
        return True

    def _write(self, command: bytes) -> None:
        """At once, or as nats-py's publish does at its end."""
        writer = self._free_writer()
        if writer is not None:
            writer.write(command)
            return
        if self._pending_data_size + len(command) > self._max_pending_size:
            raise nats.errors.OutboundBufferLimitError
        self._pending.append(command)
        self._pending_data_size += len(command)
        if self._flush_queue is not None and self._flush_queue.empty():
            self._flush_queue.put_nowait(asyncio.get_running_loop().create_future())

    def _free_writer(self) -> asyncio.WriteTransport | None:
        """The socket's, if nothing waits to be written before. It sends at the end of the loop's turn: what is written
        in one turn is one call of the kernel.
        """
        if self._pending or not isinstance(self._transport, TcpTransport) or self._transport._io_writer is None:  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
            return None
        writer = self._transport._io_writer.transport  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
        return None if writer.is_closing() or writer.get_write_buffer_size() > SOCKET_BYTES_MAX else writer

    def _expire(self, token: str) -> None:
        told, _ = self._asked.pop(token)
        told(None)

    def _answer(self, subject: bytes, data: bytes, headers: bytes) -> None:
        asked = self._asked.pop(subject.rpartition(b".")[2].decode(), None)
        if asked is not None:
            told, timer = asked
            timer.cancel()
            told(Answer(data, read_headers(headers)))

    # -- what nats-py calls

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        handler = self._handlers.get(sid)
        if handler is not None:
            try:
                handler(subject.decode(), data, headers or b"")  # None without any
            except Exception as error:  # noqa: BLE001 - the reader goes on, whatever it is
                await self._error_cb(error)
        elif sid == self._answers:
            try:
                self._answer(subject, data, headers or b"")
            except Exception as error:  # noqa: BLE001 - likewise
                await self._error_cb(error)
        else:
            await super()._process_msg(sid, subject, reply, data, headers)

    def _remove_sub(self, sid: int, max_msgs: int = 0) -> None:
        self._handlers.pop(sid, None)
        super()._remove_sub(sid, max_msgs)


def read_headers(block: bytes) -> dict[str, str]:
    """Those of a message as the server sends it: `NATS/1.0`, perhaps with a status, then a line for each. nats-py looks
    at each character by itself.
    """
    first, *lines = block.decode(errors="replace").split("\r\n")
    status = first.split(" ", 2)[1:2]
    headers = {STATUS: status[0]} if status else {}
    for line in lines:
        name, colon, value = line.partition(":")
        if colon:
            headers[name] = value.strip()
    return headers


async def _unused(_: Msg) -> None:
    """nats-py wants a callback, or it keeps messages."""


def _resolve(asked: "asyncio.Future[Answer | None]", answer: Answer | None) -> None:
    if not asked.done():  # who asked may have left
        asked.set_result(answer)


def _question(subject: str, reply: str, data: bytes, headers: Headers) -> bytes:
    """A publication in NATS' protocol. Subjects and headers are ours: no text of a client's is in them."""
    if headers is None:
        return b"PUB %b %b %d\r\n%b\r\n" % (subject.encode(), reply.encode(), len(data), data)
    head = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    block = f"NATS/1.0\r\n{head}\r\n".encode()
    sizes = (len(block), len(block) + len(data))
    return b"HPUB %b %b %d %d\r\n%b%b\r\n" % (subject.encode(), reply.encode(), *sizes, block, data)
