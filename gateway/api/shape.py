"""How an answer is written: the interface between running a request and the two dialects, and what the dialects share.

Server-sent events are joined from pre-encoded bytes: a token's event costs one JSON string, not a tree of objects.
Every event is one line of JSON and valid UTF-8 by itself.
"""

from dataclasses import dataclass, field
from typing import Final, Protocol

import msgspec

from shared import wire

DONE: Final = b"data: [DONE]\n\n"
LOGPROB_MIN: Final = -9999.0  # JSON has no -Infinity

json_bytes: Final = msgspec.json.Encoder().encode


class TokensDetails(msgspec.Struct, frozen=True):
    cached_tokens: int


class OutputDetails(msgspec.Struct, frozen=True):
    reasoning_tokens: int = 0


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Each prompt is counted once, whatever n; every sampled token is counted, those of stop strings included."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: TokensDetails
    completion_tokens_details: OutputDetails = OutputDetails()

    @classmethod
    def of(cls, end: wire.End) -> "Usage":
        return cls(
            prompt_tokens=end.prompt_tokens,
            completion_tokens=end.completion_tokens,
            total_tokens=end.prompt_tokens + end.completion_tokens,
            prompt_tokens_details=TokensDetails(end.cached_tokens),
        )


@dataclass(slots=True)
class Choice:
    """A finished choice of an answer that is not streamed."""

    index: int
    texts: list[str] = field(default_factory=list[str])
    logprobs: list[wire.TokenLogprob] = field(default_factory=list[wire.TokenLogprob])
    finish: wire.Finish | None = None

    def add(self, chunk: wire.Chunk) -> None:
        self.texts.append(chunk.text)
        self.logprobs.extend(chunk.logprobs or ())
        self.finish = chunk.finish or self.finish


class AnswerSpec(msgspec.Struct, frozen=True):
    """What the events of one answer have in common, known before the first of them."""

    request: str
    created_s: int
    model: str  # as the client named it
    choices: int
    logprobs: bool
    include_usage: bool


class Shape(Protocol):
    def opening(self) -> bytes:
        """The events before the first token."""
        ...

    def events(self, chunk: wire.Chunk) -> bytes:
        """The events of one chunk, perhaps none."""
        ...

    def closing(self, usage: Usage) -> bytes:
        """The events after the last token."""
        ...

    def whole(self, choices: list[Choice], usage: Usage) -> bytes:
        """The body of an answer that is not streamed."""
        ...


class Envelope:
    """The text around the choices of every event of an answer: encoded once, and copied around each choice."""

    def __init__(self, spec: AnswerSpec, *, id_: str, object_: str) -> None:
        self._includes_usage = spec.include_usage
        self._head = b'data: {"id":%b,"object":"%b","created":%d,"model":%b,"system_fingerprint":null,"choices":[' % (
            json_bytes(id_),
            object_.encode(),
            spec.created_s,
            json_bytes(spec.model),
        )
        self._tail = b'],"usage":null}\n\n' if spec.include_usage else b"]}\n\n"

    def event(self, choice: bytes) -> bytes:
        """The event with this one choice, which is a JSON object."""
        return self._head + choice + self._tail

    def closing(self, usage: Usage) -> bytes:
        """The events after the last token."""
        if not self._includes_usage:
            return DONE
        return self._head + b'],"usage":' + json_bytes(usage) + b"}\n\n" + DONE


def event(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"


def clamped(logprob: float) -> float:
    return max(logprob, LOGPROB_MIN)


def token_text(token: bytes) -> str:
    """A token's bytes as text; half a character becomes U+FFFD."""
    return token.decode(errors="replace")
