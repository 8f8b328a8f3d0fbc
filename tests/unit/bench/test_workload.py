import json

import pytest
import tokenizers

from bench.workload import WORDS, Workload
from worker.models.card import demo_model_path, read_card


def workload(**fields: object) -> Workload:
    defaults = {"model": "m", "api": "completions", "prompt_tokens": 200, "output_tokens": 128}
    return Workload(**(defaults | fields))


def test_a_prompt_has_exactly_its_tokens_for_the_demo_model() -> None:
    tokenizer = tokenizers.Tokenizer.from_str(read_card(demo_model_path()).tokenizer_json.decode())
    assert [word for word in WORDS if len(tokenizer.encode(f" {word}").ids) != 1] == []
    assert len(tokenizer.encode(workload(prompt_tokens=1_024).text(0)).ids) == 1_024


def test_the_same_index_and_seed_are_the_same_bytes_and_no_other() -> None:
    bodies = {workload(seed=seed).body(index) for seed in range(3) for index in range(20)}
    assert len(bodies) == 60
    assert workload(seed=2).body(7) in bodies


def test_the_words_differ_enough() -> None:
    assert len(set(WORDS)) == len(WORDS)


@pytest.mark.parametrize(("api", "path"), [("chat", "/chat/completions"), ("completions", "/completions")])
def test_the_body_is_the_endpoint_s(api: str, path: str) -> None:
    asked = workload(api=api, prompt_tokens=5)
    body = json.loads(asked.body(3))
    assert asked.path == path
    text = body["messages"][0]["content"] if api == "chat" else body["prompt"]
    assert text == asked.text(3)
    assert body["max_tokens"] == 128
    assert body["temperature"] == 0
    assert body["ignore_eos"] is True
    assert body["stream_options"] == {"include_usage": True}


def test_without_streaming_there_are_no_stream_options() -> None:
    body = json.loads(workload(stream=False).body(0))
    assert body["stream"] is False
    assert "stream_options" not in body
