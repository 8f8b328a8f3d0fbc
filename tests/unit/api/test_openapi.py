"""The OpenAPI document: every reference leads somewhere, and nothing is fetched from elsewhere."""

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from gateway.api.admin.route import OPT
from gateway.api.admin.routes import ROUTES
from gateway.api.openapi import document, page

DOCUMENT = document.build((route.opt[OPT] for route in ROUTES), version="1")


def everything(value: Any) -> Iterator[Any]:
    yield value
    for child in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from everything(child)


def test_every_reference_leads_somewhere() -> None:
    refs = {node["$ref"] for node in everything(DOCUMENT) if isinstance(node, dict) and "$ref" in node}
    assert refs
    for ref in refs:
        found: Any = DOCUMENT
        for part in ref.removeprefix("#/").split("/"):
            found = found[part]


def test_every_operation_has_a_name_of_its_own_and_says_what_it_is_for() -> None:
    operations = [
        operation
        for methods in DOCUMENT["paths"].values()
        for method, operation in methods.items()
        if method != "parameters"
    ]
    names = [operation["operationId"] for operation in operations]
    assert len(names) == len(set(names))
    assert all(operation["summary"].endswith(".") for operation in operations)
    assert all({"401", "503"} <= set(operation["responses"]) for operation in operations)


def test_a_body_that_takes_no_unknown_fields_says_so() -> None:
    schema = DOCUMENT["components"]["schemas"]["NewTenant"]
    assert schema["additionalProperties"] is False
    assert set(schema["required"]) == {"name", "plan"}


def test_it_loads_nothing() -> None:
    shown = page.render(DOCUMENT).decode()
    assert "<script" not in shown
    assert not re.search(r"(?:src|href)=(?!/openapi.json)", shown)
    assert "https://" not in msgspec.json.encode(DOCUMENT).decode()
    assert "POST /admin/v1/keys/{public_id}/rotate" in shown
