"""nats-py's client, with a short way for what is hot: messages are handed over where they are read, and answers wait in
one inbox.

nats-py sends each message through a queue and a task of its subscription, and makes an id of 26 random characters for
each question: about as much work as all that a gateway itself does with either. Knows no subject and no message of
ours. Invariant: messages of one subscription are handed over in the order in which they came, and what a handler raises
ends nothing but that call.
"""

import asyncio
from collections.abc import Callable
from typing import Final

import msgspec
import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

STATUS: Final = "Status"
NO_RESPONDERS: Final = "503"

Handler = Callable[[str, bytes], None]
"""Takes (subject, data)."""


class Answer(msgspec.Struct, frozen=True):
    data: bytes
    headers: dict[str, str]


class NatsClient(Client):
    def __init__(self) -> None:
        super().__init__()
        self._handlers: dict[int, Handler] = {}  # by id of the subscription
        self._inbox = ""  # whose last token names the question; subscribed to with the first one
        self._asked: dict[str, asyncio.Future[Answer | None]] = {}
        self._questions = 0
        self._answers: int | None = None  # id of the inbox's subscription

    async def listen(self, subject: str, queue: str, handler: Handler) -> Subscription:
        """`handler` is called for each message as it is read, and must not block."""
        self._handlers[self._sid + 1] = handler
        return await self.subscribe(subject, queue=queue, cb=_unused)

    async def ask(self, subject: str, data: bytes, *, headers: dict[str, str] | None, timeout_s: float) -> Answer:
        """One question, one answer. Raises nats-py's NoRespondersError, TimeoutError and what publishing raises."""
        if not self._inbox:
            self._inbox = self.new_inbox()
            self._answers = self._sid + 1
            await self.subscribe(f"{self._inbox}.*", cb=_unused)
        self._questions += 1
        token = str(self._questions)
        loop = asyncio.get_running_loop()
        asked: asyncio.Future[Answer | None] = loop.create_future()
        self._asked[token] = asked
        timer = loop.call_later(timeout_s, _expire, asked)
        try:
            await self.publish(subject, data, reply=f"{self._inbox}.{token}", headers=headers)
            answer = await asked
        finally:
            timer.cancel()
            del self._asked[token]
        if answer is None:
            raise nats.errors.TimeoutError
        if answer.headers.get(STATUS) == NO_RESPONDERS:
            raise nats.errors.NoRespondersError
        return answer

    # -- what nats-py calls

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        handler = self._handlers.get(sid)
        if handler is not None:
            try:
                handler(subject.decode(), data)
            except Exception as error:  # noqa: BLE001 - the reader goes on, whatever it is
                await self._error_cb(error)
        elif sid == self._answers:
            asked = self._asked.get(subject.rpartition(b".")[2].decode())
            if asked is not None and not asked.done():
                asked.set_result(Answer(data, read_headers(headers or b"")))  # None without any
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


def _expire(asked: "asyncio.Future[Answer | None]") -> None:
    if not asked.done():
        asked.set_result(None)  # not an exception: the question may never come to hear of it
