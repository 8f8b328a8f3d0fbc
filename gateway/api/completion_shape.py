"""How /v1/completions writes its answers."""

from codecs import utf_8_decode
from collections.abc import Iterable

import msgspec

from gateway.api.shape import AnswerSpec, Choice, Envelope, Usage, clamped, json_bytes
from shared import wire


class Logprobs(msgspec.Struct, frozen=True):
    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]  # where each token's character begins in the choice's text, a stop string's included


class AnswerChoice(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    text: str
    logprobs: Logprobs | None
    finish_reason: wire.Finish | None


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: str = "text_completion"
    created: int
    model: str
    choices: list[AnswerChoice]
    usage: Usage
    system_fingerprint: None = None


class _Offset:
    """The offset of the next token of a choice, in characters. A token that continues a character has the offset of
    that character.
    """

    def __init__(self) -> None:
        self._at = 0
        self._bytes = b""  # of an incomplete character

    def take(self, token: bytes) -> int:
        start = self._at
        data = self._bytes + token
        text, used = utf_8_decode(data, "replace", False)
        self._at += len(text)
        self._bytes = data[used:]
        return start


class CompletionShape:
    def __init__(self, spec: AnswerSpec) -> None:
        self._spec = spec
        self._id = f"cmpl-{spec.request}"
        self._offsets = [_Offset() for _ in range(spec.choices)]
        self._envelope = Envelope(spec, id_=self._id, object_="text_completion")

    def opening(self) -> bytes:
        return b""

    def events(self, chunk: wire.Chunk) -> bytes:
        if not (chunk.text or chunk.logprobs or chunk.finish):
            return b""
        logprobs = json_bytes(self._logprobs(chunk.choice, chunk.logprobs)) if chunk.logprobs else b"null"
        finish = b'"' + chunk.finish.encode() + b'"' if chunk.finish else b"null"
        choice = b'{"index":%d,"text":%b,"logprobs":%b,"finish_reason":%b}' % (
            chunk.choice,
            json_bytes(chunk.text),
            logprobs,
            finish,
        )
        return self._envelope.event(choice)

    def closing(self, usage: Usage) -> bytes:
        return self._envelope.closing(usage)

    def whole(self, choices: list[Choice], usage: Usage) -> bytes:
        return json_bytes(
            Answer(
                id=self._id,
                created=self._spec.created_s,
                model=self._spec.model,
                choices=[self._choice(choice) for choice in choices],
                usage=usage,
            )
        )

    def _choice(self, choice: Choice) -> AnswerChoice:
        return AnswerChoice(
            index=choice.index,
            text="".join(choice.texts),
            logprobs=self._logprobs(choice.index, choice.logprobs) if self._spec.logprobs else None,
            finish_reason=choice.finish,
        )

    def _logprobs(self, choice: int, tokens: Iterable[wire.TokenLogprob]) -> Logprobs:
        logprobs = Logprobs([], [], [], [])
        for token in tokens:
            text = _shown(token.text)
            logprobs.tokens.append(text)
            logprobs.token_logprobs.append(clamped(token.logprob))
            top: dict[str, float] = {}
            for _, value, other in token.top:
                top.setdefault(_shown(other), clamped(value))  # of several tokens without text, the most likely
            logprobs.top_logprobs.append(top | {text: clamped(token.logprob)})  # the sampled token is always listed
            logprobs.text_offset.append(self._offsets[choice].take(token.text))
        return logprobs


def _shown(token: bytes) -> str:
    """A token's text; bytes that are not text as OpenAI writes them, or all of them would share one key."""
    try:
        return token.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token)
