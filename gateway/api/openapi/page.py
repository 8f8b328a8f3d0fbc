"""The OpenAPI document as one page of HTML, without scripts, external styles or anything else to load."""

import html
from collections.abc import Mapping
from typing import Any, Final

import msgspec

HEADERS: Final = {"content-security-policy": "default-src 'none'; style-src 'unsafe-inline'"}

_STYLE = (
    "body{font:16px/1.5 sans-serif;max-width:60em;margin:2em auto;padding:0 1em}"
    "pre{overflow:auto;background:#f4f4f4;padding:1em}summary{cursor:pointer}code{font-size:95%}"
)


def render(document: Mapping[str, Any]) -> bytes:
    info = document["info"]
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8>",
        f"<title>{html.escape(info['title'])}</title><style>{_STYLE}</style>",
        f"<h1>{html.escape(info['title'])} {html.escape(info['version'])}</h1>",
        f"<p>{html.escape(info['description'])}</p>",
        "<p>For programs: <a href=/openapi.json>/openapi.json</a>.</p><h2>Operations</h2>",
    ]
    for path, methods in document["paths"].items():
        for method in ("get", "post", "put", "patch", "delete"):
            if method in methods:
                title = f"{method.upper()} {path}"
                parts.append(_folded(title, methods[method]["summary"], methods[method]))
    parts.append("<h2>Schemas</h2>")
    for name, schema in document["components"]["schemas"].items():
        parts.append(_folded(name, schema.get("description", ""), schema, anchor=name))
    return "".join(parts).encode()


def _folded(title: str, summary: str, described: Any, *, anchor: str = "") -> str:
    text = msgspec.json.format(msgspec.json.encode(described), indent=2).decode()
    return (
        f'<details id="{html.escape(anchor)}"><summary><code>{html.escape(title)}</code> {html.escape(summary)}'
        f"</summary><pre>{html.escape(text)}</pre></details>"
    )
