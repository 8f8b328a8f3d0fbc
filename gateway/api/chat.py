"""POST /v1/chat/completions."""

import msgspec
from litestar import post
from litestar.di import NamedDependency
from litestar.types import ASGIApp

from gateway.api import parse
from gateway.api.answer import Answers, Endpoint
from gateway.api.chat_shape import ChatShape
from gateway.api.schemas import ChatBody, LenientChatBody
from gateway.api.services import Services

ENDPOINT = Endpoint(
    path="/v1/chat/completions",
    operation="chat",
    decoder=msgspec.json.Decoder(ChatBody),
    lenient=msgspec.json.Decoder(LenientChatBody),
    parse=parse.chat,
    shape=ChatShape,
)


@post(ENDPOINT.path, status_code=200)
async def create_chat_completion(services: NamedDependency[Services]) -> ASGIApp:
    """Serves other spellings of the path, such as one with a trailing slash. The exact path is served by `Front`."""
    return Answers(services, ENDPOINT)
