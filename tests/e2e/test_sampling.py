"""Sampling parameters through the whole stack with the real model in fp32, and a replay of the public report about
logit_bias whose ids ran past the vocabulary."""

import concurrent.futures
from typing import Any

import pytest
import tokenizers

from tests.e2e.api import MODEL, Api, assert_error, bystander
from tests.e2e.stack import Stack

pytestmark = pytest.mark.timeout(600)  # the model is loaded, and 2 cores compute in fp32

PROMPT = "My favourite colours are red and"
BAD_BIASES: list[Any] = [
    *({"49152": 5}, {"-1": 1}, {"999999999": -100}, {"abc": 1}, {"5.0": 1}, {"5": 101}, {"5": -101}),
    *({"5": "x"}, {"5": None}, [], {"5": 1, "05": 2}, {str(token): 7 for token in range(49_152)}),
]


@pytest.fixture
def model(real_stack: Stack) -> Api:
    return Api(real_stack.base_urls[0], real_stack.acme_key)


def complete(api: Api, **fields: Any) -> dict[str, Any]:
    body = {"model": MODEL, "prompt": PROMPT, "max_tokens": 8, "temperature": 0, "logprobs": 1, "ignore_eos": True}
    answer = api.post("/completions", {**body, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]


def complete_all(api: Api, asked: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """All at once, so that they share the engine's steps."""
    with concurrent.futures.ThreadPoolExecutor(len(asked)) as pool:
        futures = {name: pool.submit(complete, api, **fields) for name, fields in asked.items()}
        return {name: future.result() for name, future in futures.items()}


def test_each_parameter_does_what_it_says(model: Api, tokenizer: tokenizers.Tokenizer) -> None:
    hot: dict[str, Any] = {"temperature": 2, "seed": 5, "max_tokens": 16}
    greedy = complete(model, max_tokens=16)
    tokens = greedy["logprobs"]["tokens"]
    first, second = (tokenizer.encode(token, add_special_tokens=False).ids[0] for token in tokens[:2])
    said = complete_all(
        model,
        {
            "top_k": {**hot, "top_k": 1},
            "top_p": {**hot, "top_p": 0},
            "min_p": {**hot, "min_p": 1},
            "hot": hot,
            "hot again": hot,
            "another seed": {**hot, "seed": 6},
            "stop id": {"stop_token_ids": [second]},
            "min_tokens": {"min_tokens": 3, "stop_token_ids": [first]},
            "presence": {"presence_penalty": -2, "frequency_penalty": -2, "max_tokens": 16},
            "frequency": {"presence_penalty": 2, "frequency_penalty": 2, "max_tokens": 16},
            "repetition": {"repetition_penalty": 1.8, "max_tokens": 16},
            "forced": {"logit_bias": {str(first): 100}},
            "banned": {"logit_bias": {str(first): -100}},
            "nothing": {"logit_bias": {}, "max_tokens": 16, "top_k": -1, "repetition_penalty": 1},
        },
    )
    for name in ("top_k", "top_p", "min_p", "nothing"):
        assert said[name]["text"] == greedy["text"], name
    assert said["hot"]["text"] == said["hot again"]["text"] not in (greedy["text"], said["another seed"]["text"])
    assert (said["stop id"]["text"], said["stop id"]["finish_reason"]) == (tokens[0], "stop")
    assert len(said["min_tokens"]["logprobs"]["tokens"]) >= 3
    assert tokens[0] not in said["min_tokens"]["logprobs"]["tokens"][:3]
    repeated = {
        name: len(said[name]["logprobs"]["tokens"]) - len(set(said[name]["logprobs"]["tokens"])) for name in said
    }
    assert repeated["frequency"] < repeated["presence"]
    assert repeated["repetition"] < repeated["presence"]
    assert set(said["forced"]["logprobs"]["tokens"]) == {tokens[0]}
    assert tokens[0] not in said["banned"]["logprobs"]["tokens"]


def test_a_neighbour_s_bias_changes_nobody_else_s_text(model: Api) -> None:
    alone = complete(model, max_tokens=12)
    together = complete_all(
        model,
        {
            "bystander": {"max_tokens": 12},
            "forced": {"logit_bias": {"5": 100}, "max_tokens": 12},
            "banned": {"logit_bias": {"5": -100, "49151": -100, "0": 100}, "max_tokens": 12},
            "hot": {"temperature": 2, "seed": 1, "top_k": 3, "frequency_penalty": 2, "max_tokens": 16},
        },
    )
    assert together["bystander"]["text"] == alone["text"]
    assert len(set(together["forced"]["logprobs"]["tokens"])) == 1


def test_a_bias_that_is_none_is_refused_and_disturbs_nobody(api: Api, other: Api) -> None:
    with bystander(other):
        for bias in BAD_BIASES:
            assert_error(api.chat("hi", logit_bias=bias), 400, "logit_bias")
        for bias in ({}, None, {"5": -100}, {"49151": 1}):
            assert api.chat("hi", logit_bias=bias).status_code == 200
        api.probe()
