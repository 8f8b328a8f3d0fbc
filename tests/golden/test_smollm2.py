"""The demo model, end to end in process, against transformers in float32 (`smollm2_golden.json`).

`stable_tokens` of each continuation are certain; after them two candidates come within 0.05 nats of each other and
rounding may decide.
"""

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import jinja2
import pytest
from tokenizers import Tokenizer

from kernels.cpu import CpuOps
from worker.engine.config import EngineConfig
from worker.engine.engine import Engine
from worker.engine.request import EngineRequest, SamplingParams
from worker.engine.results import TokenLogprob
from worker.engine.torch_runner import TorchRunner
from worker.models.card import demo_model_path
from worker.models.load import load_model

GOLDEN = json.loads((Path(__file__).parent / "smollm2_golden.json").read_text())
CASES = GOLDEN["cases"]
BLOCK_SIZE = 16
LOGPROB_TOLERANCE = 1e-3  # nats; the golden values have four decimals
PROMPT = CASES[3]["prompt_ids"]
SAMPLED = SamplingParams(
    max_tokens=12,
    temperature=0.9,
    top_p=0.95,
    top_k=200,
    min_p=0.001,
    repetition_penalty=1.1,
    presence_penalty=0.2,
    frequency_penalty=0.3,
    min_tokens=12,
    seed=1234,
    logit_bias=((28, 2.0),),
    logprobs=3,
)


@dataclass
class Answer:
    ids: list[int] = field(default_factory=list)
    text: str = ""
    finish: str | None = None
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_tokens: int = 0
    cached_tokens: int = 0


@pytest.fixture(scope="module")
def fp32():
    return load_model(demo_model_path(), "fp32", weights="fp32")


@pytest.fixture(scope="module")
def kept():
    """The file's own 4-bit and 8-bit weights, which `auto` multiplies as they are."""
    return load_model(demo_model_path(), "fp32", weights="auto")


def engine(model, *, blocks_total: int = 200, **config: int) -> Engine:
    runner = TorchRunner(model, CpuOps(), blocks_total=blocks_total, block_size=BLOCK_SIZE)
    limits = {"context_length": model.config.context_length, "block_size": BLOCK_SIZE} | config
    return Engine(runner, model.card.vocabulary, EngineConfig(**limits))


def answer(engine: Engine, requests: dict[str, tuple[list[int], SamplingParams]]) -> dict[str, Answer]:
    answers = {name: Answer() for name in requests}
    for name, (prompt, sampling) in requests.items():
        engine.add(EngineRequest(id=name, prompts=(prompt,), n=1, sampling=sampling, tier=0, tenant="t", salt=b""))
    while engine.has_work:
        step = engine.step()
        assert step.failure is None
        for chunk in step.chunks:
            found = answers[chunk.request]
            found.ids += chunk.ids
            found.text += chunk.text
            found.finish = chunk.finish or found.finish
            found.logprobs += chunk.logprobs or []
        for done in step.done:
            assert done.error is None
            answers[done.request].prompt_tokens = done.totals.prompt_tokens
            answers[done.request].cached_tokens = done.totals.cached_tokens
    engine.check_integrity()
    return answers


def greedy(case: dict[str, Any], max_tokens: int | None = None) -> tuple[list[int], SamplingParams]:
    """A golden prompt, to be continued for as long as its tokens are certain, or for fewer."""
    sampling = SamplingParams(max_tokens=max_tokens or case["stable_tokens"], temperature=0.0, logprobs=5)
    return case["prompt_ids"], sampling


def check(case: dict[str, Any], got: Answer, tokens: int | None = None) -> None:
    """The first `tokens` of an answer, by default all that are certain, and the likeliest candidates of its first."""
    stable = tokens or case["stable_tokens"]
    assert got.ids == case["output_ids"][:stable]
    top = got.logprobs[0].top
    assert [token for token, _, _ in top] == [token for token, _ in case["first_step_top5"]]
    expected = [value for _, value in case["first_step_top5"]]
    assert [value for _, value, _ in top] == pytest.approx(expected, abs=LOGPROB_TOLERANCE)
    if got.ids == case["output_ids"]:
        assert (got.text, got.finish) == (case["text"], case["finish"])


def check_warm(got: Answer) -> None:
    """All full blocks of the prompt were cached, but never its last token."""
    assert got.cached_tokens == (got.prompt_tokens - 1) // BLOCK_SIZE * BLOCK_SIZE


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_template_and_tokenizer_give_the_same_prompt(fp32, case):
    template = jinja2.Environment().from_string(fp32.card.chat_template)
    text = template.render(messages=case["messages"], add_generation_prompt=True)
    tokenizer = Tokenizer.from_str(fp32.card.tokenizer_json.decode())
    assert tokenizer.encode(text, add_special_tokens=False).ids == case["prompt_ids"]


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_one_request_alone_cold_and_with_a_warm_cache(fp32, case):
    single = engine(fp32)
    cold, warm = (answer(single, {"a": greedy(case)})["a"] for _ in range(2))
    check(case, cold)
    check(case, warm)
    assert cold.prompt_tokens == warm.prompt_tokens == len(case["prompt_ids"])
    assert cold.cached_tokens == 0
    check_warm(warm)


def check_all(got: dict[str, Answer], tokens: int | None = None) -> None:
    for name, found in got.items():
        check(CASES[int(name) % len(CASES)], found, tokens)


def test_sixteen_requests_share_steps_cold_and_with_a_warm_cache(fp32):
    batch = engine(fp32, sequences_max=16)
    sixteen = {str(n): greedy(CASES[n % len(CASES)]) for n in range(16)}
    check_all(answer(batch, sixteen))
    warm = answer(batch, sixteen)
    check_all(warm)
    for found in warm.values():
        check_warm(found)


def test_prompts_in_chunks_of_seven(fp32):
    batch = engine(fp32, tokens_per_step=7, sequences_max=7)
    check_all(answer(batch, {str(n): greedy(case) for n, case in enumerate(CASES)}))


def test_sequences_that_are_preempted(fp32):
    """The longest answers begin together and grow into each other's blocks."""
    batch = engine(fp32, blocks_total=18, tokens_per_step=64, sequences_max=16)
    longest_first = sorted(range(len(CASES)), key=lambda n: -CASES[n]["stable_tokens"])
    check_all(answer(batch, {str(n): greedy(CASES[n]) for n in longest_first}))
    assert batch.stats().preemptions_total > 0


def test_the_weights_as_the_file_keeps_them_give_the_same_answers(kept):
    check_all(answer(engine(kept), {str(n): greedy(case) for n, case in enumerate(CASES)}))


def test_a_sampled_answer_is_the_same_alone_among_others_and_after_preemptions(fp32):
    alone = answer(engine(fp32), {"a": (PROMPT, SAMPLED)})["a"]
    short = replace(SAMPLED, max_tokens=6, min_tokens=0)
    others = {f"sampled {n}": (PROMPT[: 4 + n], replace(short, seed=n)) for n in range(8)}
    others |= {f"greedy {n}": (PROMPT[: 5 + n], replace(short, temperature=0.0)) for n in range(7)}
    among = answer(engine(fp32, tokens_per_step=64, sequences_max=16), others | {"a": (PROMPT, SAMPLED)})["a"]
    preempted, preemptions = preempted_twice(fp32)
    assert preemptions == 2
    assert alone.ids == among.ids == preempted.ids
    drawn, drawn_among, drawn_again = (
        [(entry.id, *(token for token, _, _ in entry.top)) for entry in got.logprobs]
        for got in (alone, among, preempted)
    )
    assert drawn == drawn_among == drawn_again
    assert len({*others, "a"}) == 16


def preempted_twice(fp32) -> tuple[Answer, int]:
    """The answer of a request that gives way to two urgent ones, which grow into its blocks."""
    tight = engine(fp32, blocks_total=8)
    tight.add(EngineRequest(id="a", prompts=(PROMPT,), n=1, sampling=SAMPLED, tier=1, tenant="t", salt=b""))
    got = Answer()
    urgent = {2: "b", 7: "c"}  # by how much of the answer there is
    greedily = SamplingParams(max_tokens=4, temperature=0.0, ignore_eos=True)
    while tight.has_work:
        if name := urgent.pop(len(got.ids), None):
            prompt = list(range(1_000, 1_063))
            tight.add(EngineRequest(id=name, prompts=(prompt,), n=1, sampling=greedily, tier=0, tenant="u", salt=b""))
        for chunk in tight.step().chunks:
            if chunk.request == "a":
                got.ids += chunk.ids
                got.logprobs += chunk.logprobs or []
    return got, tight.stats().preemptions_total


def test_bfloat16_stays_close():
    """Its first tokens are among the likeliest, about as likely as in float32; of two close ones either may win."""
    model = load_model(demo_model_path(), "bf16")
    got = answer(engine(model), {str(n): greedy(case, 1) for n, case in enumerate(CASES)})
    for n, case in enumerate(CASES):
        first = got[str(n)]
        assert dict(case["first_step_top5"])[first.ids[0]] == pytest.approx(first.logprobs[0].logprob, abs=0.3)
