"""The ASGI application of a gateway: passes the two token endpoints to `Answers`, and everything else to Litestar.

Knows only their paths. Requests for tokens thus spend no time on routing, request objects and middleware that they do
not need (docs/adr/0019); wrong methods, other spellings and other paths are answered by Litestar.
"""

from collections.abc import Awaitable
from typing import Final

from litestar.types import ASGIApp, Receive, Scope, Send

from gateway.api import chat, completions
from gateway.api.answer import Answers
from gateway.api.services import Services

ENDPOINTS: Final = (chat.ENDPOINT, completions.ENDPOINT)


class Front:
    """An ASGI application for HTTP alone, without a lifespan."""

    def __init__(self, services: Services, rest: ASGIApp) -> None:
        self._direct: dict[str, ASGIApp] = {endpoint.path: Answers(services, endpoint) for endpoint in ENDPOINTS}
        self._rest = rest

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        assert scope["type"] == "http"
        serve = self._direct.get(scope["path"]) if scope["method"] == "POST" else None
        return (serve or self._rest)(scope, receive, send)
