"""Message content as a list of parts, null content, and roles: the prompt that reaches the model is what was said."""

from typing import Any

import pytest

from tests.e2e.api import MODEL, Api, assert_error, counts


def ask(api: Api, *messages: dict[str, Any]) -> dict[str, Any]:
    answer = api.post(
        "/chat/completions", {"model": MODEL, "messages": list(messages), "max_tokens": 4, "temperature": 0}
    )
    assert answer.status_code == 200, answer.text
    return answer.json()


def text_part(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


@pytest.mark.parametrize("role", ["user", "system", "assistant"])
def test_one_text_part_is_the_same_prompt_as_the_string(api: Api, role: str) -> None:
    user = {"role": "user", "content": "go on"}
    plain = ask(api, {"role": role, "content": "alpha beta gamma"}, user)
    parts = ask(api, {"role": role, "content": [text_part("alpha beta gamma")]}, user)
    assert counts(plain) == counts(parts)
    assert plain["choices"] == parts["choices"]


def test_two_text_parts_are_joined(api: Api) -> None:
    plain = ask(api, {"role": "user", "content": "alpha beta gamma"})
    parts = ask(api, {"role": "user", "content": [text_part("alpha "), text_part("beta gamma")]})
    assert abs(plain["usage"]["prompt_tokens"] - parts["usage"]["prompt_tokens"]) <= 2


@pytest.mark.parametrize(
    "content",
    [
        [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}],
        [{"type": "text"}],
        [{"type": "hologram", "text": "x"}],
        [{"text": "x"}],
        ["x"],
        5,
        None,
    ],
)
def test_parts_that_a_text_model_cannot_read(api: Api, content: object) -> None:
    assert_error(api.chat(content), 400, "messages")


def test_assistant_content_may_be_null_only_with_tool_calls_and_never_breaks_the_template(api: Api) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    for assistant in ({"content": None, "tool_calls": [call]}, {"tool_calls": [call]}):
        messages = [
            {"role": "user", "content": "hi"},
            {"role": "assistant", **assistant},
            {"role": "tool", "tool_call_id": "c1", "content": "42"},
        ]
        answer = api.post("/chat/completions", {"model": MODEL, "messages": messages, "max_tokens": 4})
        assert answer.status_code == 400, "tools are refused by name until they are supported"
        assert "tool" in answer.json()["error"]["message"]


@pytest.mark.parametrize("role", ["user2", "", None, 5])
def test_unknown_roles_are_named(api: Api, role: object) -> None:
    body = {"model": MODEL, "messages": [{"role": role, "content": "hi"}]}
    error = assert_error(api.post("/chat/completions", body), 400, "messages")
    assert "role" in (error["message"] + str(error["param"]))


def test_a_missing_role_is_named(api: Api) -> None:
    error = assert_error(api.post("/chat/completions", {"model": MODEL, "messages": [{"content": "hi"}]}), 400)
    assert error["param"] == "messages[0].role"
    assert "$" not in error["message"]


def test_developer_is_system(api: Api) -> None:
    user = {"role": "user", "content": "hi"}
    developer = ask(api, {"role": "developer", "content": "Be brief."}, user)
    assert counts(developer) == counts(ask(api, {"role": "system", "content": "Be brief."}, user))
