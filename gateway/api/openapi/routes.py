"""GET /openapi.json and /docs, without a key: they describe the API and reveal nothing about its users."""

from collections.abc import Sequence
from importlib.metadata import version

import msgspec
from litestar import MediaType, Response, get
from litestar.handlers import HTTPRouteHandler

from gateway.api.admin.route import OPT
from gateway.api.openapi import document, page


def routes(administration: Sequence[HTTPRouteHandler]) -> tuple[HTTPRouteHandler, HTTPRouteHandler]:
    """The documents are encoded once, here."""
    built = document.build((route.opt[OPT] for route in administration), version=version("forebay"))
    json_document, html_page = msgspec.json.encode(built), page.render(built)

    @get("/openapi.json", sync_to_thread=False)
    def openapi_json() -> Response[bytes]:
        return Response(json_document, media_type=MediaType.JSON)

    @get("/docs", sync_to_thread=False)
    def docs() -> Response[bytes]:
        return Response(html_page, media_type="text/html; charset=utf-8", headers=page.HEADERS)

    return openapi_json, docs
