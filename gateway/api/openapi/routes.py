"""GET /openapi.json and /docs, for whoever asks: they say what the API is and nothing of who uses it."""

from collections.abc import Sequence
from importlib.metadata import version

import msgspec
from litestar import MediaType, Response, get
from litestar.handlers import HTTPRouteHandler

from gateway.api.admin.route import OPT
from gateway.api.openapi import document, page


def routes(administration: Sequence[HTTPRouteHandler]) -> tuple[HTTPRouteHandler, HTTPRouteHandler]:
    """Built once: the answers are bytes."""
    built = document.build((route.opt[OPT] for route in administration), version=version("forebay"))
    told, shown = msgspec.json.encode(built), page.render(built)

    @get("/openapi.json", sync_to_thread=False)
    def openapi_json() -> Response[bytes]:
        return Response(told, media_type=MediaType.JSON)

    @get("/docs", sync_to_thread=False)
    def docs() -> Response[bytes]:
        return Response(shown, media_type="text/html; charset=utf-8", headers=page.HEADERS)

    return openapi_json, docs
