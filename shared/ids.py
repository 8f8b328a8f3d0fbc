"""Identifiers: UUIDv7 (RFC 9562) for requests and rows, short random ids for processes, W3C ids for traces."""

import os
import random
import secrets
import time
import uuid


def uuid7(wall_s: float | None = None) -> uuid.UUID:
    """A UUIDv7: 48 bits of Unix milliseconds, then 74 random bits (RFC 9562 section 5.7)."""
    ms = time.time_ns() // 1_000_000 if wall_s is None else int(wall_s * 1000)
    value = (ms & (1 << 48) - 1) << 80 | int.from_bytes(os.urandom(10), "big")
    value = value & ~(0xF << 76) | 0x7 << 76
    value = value & ~(0x3 << 62) | 0x2 << 62
    return uuid.UUID(int=value)


def uuid7_wall_s(value: uuid.UUID) -> float:
    """The moment (Unix seconds, millisecond resolution) that a UUIDv7 carries."""
    return (value.int >> 80) / 1000


def process_id(prefix: str) -> str:
    """A name for one process, unique among all that ever ran, fit for a NATS subject: `gw-1f3a5c7e9b2d`."""
    return f"{prefix}-{secrets.token_hex(6)}"


def trace_id() -> str:
    """32 hexadecimal digits. Unique but not secret: drawn without a system call, which is faster."""
    return f"{random.getrandbits(128) or 1:032x}"


def span_id() -> str:
    """16 hexadecimal digits, as `trace_id`."""
    return f"{random.getrandbits(64) or 1:016x}"
