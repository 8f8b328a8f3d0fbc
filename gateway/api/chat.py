"""POST /v1/chat/completions."""

import msgspec
from litestar import post
from litestar.di import NamedDependency
from litestar.types import ASGIApp

from gateway.api import parse
from gateway.api.answer import Answers, Endpoint
from gateway.api.chat_shape import ChatShape
from gateway.api.schemas import ChatBody, LenientChatBody
from gateway.services import Services

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
    """For the path in other spellings, a slash too many say: as it is written here, `Front` serves it."""
    return Answers(services, ENDPOINT)
