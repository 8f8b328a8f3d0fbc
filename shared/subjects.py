"""Every NATS subject, stream, consumer and bucket, as functions. No other module spells one.

Ids that reach a subject are ours and match `TOKEN`; a client's text never gets here. The client's library is imported
by the streams' functions alone: `forebay up` needs the names, and everything waits for it to start.
"""

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeVar

if TYPE_CHECKING:
    from nats.js import api

JOBS_MSGS_MAX = 20_000
JOBS_BYTES_MAX = 128 * 1024 * 1024  # reserved of the server's max_mem at creation, per pool and tier
JOBS_MSGS_PER_TENANT_MAX = 2_000
USAGE_BYTES_MAX = 1024 * 1024 * 1024
USAGE_DUPLICATE_WINDOW_S = 600
USAGE_ACK_WAIT_S = 5  # what a ledger took with it as it left comes again after this; at 30 s a bill was 35 s late

USAGE_STREAM = "USAGE"
USAGE_CONSUMER = "ledger"
USAGE_SUBJECT = "forebay.v1.usage"
CARD_BUCKET = "forebay-cards"
CARD_BUCKET_BYTES_MAX = 256 * 1024 * 1024
GATEWAY_BEATS = "forebay.v1.beat.gateway.*"
WORKER_BEATS = "forebay.v1.beat.worker.*"
WAKE_ALL = "forebay.v1.wake.>"

T = TypeVar("T")
Role = Literal["gateway", "worker", "ledger", "admin"]

TOKEN = re.compile(r"[A-Za-z0-9_-]{1,64}")


def token(value: str) -> str:
    """Return `value` if it is allowed as a token of a subject. Raises ValueError otherwise."""
    if not TOKEN.fullmatch(value):
        msg = f"not usable in a NATS subject: {value[:80]!r}"
        raise ValueError(msg)
    return value


def job_subject(pool: str, tier: int, tenant: str) -> str:
    return f"forebay.v1.job.{token(pool)}.{tier}.{token(tenant)}"


def job_filter(pool: str, tier: int) -> str:
    return f"forebay.v1.job.{token(pool)}.{tier}.*"


def tenant_of(job_subject: str) -> str:
    """The tenant of a subject that `job_subject` made."""
    return job_subject.rpartition(".")[2]


def of_tier(found: Mapping[str, T], pool: str, tier: int) -> dict[str, T]:
    """The entries of `found`, by job subject, that belong to one queue."""
    prefix = job_filter(pool, tier).removesuffix("*")
    return {subject: value for subject, value in found.items() if subject.startswith(prefix)}


def job_subject_of_wake(subject: str) -> str:
    """The subject under which the job of a wake lies in its queue."""
    return subject.replace(".wake.", ".", 1)


def wake_filter(pool: str, tier: int) -> str:
    return f"forebay.v1.wake.job.{token(pool)}.{tier}.*"


def wake_queue(pool: str) -> str:
    """The queue group of workers with room: a wake goes to one of them."""
    return f"wake-{token(pool)}"


def frame_subject(gateway: str) -> str:
    return f"forebay.v1.frame.{token(gateway)}"


def cancel_subject(worker: str) -> str:
    return f"forebay.v1.cancel.{token(worker)}"


def worker_beat_subject(worker: str) -> str:
    return f"forebay.v1.beat.worker.{token(worker)}"


def gateway_beat_subject(gateway: str) -> str:
    return f"forebay.v1.beat.gateway.{token(gateway)}"


def jobs_stream_name(pool: str, tier: int) -> str:
    return f"JOBS_{token(pool)}_{tier}"


def jobs_stream(pool: str, tier: int) -> "api.StreamConfig":
    """The bounded queue of one pool and tier. Each job that it stores goes to one worker with room as well, to wake it.

    `first_seq` is the time in microseconds, so that a sequence number from before a server restart (memory
    streams come back empty) can never name another request's job.
    """
    from nats.js import api  # noqa: PLC0415 - see the module's docstring

    return api.StreamConfig(
        name=jobs_stream_name(pool, tier),
        subjects=[job_filter(pool, tier)],
        retention=api.RetentionPolicy.LIMITS,
        storage=api.StorageType.MEMORY,
        discard=api.DiscardPolicy.NEW,
        discard_new_per_subject=True,
        max_msgs=JOBS_MSGS_MAX,
        max_bytes=JOBS_BYTES_MAX,
        max_msgs_per_subject=JOBS_MSGS_PER_TENANT_MAX,
        allow_direct=True,
        allow_msg_ttl=True,
        first_seq=time.time_ns() // 1_000,
        republish=api.RePublish(src=f"forebay.v1.job.{token(pool)}.>", dest=f"forebay.v1.wake.job.{token(pool)}.>"),
    )


def usage_stream() -> "api.StreamConfig":
    from nats.js import api  # noqa: PLC0415 - see the module's docstring

    return api.StreamConfig(
        name=USAGE_STREAM,
        subjects=[USAGE_SUBJECT],
        retention=api.RetentionPolicy.WORK_QUEUE,
        storage=api.StorageType.FILE,
        discard=api.DiscardPolicy.NEW,
        max_bytes=USAGE_BYTES_MAX,
        duplicate_window=USAGE_DUPLICATE_WINDOW_S,
    )


def usage_consumer() -> "api.ConsumerConfig":
    from nats.js import api  # noqa: PLC0415 - see the module's docstring

    return api.ConsumerConfig(
        durable_name=USAGE_CONSUMER,
        ack_policy=api.AckPolicy.EXPLICIT,
        ack_wait=USAGE_ACK_WAIT_S,
        max_deliver=-1,
        max_ack_pending=20_000,
    )


def card_bucket() -> "api.ObjectStoreConfig":
    from nats.js import api  # noqa: PLC0415 - see the module's docstring

    return api.ObjectStoreConfig(
        bucket=CARD_BUCKET, max_bytes=CARD_BUCKET_BYTES_MAX, storage=api.StorageType.FILE, description="model cards"
    )


@dataclass(frozen=True, slots=True)
class Permissions:
    """What one NATS user may publish to and subscribe to; everything else is denied."""

    publish: tuple[str, ...]
    subscribe: tuple[str, ...]


_JETSTREAM = ("$JS.API.INFO", "$JS.API.STREAM.NAMES", "$JS.API.STREAM.INFO.*", "$JS.API.STREAM.CREATE.*")
_LEDGER = (
    "$JS.API.CONSUMER.*.USAGE.>",
    "$JS.API.CONSUMER.DURABLE.CREATE.USAGE.*",
    "$JS.API.CONSUMER.MSG.NEXT.USAGE.*",
    f"$JS.ACK.{USAGE_STREAM}.>",
    "$JS.ACK.*.*.USAGE.>",
)


def permissions(role: Role) -> Permissions:
    """The subjects that `role` needs. Whoever may read `>` can read every prompt, so nobody but `admin` may."""
    bucket = f"OBJ_{CARD_BUCKET}"
    inbox = f"_INBOX_{role}.>"
    if role == "admin":
        return Permissions(publish=(">",), subscribe=(">",))
    if role == "ledger":
        return Permissions(publish=(*_JETSTREAM, *_LEDGER), subscribe=(inbox,))
    if role == "gateway":
        return Permissions(
            publish=(
                *_JETSTREAM,
                *_LEDGER,
                "forebay.v1.job.>",
                "forebay.v1.cancel.*",
                GATEWAY_BEATS,
                USAGE_SUBJECT,
                "$JS.API.DIRECT.GET.>",
                "$JS.API.STREAM.MSG.DELETE.*",
                f"$JS.API.STREAM.MSG.GET.{bucket}",
                f"$JS.API.CONSUMER.*.{bucket}",
                f"$JS.API.CONSUMER.*.{bucket}.>",
                f"$JS.FC.{bucket}.>",
            ),
            subscribe=(inbox, "forebay.v1.frame.*", GATEWAY_BEATS, WORKER_BEATS),
        )
    return Permissions(
        publish=(
            *_JETSTREAM,
            "forebay.v1.frame.*",
            WORKER_BEATS,
            USAGE_SUBJECT,
            "$JS.API.DIRECT.GET.>",
            "$JS.API.STREAM.MSG.DELETE.*",
            f"$JS.API.STREAM.MSG.GET.{bucket}",
            f"$JS.API.STREAM.PURGE.{bucket}",
            f"$O.{CARD_BUCKET}.>",
        ),
        subscribe=(inbox, "forebay.v1.cancel.*", GATEWAY_BEATS, WORKER_BEATS, WAKE_ALL),
    )
