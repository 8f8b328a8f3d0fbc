"""POST /v1/chat/completions."""

from typing import Any

import msgspec
from litestar import Request, Response, post
from litestar.di import NamedDependency

from gateway.api import parse
from gateway.api.answer import Endpoint, answer
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
async def create_chat_completion(
    request: Request[Any, Any, Any], services: NamedDependency[Services]
) -> Response[bytes]:
    return await answer(request, services, ENDPOINT)
