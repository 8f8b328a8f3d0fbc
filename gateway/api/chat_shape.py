"""How /v1/chat/completions writes its answers."""

from collections.abc import Iterable

import msgspec

from gateway.api.shape import AnswerSpec, Choice, Envelope, Usage, clamped, json_bytes, token_text
from shared import wire


class TopLogprob(msgspec.Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(msgspec.Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class Logprobs(msgspec.Struct, frozen=True):
    content: list[TokenLogprob]
    refusal: None = None


class AnswerMessage(msgspec.Struct, frozen=True):
    content: str
    role: str = "assistant"
    refusal: None = None


class AnswerChoice(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    message: AnswerMessage
    logprobs: Logprobs | None
    finish_reason: wire.Finish | None


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: str = "chat.completion"
    created: int
    model: str
    choices: list[AnswerChoice]
    usage: Usage
    system_fingerprint: None = None


class ChatShape:
    def __init__(self, spec: AnswerSpec) -> None:
        self._spec = spec
        self._id = f"chatcmpl-{spec.request}"
        self._envelope = Envelope(spec, id_=self._id, object_="chat.completion.chunk")

    def opening(self) -> bytes:
        return b"".join(
            self._event(choice, b'"role":"assistant","content":""', b"null", b"null")
            for choice in range(self._spec.choices)
        )

    def events(self, chunk: wire.Chunk) -> bytes:
        data = b""
        if chunk.text or chunk.logprobs:
            logprobs = json_bytes(_logprobs(chunk.logprobs)) if chunk.logprobs else b"null"
            data = self._event(chunk.choice, b'"content":' + json_bytes(chunk.text), logprobs, b"null")
        if chunk.finish:
            data += self._event(chunk.choice, b"", b"null", b'"' + chunk.finish.encode() + b'"')
        return data

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
            message=AnswerMessage("".join(choice.texts)),
            logprobs=_logprobs(choice.logprobs) if self._spec.logprobs else None,
            finish_reason=choice.finish,
        )

    def _event(self, choice: int, delta: bytes, logprobs: bytes, finish: bytes) -> bytes:
        return self._envelope.event(
            b'{"index":%d,"delta":{%b},"logprobs":%b,"finish_reason":%b}' % (choice, delta, logprobs, finish)
        )


def _logprobs(tokens: Iterable[wire.TokenLogprob]) -> Logprobs:
    return Logprobs([_token(token) for token in tokens])


def _token(token: wire.TokenLogprob) -> TokenLogprob:
    top = [TopLogprob(token_text(text), clamped(logprob), list(text)) for _, logprob, text in token.top]
    return TokenLogprob(token_text(token.text), clamped(token.logprob), list(token.text), top)
