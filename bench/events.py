"""Server-sent events of an OpenAI-compatible stream, from bytes as they come. Pure: no connection, no clock."""

import msgspec

DONE = b"[DONE]"


class Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Text(msgspec.Struct, frozen=True):
    content: str | None = None


class _Choice(msgspec.Struct, frozen=True):
    text: str | None = None
    delta: _Text | None = None
    message: _Text | None = None


class Answer(msgspec.Struct, frozen=True):
    """The measured fields of one event, or of a whole answer that was not streamed."""

    choices: tuple[_Choice, ...] = ()
    usage: Usage | None = None
    error: msgspec.Raw = msgspec.Raw()

    @property
    def has_error(self) -> bool:
        return bytes(self.error) not in (b"", b"null")

    @property
    def has_text(self) -> bool:
        for choice in self.choices:
            said = choice.delta or choice.message
            if choice.text or (said and said.content):
                return True
        return False


_decoder = msgspec.json.Decoder(Answer)


def parse(payload: bytes) -> Answer:
    """Raises `msgspec.DecodeError`."""
    return _decoder.decode(payload)


class EventReader:
    """Divides a byte stream into the payloads of its events, however it arrives. In these streams each is on one
    line.
    """

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [line[5:].strip() for line in lines if line.startswith(b"data:")]
