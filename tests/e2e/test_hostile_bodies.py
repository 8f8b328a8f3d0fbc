"""Replays of public reports about request bodies that crashed, hung or fooled a server (kinds: sampling numbers,
max_tokens, empty prompts, deep nesting, token ids, lone surrogates). Each must be a precise 4xx or a plain answer, with
a bystander's stream undisturbed."""

import json

import pytest

from tests.e2e.api import MODEL, Api, assert_error, bystander, chat_body, counts

CHAT = "/chat/completions"


def raw_chat(fields: str) -> bytes:
    return f'{{"model":"{MODEL}","messages":[{{"role":"user","content":"hi"}}],"max_tokens":8,{fields}}}'.encode()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ('"temperature":NaN', None),  # not JSON at all
        ('"temperature":Infinity', None),
        ('"temperature":-Infinity', None),
        ('"temperature":1e400', "temperature"),
        ('"temperature":-0.1', "temperature"),
        ('"temperature":2.1', "temperature"),
        ('"temperature":"1"', "temperature"),
        ('"temperature":1,"top_p":NaN', None),
        ('"top_p":1e400', "top_p"),
        ('"top_p":-0.5', "top_p"),
        ('"top_p":1.5', "top_p"),
        ('"presence_penalty":1e400', "presence_penalty"),
        ('"frequency_penalty":-1e400', "frequency_penalty"),
        ('"logit_bias":{"5":NaN}', None),
        ('"logit_bias":{"5":1e400}', "logit_bias"),
        ('"seed":1e400', "seed"),
        ('"n":0', "n"),
        ('"n":1000000', "n"),
        ('"n":1.5', "n"),
    ],
)
def test_numbers_that_are_not_finite_or_in_range_are_refused_by_name(api: Api, fields: str, param: str | None) -> None:
    error = assert_error(api.post(CHAT, raw_chat(fields)), 400)
    if param is not None:
        assert error["param"] == param, error


def test_hostile_numbers_leave_the_bystander_alone(api: Api, other: Api) -> None:
    with bystander(other):
        for fields in ('"temperature":NaN', '"temperature":1e400', '"logit_bias":{"5":1e400}', '"top_p":-1'):
            assert_error(api.post(CHAT, raw_chat(fields)), 400)
        api.probe()


@pytest.mark.parametrize("temperature", [1e-5, 1e-4, 0])
def test_almost_zero_temperature_is_the_greedy_answer(api: Api, temperature: float) -> None:
    greedy = api.chat("hi", temperature=0).json()
    answer = api.chat("hi", temperature=temperature, logprobs=True, top_logprobs=2)
    assert answer.status_code == 200, answer.text
    choice = answer.json()["choices"][0]
    assert choice["message"]["content"] == greedy["choices"][0]["message"]["content"] != ""
    assert all(entry["logprob"] <= 0 for entry in choice["logprobs"]["content"])


@pytest.mark.parametrize("path", [CHAT, "/completions"])
@pytest.mark.parametrize("value", [0, -1, -186, "10", 3.5, True, [], {}])
def test_max_tokens_that_no_request_can_mean(api: Api, path: str, value: object) -> None:
    body = chat_body() if path == CHAT else {"model": MODEL, "prompt": "test"}
    assert_error(api.post(path, {**body, "max_tokens": value}), 400, "max_tokens")
    if path == CHAT:
        body.pop("max_tokens")
        assert_error(api.post(path, {**body, "max_completion_tokens": value}), 400, "max_completion_tokens")


@pytest.mark.parametrize("path", [CHAT, "/completions"])
@pytest.mark.parametrize("value", ["2147483648", "9223372036854775808", "1e30", "99999999999999999999999999"])
def test_max_tokens_beyond_the_context_names_the_limit(api: Api, path: str, value: str) -> None:
    prompt = '"messages":[{"role":"user","content":"hi"}]' if path == CHAT else '"prompt":"test"'
    error = assert_error(api.post(path, f'{{"model":"{MODEL}",{prompt},"max_tokens":{value}}}'.encode()), 400)
    assert error["param"] == "max_tokens"
    assert "-" not in error["message"].replace("max_completion_tokens", "")


@pytest.mark.parametrize("path", [CHAT, "/completions"])
def test_max_tokens_null_is_absent(api: Api, path: str) -> None:
    body = chat_body(stop="e") if path == CHAT else {"model": MODEL, "prompt": "test", "stop": "e"}
    assert api.post(path, {**body, "max_tokens": None}).status_code == 200


def test_two_different_maximums_are_refused_and_two_equal_ones_are_one(api: Api) -> None:
    assert_error(api.chat(max_tokens=3, max_completion_tokens=4), 400)
    answer = api.chat(max_tokens=3, max_completion_tokens=3, ignore_eos=True).json()
    assert answer["usage"]["completion_tokens"] == 3


def test_a_prompt_over_the_context_states_both_lengths(api: Api) -> None:
    answer = api.post("/completions", {"model": MODEL, "prompt": [100] * 8242})
    error = assert_error(answer, 400)
    assert error["code"] == "context_length_exceeded"
    assert "8242" in error["message"]
    assert "8192" in error["message"]


@pytest.mark.parametrize("prompt", ["", [""], [], [[]], ["ok", ""]])
def test_empty_prompts(api: Api, prompt: object) -> None:
    answer = api.complete(prompt)
    if answer.status_code == 200:
        assert answer.json()["usage"]["prompt_tokens"] >= 1
    else:
        assert_error(answer, 400, "prompt")
    api.probe()


@pytest.mark.parametrize("messages", [[], None, {}, [{}], [{"role": "user"}], [{"role": "user", "content": []}]])
def test_empty_messages(api: Api, messages: object) -> None:
    assert_error(api.post(CHAT, {"model": MODEL, "messages": messages}), 400, "messages")


def test_empty_content_is_a_prompt_when_the_template_yields_tokens(api: Api) -> None:
    answer = api.chat("")
    assert answer.status_code == 200
    assert answer.json()["usage"]["prompt_tokens"] >= 1


def nested_schema(depth: int) -> str:
    return '{"type":"object","properties":{"a":' * depth + "{}" + "}}" * depth


@pytest.mark.parametrize("depth", [1_000, 10_000, 100_000])
@pytest.mark.parametrize(
    "place",
    ['"x":DEEP', '"metadata":{"a":DEEP}', '"logit_bias":DEEP', '"tools":TOOLS', '"response_format":FORMAT', "CONTENT"],
)
def test_deep_nesting_is_refused(api: Api, place: str, depth: int) -> None:
    deep = "[" * depth + "0" + "]" * depth
    schema = nested_schema(depth)
    fields = (
        place.replace("TOOLS", f'[{{"type":"function","function":{{"name":"f","parameters":{schema}}}}}]')
        .replace("FORMAT", f'{{"type":"json_schema","json_schema":{{"name":"s","schema":{schema}}}}}')
        .replace("DEEP", deep)
    )
    body = raw_chat(fields)
    if place == "CONTENT":
        body = f'{{"model":"{MODEL}","messages":[{{"role":"user","content":{deep}}}]}}'.encode()
    answer = api.post(CHAT, body)
    if answer.status_code != 200 or depth > 1_000:
        assert_error(answer, (400, 413))
        assert "recursion" not in answer.text.lower()


def test_an_unfinished_nest_is_refused(api: Api) -> None:
    assert_error(api.post(CHAT, b"[" * 100_000), (400, 413))
    api.probe()


@pytest.mark.parametrize(
    "prompt",
    [
        "[-1]",
        "[[-1]]",
        "[49152]",
        "[1000000000]",
        "[9223372036854775808]",
        "[1.5]",
        "[true]",
        '["a",1]',
        "[[1,2],[3,-7]]",
        "[[1,2],[3,49152]]",
        "[null]",
        "{}",
        "5",
    ],
)
def test_token_ids_outside_the_vocabulary(api: Api, prompt: str) -> None:
    assert_error(
        api.post("/completions", f'{{"model":"{MODEL}","prompt":{prompt},"max_tokens":3}}'.encode()), 400, "prompt"
    )


def test_token_ids_inside_the_vocabulary(api: Api, other: Api) -> None:
    with bystander(other):
        assert api.complete([49151], max_tokens=3).status_code == 200
        answer = api.complete([[1, 2, 3], [4, 5]], max_tokens=3, ignore_eos=True).json()
    assert [choice["index"] for choice in answer["choices"]] == [0, 1]
    assert answer["usage"] | {"prompt_tokens": 5, "completion_tokens": 6, "total_tokens": 11} == answer["usage"]


@pytest.mark.parametrize(
    "body",
    [
        raw_chat("").replace(b'"hi"', rb'"hi \ud83d there"').replace(b",}", b"}"),
        raw_chat("").replace(b'"hi"', rb'"hi \udc4d\ud83d there"').replace(b",}", b"}"),
        raw_chat(r'"stop":["\ud83d"]'),
        raw_chat(r'"user":"\ud83d"'),
        raw_chat("").replace(MODEL.encode(), rb"\ud83d").replace(b",}", b"}"),
        raw_chat(r'"tools":[{"type":"function","function":{"name":"\ud83d"}}]'),
        raw_chat("").replace(b'"hi"', b'"hi \xff\xfe"').replace(b",}", b"}"),
    ],
)
def test_half_characters_in_the_body_are_refused(api: Api, body: bytes) -> None:
    assert_error(api.post(CHAT, body), 400)
    api.probe()


def test_an_escaped_pair_is_the_character(api: Api) -> None:
    escaped = api.post(CHAT, raw_chat('"temperature":0').replace(b'"hi"', rb'"\ud83d\udc4d"'))
    literal = api.post(CHAT, raw_chat('"temperature":0').replace(b'"hi"', '"👍"'.encode()))
    assert escaped.status_code == literal.status_code == 200
    assert counts(escaped.json()) == counts(literal.json())
    assert escaped.json()["choices"] == literal.json()["choices"]


def test_malformed_json_wrong_types_and_unknown_names(api: Api) -> None:
    assert_error(api.post(CHAT, b"{"), 400)
    assert_error(api.post(CHAT, b""), 400)
    assert_error(api.post(CHAT, b"[]"), 400)
    assert_error(api.post(CHAT, {"model": 5, "messages": []}), 400)
    assert_error(api.chat(stream="yes"), 400, "stream")
    assert assert_error(api.chat(model="no-such-model"), 404)["code"] == "model_not_found"


def test_a_body_of_20_megabytes_is_too_large(api: Api) -> None:
    assert_error(api.chat("x" * 20_000_000), 413)
    api.probe()


def test_error_bodies_do_not_echo_the_input(api: Api) -> None:
    answer = api.chat("hi", temperature="S3CRET" * 1000)
    assert_error(answer, 400, "temperature")
    assert "S3CRET" * 3 not in answer.text
    assert json.loads(answer.text)
