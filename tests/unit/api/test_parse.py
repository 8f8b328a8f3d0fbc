"""Bodies to generations: what is honoured, what is ignored, and what is refused by which name."""

import msgspec
import pytest

from gateway.admission.generation import Generation, Turn
from gateway.api import body, chat, completions
from gateway.api.policy import REFUSED
from gateway.errors import InvalidRequest

DEEP = 100_000


def parse_chat(**fields: object) -> Generation:
    return raw_chat(msgspec.json.encode({"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}))


def raw_chat(data: bytes) -> Generation:
    return chat.ENDPOINT.parse(body.decode(data, chat.ENDPOINT.decoder))


def parse_completion(**fields: object) -> Generation:
    data = msgspec.json.encode({"model": "m", "prompt": "test", **fields})
    return completions.ENDPOINT.parse(body.decode(data, completions.ENDPOINT.decoder))


def with_raw(field: str, value: str) -> bytes:
    return f'{{"model":"m","messages":[{{"role":"user","content":"hi"}}],"{field}":{value}}}'.encode()


def test_what_is_left_out_has_openais_default() -> None:
    generation = parse_chat()
    assert generation == Generation(model="m", turns=(Turn("user", "hi"),))
    assert (generation.temperature, generation.top_p, generation.n, generation.max_tokens) == (1.0, 1.0, 1, None)


@pytest.mark.parametrize(
    "field",
    [
        *("max_tokens", "temperature", "top_p", "n", "stop", "stream", "stream_options", "seed", "logit_bias", "user"),
        *("top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "min_tokens"),
        *("stop_token_ids", "ignore_eos"),
    ],
)
def test_null_is_as_if_absent(field: str) -> None:
    assert parse_chat(**{field: None}) == parse_chat()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("temperature", value) for value in ("NaN", "Infinity", "-Infinity", "1e400", "-0.1", "2.5", '"1"', "true")),
        *(("top_p", value) for value in ("NaN", "1.1", "-1", "[]", "true")),
        *(("max_tokens", value) for value in ("0", "-1", "-186", '"10"', "3.5", "true", "[]", "1e30")),
        *(("max_completion_tokens", value) for value in ("0", "-1", '"10"', "3.5", "true", "{}")),
        *(("n", value) for value in ("0", "-1", "129", "1.5", "true", "9223372036854775808")),
        *(("seed", value) for value in ("18446744073709551616", "-9223372036854775809", "1.5")),
        *(("stop", value) for value in ("5", '[""]', '""', '["a","b","c","d","e"]', "[1]")),
        *(("logit_bias", value) for value in ('{"5":NaN}', '{"5":1e400}', '{"5":101}', '{"x":1}', '{"-1":1}', "[]")),
        *(
            ("logit_bias", value)
            for value in ('{"05":1}', '{"5.0":1}', '{"":1}', '{"5":"x"}', '{"5":null}', '{"5":true}')
        ),
        *(("presence_penalty", value) for value in ("1e400", "2.1", "-2.1", '"x"', "true", "NaN")),
        *(("frequency_penalty", value) for value in ("-1e400", "2.1", "-2.1", "[]", "false", "Infinity")),
        *(("repetition_penalty", value) for value in ("0", "-1", "2.1", "1e400", '"1"', "true", "NaN")),
        *(("top_k", value) for value in ("-2", "2147483648", "1e30", "1.5", '"5"', "true")),
        *(("min_p", value) for value in ("-0.1", "1.1", "1e400", '"0"', "true", "NaN")),
        *(("min_tokens", value) for value in ("-1", "2147483648", "1.5", '"5"', "true")),
        *(("stop_token_ids", value) for value in ("5", '["5"]', "[1.5]", "[true]", "[null]", str(list(range(65))))),
        *(("best_of", value) for value in ("2", "0", "-1", '"1"', "true")),
        *(("stream", value) for value in ('"yes"', "1")),
        *(("top_logprobs", value) for value in ("2", "-1", "21")),
        ("logprobs", "2"),
    ],
)
def test_out_of_range_is_refused(field: str, value: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        raw_chat(with_raw(field, value))
    if value not in ("NaN", "Infinity", "-Infinity", '{"5":NaN}'):  # these are no JSON at all
        assert refused.value.param == field
        assert refused.value.message


@pytest.mark.parametrize(
    ("field", "value", "meant"),
    [
        *(("top_p", value, value) for value in (0, 1, 0.5)),
        *(("top_k", value, meant) for value, meant in ((-1, 0), (0, 0), (1, 1), (2**31 - 1, 2**31 - 1))),
        *(("min_p", value, value) for value in (0, 0.05, 1)),
        *((f"{name}_penalty", value, value) for name in ("presence", "frequency") for value in (-2, 0, 0.5, 2)),
        *(("repetition_penalty", value, value) for value in (1e-300, 0.5, 1, 2)),
        *(("min_tokens", value, value) for value in (0, 1, 2**31 - 1)),
        ("stop_token_ids", [], ()),
        ("stop_token_ids", [7, 5, 7], (7, 5)),
        ("stop_token_ids", list(range(64)), tuple(range(64))),
    ],
)
def test_the_ends_of_each_range(field: str, value: object, meant: object) -> None:
    assert getattr(parse_chat(**{field: value}), field) == meant
    assert getattr(parse_completion(**{field: value}), field) == meant


def test_a_refused_range_has_a_code() -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_chat(min_p=2)
    assert (refused.value.param, refused.value.code) == ("min_p", "invalid_value")


@pytest.mark.parametrize(
    ("field", "value", "low", "high"),
    [
        ("seed", "18446744073709551616", "-9223372036854775808", "18446744073709551615"),
        ("top_k", "2147483648", "-1", "2147483647"),
        ("min_tokens", "-1", "0", "2147483647"),
        ("temperature", "2.5", "0", "2"),
        ("top_p", "1.1", "0", "1"),
        ("presence_penalty", "-2.5", "-2", "2"),
    ],
)
def test_a_refused_range_is_told_exactly(field: str, value: str, low: str, high: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        raw_chat(with_raw(field, value))
    assert refused.value.message == f"{field} must be between {low} and {high}."


def test_best_of_is_only_as_many_as_n() -> None:
    assert parse_completion(best_of=None) == parse_completion()
    assert parse_completion(best_of=3, n=3).n == 3
    assert parse_completion(best_of=1).n == 1
    with pytest.raises(InvalidRequest) as refused:
        parse_completion(best_of=3, n=2)
    assert (refused.value.param, refused.value.code) == ("best_of", "unsupported_parameter")


def test_logprobs_are_a_flag_of_chats_and_a_number_of_completions() -> None:
    assert parse_chat(logprobs=False).logprobs is None
    assert parse_chat(logprobs=True).logprobs == 0
    assert parse_chat(logprobs=True, top_logprobs=20).logprobs == 20
    assert parse_completion(logprobs=0).logprobs == 0
    with pytest.raises(InvalidRequest) as refused:
        parse_completion(logprobs=6)
    assert refused.value.param == "logprobs"


def test_the_newer_name_of_max_tokens_must_agree_with_the_older() -> None:
    assert parse_chat(max_completion_tokens=7).max_tokens == 7
    assert parse_chat(max_completion_tokens=7).max_tokens_param == "max_completion_tokens"
    assert parse_chat(max_tokens=7, max_completion_tokens=7).max_tokens == 7
    with pytest.raises(InvalidRequest, match="differ"):
        parse_chat(max_tokens=7, max_completion_tokens=8)


def test_stop_is_a_string_or_a_list() -> None:
    assert parse_chat(stop="cab").stop == parse_chat(stop=["cab"]).stop == ("cab",)
    assert parse_chat(stop=[]).stop == ()


def test_logit_bias_keys_become_ids() -> None:
    assert parse_chat(logit_bias={"5": 100, "0": 0.5, "7": -100}).logit_bias == ((5, 100.0), (0, 0.5), (7, -100.0))
    with pytest.raises(InvalidRequest, match="keys"):
        parse_chat(logit_bias={"5": 1, "05": 2})  # one id in two spellings


@pytest.mark.parametrize("field", sorted(REFUSED.keys() - {"best_of"}))
def test_an_unsupported_field_is_refused_unless_it_says_nothing(field: str) -> None:
    accepts = parse_completion if field in ("echo", "suffix") else parse_chat
    for neutral in (None, *REFUSED[field].neutral):
        assert accepts(**{field: neutral}) == accepts()
    with pytest.raises(InvalidRequest) as refused:
        accepts(**{field: {"some": ["thing", 3]}})
    assert (refused.value.param, refused.value.code) == (field, "unsupported_parameter")


def test_true_is_not_the_number_one() -> None:
    with pytest.raises(InvalidRequest):
        parse_chat(repetition_penalty=True)
    with pytest.raises(InvalidRequest):
        parse_chat(store=0)


def test_an_unknown_field_is_named() -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_chat(heat=1)
    assert (refused.value.param, refused.value.code) == ("heat", "unknown_parameter")


def test_fields_without_effect() -> None:
    assert parse_chat(user="u", metadata={"a": [1]}, service_tier="auto", safety_identifier="s") == parse_chat()


@pytest.mark.parametrize(
    "messages",
    [
        "[]",
        "null",
        "{}",
        "[{}]",
        "5",
        '[{"role":"user"}]',
        '[{"role":"user","content":null}]',
        '[{"role":"user","content":[]}]',
        '[{"role":"user","content":5}]',
        '[{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}]',
        '[{"role":"user","content":[{"type":"text"}]}]',
        '[{"role":"user","content":[{"type":"sound","text":"x"}]}]',
        '[{"role":"user2","content":"x"}]',
        '[{"role":"","content":"x"}]',
        '[{"role":"tool","content":"x","tool_call_id":"1"}]',
        '[{"content":"x"}]',
        '[{"role":"assistant","content":null,"tool_calls":[{"id":"1"}]}]',
    ],
)
def test_messages_that_are_none(messages: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        raw_chat(f'{{"model":"m","messages":{messages}}}'.encode())
    assert refused.value.param is not None
    assert refused.value.param.startswith("messages")


def test_the_fault_in_a_message_is_located() -> None:
    messages = [{"role": "user", "content": "a"}, {"role": "user2", "content": "b"}]
    with pytest.raises(InvalidRequest) as refused:
        parse_chat(messages=messages)
    assert refused.value.param == "messages[1].role"
    assert "user2" in refused.value.message


def test_content_parts_are_one_text() -> None:
    parts = [{"type": "text", "text": "alpha "}, {"type": "text", "text": "beta gamma"}]
    for role in ("user", "system", "assistant"):
        split = parse_chat(messages=[{"role": role, "content": parts}])
        assert split == parse_chat(messages=[{"role": role, "content": "alpha beta gamma"}])


def test_developer_is_system() -> None:
    assert parse_chat(messages=[{"role": "developer", "content": "x"}]).turns == (Turn("system", "x"),)


def test_our_own_answer_can_be_sent_back() -> None:
    answer = {"role": "assistant", "content": "x", "refusal": None, "tool_calls": None, "annotations": []}
    assert parse_chat(messages=[answer]).turns == (Turn("assistant", "x"),)


@pytest.mark.parametrize("prompt", ["a", ["a"]])
def test_text_prompts(prompt: object) -> None:
    assert parse_completion(prompt=prompt).prompts == ("a",)


def test_id_prompts() -> None:
    assert parse_completion(prompt=[1, 2]).prompts == ([1, 2],)
    assert parse_completion(prompt=[[1, 2], [3]]).prompts == ([1, 2], [3])
    assert parse_completion(prompt=["a", "b"]).prompts == ("a", "b")


@pytest.mark.parametrize("prompt", [[], None, 5, {}, [1.5], [True], ["a", 1], [1, [2]], [["a"]], ["a", [1]]])
def test_prompts_that_are_none(prompt: object) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_completion(prompt=prompt)
    assert refused.value.param == "prompt"


def test_choices_are_bounded_over_all_prompts() -> None:
    assert parse_completion(prompt=["a", "b"], n=64).n == 64
    with pytest.raises(InvalidRequest) as refused:
        parse_completion(prompt=["a", "b"], n=65)
    assert refused.value.param == "n"


def test_stream_options_need_a_stream() -> None:
    parse_chat(stream=True, stream_options={"include_usage": True})
    with pytest.raises(InvalidRequest) as refused:
        parse_chat(stream_options={"include_usage": True})
    assert refused.value.param == "stream_options"
    with pytest.raises(InvalidRequest):
        parse_chat(stream=True, stream_options={"include_usage": "yes"})


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"[]",
        b"{",
        b'{"model":"m"} x',
        b"\xff\xfe",
        b'{"model":"\xff","messages":[]}',
        with_raw("metadata", '"\xff"').decode().encode("latin-1"),
        with_raw("user", '"\\ud83d"'),
        with_raw("stop", '["\\ud83d"]'),
        with_raw("tools", '[{"function":{"name":"\\ud83d"}}]'),
        b'{"model":"m","messages":[{"role":"user","content":"hi \\ud83d there"}]}',
        b'{"model":"m","messages":[{"role":"user","content":"hi \\udc4d\\ud83d there"}]}',
        b"[" * DEEP,
        with_raw("x", "[" * DEEP + "]" * DEEP),
        with_raw("metadata", '{"a":' + "[" * DEEP + "]" * DEEP + "}"),
        with_raw("tools", "[" * DEEP + "]" * DEEP),
        with_raw("logit_bias", "[" * DEEP + "]" * DEEP),
        b'{"model":"m","messages":[{"role":"user","content":' + b"[" * DEEP + b"]" * DEEP + b"}]}",
    ],
)
def test_bodies_that_are_no_json_or_no_request(data: bytes) -> None:
    with pytest.raises(InvalidRequest) as refused:
        raw_chat(data)
    assert 0 < len(refused.value.message) < 1_000
    assert "recursion" not in refused.value.message


def test_a_surrogate_pair_is_its_character() -> None:
    escaped = raw_chat(b'{"model":"m","messages":[{"role":"user","content":"\\ud83d\\udc4d"}]}')
    assert escaped.turns == (Turn("user", "\U0001f44d"),)
