"""Prompts at the borders of blocks and of the context, cold and with a warm prefix cache, on a small real model."""

import concurrent.futures
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.api import Api, assert_error, metric, wait_for
from tests.e2e.stack import Stack, running
from tests.unit.models.tiny import CONTEXT, Recipe

BLOCK = 16
MODEL = "tiny"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Two gateways in front of a model of two layers, with a context of four blocks."""
    folder = tmp_path_factory.mktemp("model")
    folder.chmod(0o755)
    template = {"tokenizer.chat_template": "{{ messages[0].content }}"}
    path = Recipe(extra=template).write(folder / f"{MODEL}.gguf")
    model = {"FOREBAY_MODEL": str(path), "FOREBAY_BLOCK_SIZE": str(BLOCK), "FOREBAY_KV_BYTES": str(2**24)}
    with running(gateways=2, env={"FOREBAY_RUNNER": "torch", "FOREBAY_DTYPE": "fp32", **model}) as stack:
        yield stack


@pytest.fixture
def apis(tiny: Stack) -> list[Api]:
    """A tenant of the test's own, seen through both gateways."""
    key = tiny.create_tenant(rpm=None, tpm=None)
    return [Api(url, key) for url in tiny.base_urls]


def complete(api: Api, prompt: list[int], **fields: Any) -> dict[str, Any]:
    answer = api.complete(prompt, model=MODEL, temperature=0, logprobs=1, ignore_eos=True, **fields)
    assert answer.status_code == 200, answer.text
    return answer.json()


def cached(answer: dict[str, Any]) -> int:
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


@pytest.mark.parametrize("length", [BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 3 * BLOCK, CONTEXT - 2, CONTEXT - 1])
def test_a_warm_answer_is_the_cold_one(apis: list[Api], length: int) -> None:
    prompt = [2 + (7 * place + length) % 200 for place in range(length)]
    room = min(5, CONTEXT - length)
    cold = complete(apis[0], prompt, max_tokens=5)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda _: complete(apis[0], prompt, max_tokens=5), range(8)))
    warm = [complete(apis[0], prompt, max_tokens=5), complete(apis[1], prompt, max_tokens=5), *together]

    assert cached(cold) == 0
    for answer in (cold, *warm):
        choice = answer["choices"][0]
        assert choice["finish_reason"] == "length"
        assert answer["usage"]["prompt_tokens"] == length
        assert answer["usage"]["completion_tokens"] == room
        assert choice["text"] == cold["choices"][0]["text"]
        first = choice["logprobs"]["token_logprobs"][0]
        assert first == pytest.approx(cold["choices"][0]["logprobs"]["token_logprobs"][0], abs=1e-4)
    # Full blocks but for the last token, which is computed again.
    assert [cached(answer) for answer in warm] == [(length - 1) // BLOCK * BLOCK] * len(warm)


@pytest.mark.parametrize("length", [CONTEXT, CONTEXT + 1])
def test_a_prompt_that_fills_the_context_is_refused(apis: list[Api], length: int) -> None:
    answer = apis[0].complete([5] * length, model=MODEL)
    assert assert_error(answer, 400)["code"] == "context_length_exceeded"


def test_cached_tokens_are_told_everywhere_and_only_to_their_tenant(tiny: Stack, apis: list[Api]) -> None:
    prompt = [9] * (2 * BLOCK + 4)
    url = tiny.worker_metrics_urls[0]
    hits = metric(url, "forebay_prefix_hit_tokens_total")
    prompts = metric(url, "forebay_prompt_tokens_total")
    complete(apis[0], prompt, max_tokens=2)

    stranger = Api(tiny.base_urls[0], tiny.create_tenant(rpm=None, tpm=None))
    assert cached(complete(stranger, prompt, max_tokens=2)) == 0

    several = complete(apis[1], [prompt, prompt], n=3, max_tokens=2)  # of both prompts, each counted once
    assert (several["usage"]["prompt_tokens"], cached(several)) == (2 * len(prompt), 4 * BLOCK)

    body = {"model": MODEL, "prompt": prompt, "max_tokens": 2, "stream_options": {"include_usage": True}}
    usage = apis[1].stream("/completions", body)[-1]["usage"]
    assert usage["prompt_tokens_details"] == {"cached_tokens": 2 * BLOCK}

    body = {"model": MODEL, "messages": [{"role": "user", "content": "tell me " * 3}], "max_tokens": 2}
    assert cached(apis[0].post("/chat/completions", body).json()) == 0
    chat = apis[1].post("/chat/completions", body).json()
    assert cached(chat) == (chat["usage"]["prompt_tokens"] - 1) // BLOCK * BLOCK > 0
    usage = apis[0].stream("/chat/completions", {**body, "stream_options": {"include_usage": True}})[-1]["usage"]
    assert usage == chat["usage"]

    assert metric(url, "forebay_prefix_hit_tokens_total") - hits == 6 * BLOCK + 2 * cached(chat)
    assert metric(url, "forebay_prompt_tokens_total") - prompts > 6 * BLOCK + 2 * cached(chat)
    wait_for(lambda: len(tiny.usage(chat["id"].removeprefix("chatcmpl-"))) == 1, what="the bill is booked")
    [row] = tiny.usage(chat["id"].removeprefix("chatcmpl-"))
    assert (row["cached_tokens"], row["preemptions"]) == (cached(chat), 0)
    wait_for(lambda: metric(url, "forebay_kv_blocks_free") == metric(url, "forebay_kv_blocks"), what="all blocks free")
    assert metric(url, "forebay_kv_blocks_cached") > 0
