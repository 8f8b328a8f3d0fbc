"""Structured logs: one JSON object a line (or coloured text on a terminal), events named `noun.verb`.

Never a prompt, an answer, a key or a password: callers log ids and counts.
"""

import logging
import sys
from typing import Any, Literal

import structlog

Level = Literal["debug", "info", "warning", "error"]


def configure(*, level: Level = "info", json: bool | None = None, **bound: Any) -> None:
    """Set up structlog for this process and bind `bound` (service, worker or gateway id) to every event."""
    as_json = not sys.stderr.isatty() if json is None else json
    renderer = structlog.processors.JSONRenderer() if as_json else structlog.dev.ConsoleRenderer()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=False,
    )
    structlog.contextvars.bind_contextvars(**bound)


def get(name: str) -> Any:
    return structlog.get_logger(component=name)
