"""Requests made from our own OpenAPI document, good and bad ones: no 5xx, and every answer as the document says."""

import asyncio

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.strategies import SearchStrategy
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.integration.administration import administered, make_key, make_tenant
from tests.scripted_gateway import ADMIN_KEY, KEY
from tests.tiny_model import MODEL

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
REQUEST_S = 60.0
MESSAGES = [{"role": "user", "content": "hi"}]
REQUIRED = {"model": MODEL, "messages": MESSAGES, "prompt": "hi"}


@pytest.mark.parametrize(("area", "key", "examples"), [("inference", KEY, 8), ("administration", ADMIN_KEY, 3)])
async def test_no_request_of_the_document_breaks_it(database_url: str, area: str, key: str, examples: int) -> None:
    async with administered(database_url) as gateway:
        await make_tenant(gateway)
        names = {
            "tenant": "acme",
            "plan": "standard",
            "tier": 0,
            "public_id": (await make_key(gateway))["key"]["public_id"],
        }
        document = (await gateway.get("/openapi.json", headers={})).json
        schema = schemathesis.openapi.from_dict(document)
        schema.config.update(base_url=gateway.base)
        schema.config.generation.update(with_security_parameters=False)
        await asyncio.to_thread(call_all, schema, area, key, names, examples)


def call_all(schema: schemathesis.BaseSchema, area: str, key: str, names: dict[str, object], examples: int) -> None:
    served = set[str]()
    operations = [found.ok() for found in schema.get_all_operations()]
    chosen = [operation for operation in operations if area in operation.tags]
    for operation in chosen:
        served |= exercise(operation.as_strategy(GenerationMode.POSITIVE), key, names, examples)
        if operation.body or operation.query:  # otherwise there is nothing to get wrong
            served |= exercise(operation.as_strategy(GenerationMode.NEGATIVE), key, {}, examples)
    assert len(served) > len(chosen) / 2, "most requests were refused: what is behind was not reached"


def exercise(cases: SearchStrategy[Case], key: str, names: dict[str, object], examples: int) -> set[str]:
    """With `names`, what a request points at exists. The operations that were served once at least."""
    served = set[str]()

    @given(case=cases)
    @settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def check(case: Case) -> None:
        if names:
            point(case, names)
        response = case.call(headers={"authorization": f"Bearer {key}"}, timeout=REQUEST_S)
        case.validate_response(response, checks=CHECKS)
        if response.status_code < 400:
            served.add(case.operation.label)

    check()
    return served


def point(case: Case, names: dict[str, object]) -> None:
    """At what exists. Of the other fields of a question to a model one is left: most values of most are refused."""
    case.path_parameters = {name: str(names.get(name, value)) for name, value in case.path_parameters.items()}
    if "name" in case.path_parameters:
        case.path_parameters["name"] = MODEL
    if not isinstance(case.body, dict):
        return
    if "inference" in case.operation.tags:
        others = [name for name in case.body if name not in REQUIRED]
        case.body = {name: REQUIRED.get(name, value) for name, value in case.body.items() if name not in others[1:]}
    else:
        case.body = {name: names.get(name, value) for name, value in case.body.items()}
