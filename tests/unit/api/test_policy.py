"""The policy of fields: complete against the official client's types and our own, and as docs/api.md shows it."""

from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest
from openai.types import completion_create_params as completions
from openai.types.chat import completion_create_params as chat

from gateway.api import policy
from gateway.api.policy import Policy
from gateway.api.schemas import Body, ChatBody, CompletionBody, LenientChatBody, LenientCompletionBody
from gateway.errors import InvalidRequest
from tests.unit.api.test_parse import parse_chat, parse_completion

DOCS = Path(__file__).parents[3] / "docs" / "api.md"
ASKING = {  # what asks for something, in the form that is documented
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
    "tool_choice": "required",
    "functions": [{"name": "f"}],
    "function_call": {"name": "f"},
    "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": {}}},
    "modalities": ["text", "audio"],
    "audio": {"voice": "x", "format": "wav"},
    "prediction": {"type": "content", "content": "x"},
    "web_search_options": {},
    "reasoning_effort": "high",
    "verbosity": "low",
    "moderation": {"model": "x"},
    "store": True,
    "best_of": 2,
    "echo": True,
    "suffix": "x",
}
OF_COMPLETIONS = ("best_of", "echo", "suffix")


def rows(fields: Mapping[str, Policy]) -> list[str]:
    return [f"| `{field}` | {found.verdict} | {_told(found)} |" for field, found in fields.items()]


def _told(found: Policy) -> str:
    if not found.neutral:
        return found.note
    values = " or ".join(f"`{msgspec.json.encode(value).decode()}`" for value in found.neutral)
    return f"{found.note}; {values} is accepted"


@pytest.mark.parametrize(
    ("fields", "bodies", "documented"),
    [
        (policy.CHAT, (ChatBody, LenientChatBody), chat.CompletionCreateParamsBase),
        (policy.COMPLETION, (CompletionBody, LenientCompletionBody), completions.CompletionCreateParamsBase),
    ],
)
def test_every_field_has_one(fields: Mapping[str, Policy], bodies: tuple[type[Body], ...], documented: type) -> None:
    assert {*documented.__annotations__, "stream"} <= fields.keys(), "the official client knows more"
    for body in bodies:
        assert {field.name for field in msgspec.structs.fields(body)} == fields.keys()


def test_the_document_shows_it() -> None:
    shown = [line for line in DOCS.read_text().splitlines() if line.startswith("| `")]
    assert shown == rows(policy.CHAT) + rows(policy.COMPLETION)


@pytest.mark.parametrize("field", sorted(policy.REFUSED))
def test_what_is_refused_is_refused_by_name(field: str) -> None:
    accepts = parse_completion if field in OF_COMPLETIONS else parse_chat
    with pytest.raises(InvalidRequest) as refused:
        accepts(**{field: ASKING[field]})
    assert refused.value.message == f"{field} is not supported yet: {policy.REFUSED[field].note}."
    assert (refused.value.param, refused.value.code) == (field, "unsupported_parameter")


@pytest.mark.parametrize("field", sorted(field for field, found in policy.CHAT.items() if found.verdict == "ignore"))
def test_what_is_ignored_changes_nothing(field: str) -> None:
    value = {"parallel_tool_calls": True, "metadata": {"a": "b"}, "prompt_cache_options": {"x": 1}}.get(field, "auto")
    assert parse_chat(**{field: value}) == parse_chat()


@pytest.mark.parametrize("role", ["tool", "function"])
def test_what_tools_answered_is_refused_by_name(role: str) -> None:
    with pytest.raises(InvalidRequest, match="not supported yet") as refused:
        parse_chat(messages=[{"role": role, "content": "x", "tool_call_id": "1"}])
    assert refused.value.param == "messages[0].role"
