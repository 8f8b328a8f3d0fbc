"""Structured logs: one JSON object a line (or coloured text on a terminal), events named `noun.verb`.

Never a prompt, an answer, a key or a password: callers log ids and counts.
"""

import contextlib
import json as stdlib_json
import logging
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

import msgspec
import structlog

_encode: Final = msgspec.json.Encoder(enc_hook=repr).encode

Level = Literal["debug", "info", "warning", "error"]


def configure(*, level: Level = "info", json: bool | None = None, **bound: Any) -> None:
    """Set up structlog for this process and bind `bound` (service, worker or gateway id) to every event."""
    as_json = not sys.stderr.isatty() if json is None else json
    renderer = structlog.processors.JSONRenderer(_line) if as_json else structlog.dev.ConsoleRenderer()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=(
            structlog.BytesLoggerFactory(sys.stderr.buffer) if as_json else structlog.WriteLoggerFactory(sys.stderr)
        ),
        cache_logger_on_first_use=False,
    )
    structlog.contextvars.bind_contextvars(**bound)


def get(name: str) -> Any:
    return structlog.get_logger(component=name)


def _line(event: Mapping[str, Any], *, default: Callable[[Any], Any]) -> bytes:
    """The standard encoder takes a third of a line's time. It is left what the other refuses (half characters of a
    path, huge numbers), and what it would not escape: a terminal obeys some characters beyond ASCII.
    """
    with contextlib.suppress(TypeError, ValueError, OverflowError):
        line = _encode(event)
        if line.isascii():
            return line
    return stdlib_json.dumps(event, default=default).encode()
