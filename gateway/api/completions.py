"""POST /v1/completions."""

import msgspec
from litestar import post
from litestar.di import NamedDependency
from litestar.types import ASGIApp

from gateway.api import parse
from gateway.api.answer import Answers, Endpoint
from gateway.api.completion_shape import CompletionShape
from gateway.api.schemas import CompletionBody, LenientCompletionBody
from gateway.api.services import Services

ENDPOINT = Endpoint(
    path="/v1/completions",
    operation="text_completion",
    decoder=msgspec.json.Decoder(CompletionBody),
    lenient=msgspec.json.Decoder(LenientCompletionBody),
    parse=parse.completion,
    shape=CompletionShape,
)


@post(ENDPOINT.path, status_code=200)
async def create_completion(services: NamedDependency[Services]) -> ASGIApp:
    """Serves other spellings of the path, such as one with a trailing slash. The exact path is served by `Front`."""
    return Answers(services, ENDPOINT)
