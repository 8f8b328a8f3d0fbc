"""The demo model behind the whole stack, through the official client: the right words, and many streams at once."""

import concurrent.futures
import threading

import openai
import pytest

from tests.e2e.api import MODEL, metric, wait_for
from tests.e2e.stack import Stack

pytestmark = pytest.mark.timeout(600)  # the model is loaded, and 2 cores compute in fp32

FRANCE = [{"role": "user", "content": "What is the capital of France?"}]
ANSWER = "The capital of France is Paris."


def client(stack: Stack, key: str | None = None) -> openai.OpenAI:
    return openai.OpenAI(base_url=stack.base_urls[0], api_key=key or stack.acme_key, max_retries=0, timeout=300)


def test_the_official_client_reads_the_answer(real_stack: Stack) -> None:
    answer = client(real_stack).chat.completions.create(model=MODEL, messages=FRANCE, temperature=0)
    assert answer.choices[0].message.content == ANSWER
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_the_official_client_reads_the_same_answer_as_a_stream(real_stack: Stack) -> None:
    options = {"include_usage": True}
    with client(real_stack).chat.completions.create(
        model=MODEL, messages=FRANCE, temperature=0, stream=True, stream_options=options
    ) as stream:
        chunks = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == ANSWER
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
    assert chunks[-1].usage is not None
    assert sum(1 for chunk in chunks if chunk.choices and chunk.choices[0].delta.content) > 3


def test_the_official_client_lists_the_model(real_stack: Stack) -> None:
    assert [model.id for model in client(real_stack).models.list()] == [MODEL]


def test_forty_streams_of_two_tenants_share_the_engine_s_steps(real_stack: Stack) -> None:
    """Lengths differ, tiers differ; all finish, none is refused, and one step serves many."""
    url = real_stack.worker_metrics_urls[0]
    clients = [client(real_stack, key) for key in (real_stack.acme_key, real_stack.hobby_key)]
    together = threading.Barrier(40)

    def one(index: int) -> int:
        length = 8 + index
        together.wait(60)
        chunks = clients[index % 2].chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "Count to ten. " * (1 + index % 7)}],
            max_tokens=length,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"ignore_eos": True},
        )
        finish, tokens = None, 0
        for chunk in chunks:
            if chunk.choices:
                finish = chunk.choices[0].finish_reason or finish
            if chunk.usage:
                tokens = chunk.usage.completion_tokens
        assert (finish, tokens) == ("length", length)
        return tokens

    before = (metric(url, "forebay_engine_step_seconds_count"), metric(url, "forebay_generated_tokens_total"))
    with concurrent.futures.ThreadPoolExecutor(40) as pool:
        tokens = list(pool.map(one, range(40)))
    steps = metric(url, "forebay_engine_step_seconds_count") - before[0]
    generated = metric(url, "forebay_generated_tokens_total") - before[1]
    assert generated == sum(tokens)
    assert steps < generated / 2  # one after the other they would be as many
    wait_for(lambda: metric(url, "forebay_kv_blocks_free") == metric(url, "forebay_kv_blocks"), what="all blocks free")
