"""The job queues as both ends use them: publish, look, read, and take (the claim).

Owns the JetStream calls on the JOBS streams and the meaning of their answers. Does not know who should be served next.
A job leaves its queue exactly once, by `take`, whoever calls it: a worker to claim it, or a gateway to cancel it.

The calls are made directly rather than through nats-py's manager: a claim is three of them and has to be cheap.
"""

import contextlib
from datetime import UTC, datetime
from typing import Final, Literal, NamedTuple, TypeVar

import msgspec
import nats.js.errors
from nats.js.api import StreamConfig

from shared import subjects
from shared.bus import REQUEST_TIMEOUT_S, Answer, Bus, BusNobody, BusTooLarge, BusUnavailable, Told, translated

SEQUENCE: Final = "Nats-Sequence"
HEADER_BYTES_MAX: Final = 512  # the server counts headers too, nats-py's own check does not
ERR_STREAM_NAME_IN_USE: Final = 10058  # somebody created it first, with another first_seq
ERR_MSG_NOT_DELETED: Final = 10043
ERR_MSG_NOT_FOUND: Final = 10037
ERR_STREAM_NOT_FOUND: Final = 10059
ERR_STREAM_FULL: Final = 10077  # "maximum messages exceeded", "maximum messages per subject exceeded", "maximum bytes"

Taken = Literal["taken", "gone", "doubtful"]
Presence = Literal["queued", "gone", "forgotten"]


class QueueRefused(Exception):
    """The queue is full. `tenant_full` tells whose limit it was: the tenant's own, or everybody's."""

    def __init__(self, *, tenant_full: bool) -> None:
        super().__init__("the tenant's queue is full" if tenant_full else "the queue is full")
        self.tenant_full = tenant_full


class QueueMissing(BusUnavailable):
    """There is no such stream (yet, or after a server restart)."""


class ApiError(msgspec.Struct, frozen=True):
    code: int
    err_code: int = 0
    description: str = ""


class Ack(msgspec.Struct, frozen=True):
    seq: int = 0
    duplicate: bool = False
    error: ApiError | None = None


LONG_AGO: Final = datetime.fromtimestamp(0, UTC)


class StreamState(msgspec.Struct, frozen=True):
    messages: int = 0
    bytes: int = 0
    subjects: dict[str, int] = {}
    first_ts: datetime = LONG_AGO  # when the oldest message was stored


class StreamLimits(msgspec.Struct, frozen=True):
    first_seq: int = 0
    max_bytes: int = -1


class StreamInfo(msgspec.Struct, frozen=True):
    state: StreamState = StreamState()
    config: StreamLimits = StreamLimits()
    ts: datetime = LONG_AGO  # the server's clock
    error: ApiError | None = None


class Done(msgspec.Struct, frozen=True):
    success: bool = False
    error: ApiError | None = None


class Queued(msgspec.Struct, frozen=True):
    """A waiting job as it lies in the stream."""

    seq: int
    data: bytes
    since: datetime  # by the server's clock


def queued(data: bytes, headers: dict[str, str]) -> Queued | None:
    """A job as the server sends it, asked or republished; None for an answer that there is none."""
    if SEQUENCE not in headers:
        return None
    return Queued(seq=int(headers[SEQUENCE]), data=data, since=datetime.fromisoformat(headers["Nats-Time-Stamp"]))


class Waiting(msgspec.Struct, frozen=True):
    """What waits in one queue."""

    jobs: dict[str, int]  # by subject, which is one per tenant
    at: datetime  # by the server's clock


Reply = TypeVar("Reply", Ack, StreamInfo, Done)


def _decode(answer: Answer, kind: type[Reply]) -> Reply:
    try:
        return msgspec.json.decode(answer.data, type=kind)
    except msgspec.DecodeError as error:
        raise BusUnavailable(f"JetStream's answer cannot be read: {error}") from error


async def ensure_stream(bus: Bus, config: StreamConfig) -> None:
    """Create the stream if it is missing. One that exists is left as it is."""
    assert config.name is not None
    with contextlib.suppress(QueueMissing):
        await stream_info(bus, config.name)
        return
    with translated():
        try:
            await bus.jetstream().add_stream(config)
        except nats.js.errors.APIError as error:
            if error.err_code != ERR_STREAM_NAME_IN_USE:
                raise BusUnavailable(str(error)) from error


async def stream_info(bus: Bus, stream: str, subjects_filter: str | None = None) -> StreamInfo:
    """Raises QueueMissing, BusUnavailable."""
    body = b"" if subjects_filter is None else msgspec.json.encode({"subjects_filter": subjects_filter})
    info = _decode(await bus.request(f"$JS.API.STREAM.INFO.{stream}", body), StreamInfo)
    if info.error is None:
        return info
    if info.error.err_code == ERR_STREAM_NOT_FOUND:
        raise QueueMissing(stream)
    raise BusUnavailable(info.error.description)


async def publish_stored(
    bus: Bus, subject: str, data: bytes, headers: dict[str, str], timeout_s: float = REQUEST_TIMEOUT_S
) -> Ack:
    """Publish into a stream and return its answer, refusals included. Raises QueueMissing if no stream listens,
    BusTooLarge, BusUnavailable.
    """
    _check_size(bus, data)
    try:
        return _decode(await bus.request(subject, data, headers=headers, timeout_s=timeout_s), Ack)
    except BusNobody:
        raise QueueMissing(subject) from None


def _check_size(bus: Bus, data: bytes) -> None:
    if len(data) + HEADER_BYTES_MAX > bus.client.max_payload:
        raise BusTooLarge(f"a message of {len(data)} bytes exceeds the NATS server's max_payload")


class Publication(NamedTuple):
    """A job as it is sent to its queue."""

    subject: str
    data: bytes
    headers: dict[str, str]


def publication(pool: str, tier: int, tenant: str, data: bytes, *, msg_id: str, ttl_s: int) -> Publication:
    """A job to be published. One that is sent twice under the same `msg_id` is stored once."""
    headers = {
        "Nats-Msg-Id": msg_id,
        "Nats-TTL": f"{ttl_s}s",
        "Nats-Expected-Stream": subjects.jobs_stream_name(pool, tier),
    }
    return Publication(subjects.job_subject(pool, tier, tenant), data, headers)


def acknowledged(answer: Answer | None) -> Ack:
    """What a stream says to a question that was a publication. Raises QueueMissing, BusUnavailable."""
    if answer is None:
        raise BusUnavailable("JetStream did not answer in time")
    if answer.nobody:
        raise QueueMissing("no such stream")
    return _decode(answer, Ack)


def posted(answer: Answer | None) -> int:
    """The sequence number under which a job was stored. Raises QueueRefused, QueueMissing, BusUnavailable."""
    return _sequence(acknowledged(answer))


def _sequence(ack: Ack) -> int:
    if ack.error is None:
        return ack.seq
    if ack.error.err_code == ERR_STREAM_FULL:
        raise QueueRefused(tenant_full="per subject" in ack.error.description)
    raise BusUnavailable(ack.error.description)


class JobQueue:
    """All operations on the queues of every pool and tier, over one bus."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def ensure(self, pool: str, tier: int) -> None:
        await ensure_stream(self._bus, subjects.jobs_stream(pool, tier))

    async def publish(self, message: Publication, *, timeout_s: float) -> int:
        """Queue a job and return its sequence number. Repeating the call with the same message is safe.

        Raises QueueRefused, QueueMissing, BusTooLarge, BusUnavailable.
        """
        return _sequence(await publish_stored(self._bus, *message, timeout_s))

    def post(self, message: Publication, told: Told, *, timeout_s: float) -> None:
        """`publish` without a wait: `told` gets what `posted` understands. Raises BusTooLarge, BusUnavailable."""
        _check_size(self._bus, message.data)
        self._bus.question(message.subject, message.data, told, headers=message.headers, timeout_s=timeout_s)

    async def waiting(self, pool: str, tier: int) -> Waiting:
        """Raises QueueMissing, BusUnavailable."""
        name = subjects.jobs_stream_name(pool, tier)
        info = await stream_info(self._bus, name, subjects.job_filter(pool, tier))
        return Waiting(jobs=info.state.subjects, at=info.ts)

    async def oldest(self, pool: str, tier: int, subject: str, *, from_seq: int = 1) -> Queued | None:
        """The first waiting job on `subject` at or after `from_seq`, left where it is."""
        body = msgspec.json.encode({"seq": from_seq, "next_by_subj": subject})
        answer = await self._bus.request(f"$JS.API.DIRECT.GET.{subjects.jobs_stream_name(pool, tier)}", body)
        return queued(answer.data, answer.headers)

    async def take(self, pool: str, tier: int, seq: int) -> Taken:
        """Remove the job. Exactly one caller ever gets `taken`; `doubtful` is a delete whose reply was lost and whose
        repetition found nothing: it was probably ours. Raises BusUnavailable if no reply came at all.
        """
        subject = f"$JS.API.STREAM.MSG.DELETE.{subjects.jobs_stream_name(pool, tier)}"
        body = msgspec.json.encode({"seq": seq, "no_erase": True})
        asked_before = False
        while True:
            try:
                done = _decode(await self._bus.request(subject, body), Done)
            except BusUnavailable:
                if asked_before:
                    raise
                asked_before = True
                continue
            if done.error is None:
                return "taken"
            if done.error.err_code in {ERR_MSG_NOT_DELETED, ERR_MSG_NOT_FOUND, ERR_STREAM_NOT_FOUND}:
                return "doubtful" if asked_before else "gone"
            raise BusUnavailable(done.error.description)

    async def presence(self, pool: str, tier: int, seq: int) -> Presence:
        """Where a published job is: still `queued`; `gone` (somebody took it); or `forgotten`, because the stream was
        made anew after a server restart: its numbers start at the time of its making, above `seq`.
        """
        name = subjects.jobs_stream_name(pool, tier)
        try:
            info = await stream_info(self._bus, name)
        except QueueMissing:
            return "forgotten"
        if info.config.first_seq > seq:
            return "forgotten"
        answer = await self._bus.request(f"$JS.API.DIRECT.GET.{name}", msgspec.json.encode({"seq": seq}))
        return "queued" if SEQUENCE in answer.headers else "gone"
