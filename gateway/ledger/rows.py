"""Parses the bytes of a usage event into a row of `usage_events`, or says why it cannot be one. Pure."""

import datetime as dt
import uuid
from typing import Final

import msgspec

from shared import wire
from shared.ids import uuid7_wall_s

SMALLINT_MAX: Final = 2**15 - 1
INTEGER_MAX: Final = 2**31 - 1
BIGINT_MAX: Final = 2**63 - 1
TOKENS_MAX: Final = 10**9  # far above any request; at the highest price, sums of thousands of them are a bigint
TEXT_CHARS_MAX: Final = 200


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """Fields are the columns, in this order, that the ledger inserts."""

    request_id: uuid.UUID
    attempt: int
    final: bool
    occurred_at: dt.datetime
    tenant_id: uuid.UUID
    api_key_id: uuid.UUID
    model_id: uuid.UUID
    tier: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    recomputed_tokens: int
    finish: str
    ttft_ms: int | None
    total_ms: int
    worker: str
    gateway: str
    preemptions: int


def parse(payload: bytes) -> Row:
    """Raises ValueError (msgspec's errors are ValueErrors too) with the reason why this is not a bill."""
    event = wire.decode(payload, wire.UsageEvent)
    request_id = _uuid("request", event.request)
    if request_id.version != 7:
        raise ValueError("request is not a UUIDv7")
    if event.cached_tokens > event.prompt_tokens:
        raise ValueError("cached_tokens exceed prompt_tokens")
    return Row(
        request_id=request_id,
        attempt=_integer("attempt", event.attempt, SMALLINT_MAX),
        final=event.final,
        occurred_at=dt.datetime.fromtimestamp(uuid7_wall_s(request_id), dt.UTC),
        tenant_id=_uuid("tenant", event.tenant),
        api_key_id=_uuid("key", event.key),
        model_id=_uuid("model", event.model),
        tier=_integer("tier", event.tier, SMALLINT_MAX),
        prompt_tokens=_integer("prompt_tokens", event.prompt_tokens, TOKENS_MAX),
        cached_tokens=_integer("cached_tokens", event.cached_tokens, TOKENS_MAX),
        completion_tokens=_integer("completion_tokens", event.completion_tokens, TOKENS_MAX),
        recomputed_tokens=_integer("recomputed_tokens", event.recomputed_tokens, TOKENS_MAX),
        finish=_text("finish", event.finish),
        ttft_ms=None if event.ttft_ms is None else _integer("ttft_ms", event.ttft_ms, BIGINT_MAX),
        total_ms=_integer("total_ms", event.total_ms, BIGINT_MAX),
        worker=_text("worker", event.worker),
        gateway=_text("gateway", event.gateway),
        preemptions=_integer("preemptions", event.preemptions, INTEGER_MAX),
    )


def _uuid(name: str, value: str) -> uuid.UUID:
    try:
        return uuid.UUID(value)
    except ValueError:
        raise ValueError(f"{name} is not a UUID") from None


def _integer(name: str, value: int, most: int) -> int:
    if not 0 <= value <= most:
        raise ValueError(f"{name} is out of range")
    return value


def _text(name: str, value: str) -> str:
    if len(value) > TEXT_CHARS_MAX or "\0" in value:
        raise ValueError(f"{name} is not a short text")
    return value
