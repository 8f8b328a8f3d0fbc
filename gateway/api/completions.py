"""POST /v1/completions."""

from typing import Any

import msgspec
from litestar import Request, Response, post
from litestar.di import NamedDependency

from gateway.api import parse
from gateway.api.answer import Endpoint, answer
from gateway.api.completion_shape import CompletionShape
from gateway.api.schemas import CompletionBody, LenientCompletionBody
from gateway.services import Services

ENDPOINT = Endpoint(
    path="/v1/completions",
    operation="text_completion",
    decoder=msgspec.json.Decoder(CompletionBody),
    lenient=msgspec.json.Decoder(LenientCompletionBody),
    parse=parse.completion,
    shape=CompletionShape,
)


@post(ENDPOINT.path, status_code=200)
async def create_completion(request: Request[Any, Any, Any], services: NamedDependency[Services]) -> Response[bytes]:
    return await answer(request, services, ENDPOINT)
