"""The position of a request in a distributed trace, as W3C Trace Context writes it: `traceparent` and `tracestate`.

Owns the grammar; pure. Knows neither spans nor HTTP, nor whose headers are trusted. Invariant: a `Context` always has
ids that W3C allows; a malformed header gives no context, and never an error.
"""

import re
from collections.abc import Sequence
from typing import Final

import msgspec

from shared import ids

STATE_CHARS_MAX: Final = 512
STATE_MEMBERS_MAX: Final = 32

_PARENT: Final = re.compile(
    r"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-[ -~]{0,200})?"
)
_MEMBER: Final = re.compile(r"([a-z0-9][a-z0-9_\-*/@]{0,255})=[ -+\--<>-~]{0,255}[!-+\--<>-~]")
_SAMPLED: Final = 1  # the bit in the flags


class Context(msgspec.Struct, frozen=True):
    """One span of one trace, by its ids in hexadecimal."""

    trace: str
    span: str
    sampled: bool = False  # its spans are recorded
    state: str = ""  # `tracestate`: other systems' data about this trace, passed on unchanged

    @property
    def header(self) -> str:
        """As `traceparent`."""
        return f"00-{self.trace}-{self.span}-{'01' if self.sampled else '00'}"

    def child(self) -> "Context":
        """A new span of the same trace; the same context if the trace is not sampled."""
        return Context(self.trace, ids.span_id(), True, self.state) if self.sampled else self


def parse(parents: Sequence[str], states: Sequence[str] = ()) -> Context | None:
    """The context in header lines; None unless there is exactly one `traceparent`, well-formed. A malformed
    `tracestate` alone is dropped.
    """
    found = _PARENT.fullmatch(parents[0]) if len(parents) == 1 else None
    if found is None:
        return None
    version, trace, span, flags, more = found.groups()
    if version == "00" and more is not None:
        return None
    return Context(trace, span, bool(int(flags, 16) & _SAMPLED), _state(states))


def _state(lines: Sequence[str]) -> str:
    if not any(lines):
        return ""
    members = [member for member in (part.strip(" \t") for part in ",".join(lines).split(",")) if member]
    found = [_MEMBER.fullmatch(member) for member in members]
    keys = {match[1] for match in found if match is not None}
    state = ",".join(members)
    good = len(keys) == len(members) <= STATE_MEMBERS_MAX and len(state) <= STATE_CHARS_MAX
    return state if good else ""
