"""Moments on the command line: ISO 8601, and UTC unless they say otherwise."""

from datetime import UTC, datetime
from typing import overload


@overload
def utc(moment: datetime) -> datetime: ...
@overload
def utc(moment: None) -> None: ...
def utc(moment: datetime | None) -> datetime | None:
    return moment if moment is None or moment.tzinfo is not None else moment.replace(tzinfo=UTC)
