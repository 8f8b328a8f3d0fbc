"""HTTP answers as a client sees them: errors with their shape checked, events with their framing checked."""

import aiohttp
import msgspec


class Answer(msgspec.Struct):
    status: int
    headers: "aiohttp.typedefs.LooseHeaders"
    body: bytes

    @property
    def json(self) -> dict:
        return msgspec.json.decode(self.body)

    @property
    def error(self) -> dict:
        """The error object, whose shape is checked."""
        assert self.headers["content-type"] == "application/json"
        assert len(self.body) < 4_096
        error = self.json["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["message"]
        assert "Traceback" not in error["message"]
        return error

    @property
    def events(self) -> list[str]:
        """The data of each event of a stream, whose framing is checked."""
        assert self.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert self.body.endswith(b"\n\n")
        lines = [line for line in self.body.decode().split("\n\n") if line and not line.startswith(":")]
        assert all(line.startswith("data: ") and "\n" not in line for line in lines)
        return [line.removeprefix("data: ") for line in lines]

    @property
    def chunks(self) -> list[dict]:
        """The JSON events of a stream that ended as it should."""
        *events, last = self.events
        assert last == "[DONE]"
        return [msgspec.json.decode(event) for event in events]
