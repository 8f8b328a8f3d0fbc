"""The device's runner on a CPU: padded decode steps, fixed buffers and tokens kept on the device, without a device."""

import numpy as np
import pytest
import torch

from kernels.cpu import CpuOps
from tests.unit.engine.builders import drain
from tests.unit.engine.device_runners import BLOCK_SIZE, Recorded, graph_runner, plain_runner
from tests.unit.engine.runner_conformance import RunnerConformance, batch_of, greedy
from tests.unit.models.tiny import VOCAB, Recipe
from worker.engine.config import EngineConfig
from worker.engine.decode_steps import decode_sizes
from worker.engine.engine import Engine
from worker.engine.graph_runner import GraphRunner
from worker.engine.request import EngineRequest, SamplingParams
from worker.engine.runner import Runner
from worker.engine.torch_runner import TorchRunner
from worker.engine.warm_batches import warm_batches
from worker.models.load import load_model

PROMPT = list(range(2, 39))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return load_model(Recipe().write(tmp_path_factory.mktemp("model") / "tiny.gguf"), "fp32", weights="fp32")


@pytest.fixture(scope="module")
def graphs() -> Recorded:
    return Recorded()


@pytest.fixture(scope="module")
def runner(model, graphs) -> GraphRunner:
    """One for all tests that do not ask what its pool began with: the draws of its warm-up are slow ones."""
    return graph_runner(model, CpuOps(), graphs=graphs)


@pytest.fixture(scope="module")
def plain(model) -> TorchRunner:
    return plain_runner(model, CpuOps())


class TestGraphRunner(RunnerConformance):
    pass


def pool(runner: GraphRunner | TorchRunner) -> list[torch.Tensor]:
    return runner._pool.keys + runner._pool.values


def decodes(runner: Runner, count: int):
    """Sequences of one block each that decode their second to last token on."""
    parts = [(PROMPT[: 3 + row], 2 + row, [1 + row], greedy(3 + row)) for row in range(count)]
    return batch_of(runner, parts)


def test_the_sizes_that_are_recorded():
    assert decode_sizes(1) == [1]
    assert decode_sizes(6) == [1, 2, 4, 6]
    assert decode_sizes(16) == [1, 2, 4, 8, 16]
    assert decode_sizes(40) == [1, 2, 4, 8, 16, 32, 40]
    assert decode_sizes(256)[-3:] == [224, 240, 256]
    assert len(decode_sizes(256)) == 20
    assert decode_sizes(400)[-4:] == [256, 320, 384, 400]


@pytest.mark.parametrize(("count", "size"), [(1, 1), (2, 2), (3, 4), (5, 8), (9, 10)])
def test_a_decode_step_is_replayed_at_the_least_size_and_its_padding_writes_nothing(runner, plain, graphs, count, size):
    for each in (runner, plain):
        for cache in pool(each):
            cache[0] = 0
            cache[1:].copy_(torch.arange(cache[1:].numel()).view(cache[1:].shape) % 7 / 7)
    graphs.replayed.clear()
    sampled = runner.submit(decodes(runner, count)).result()
    assert graphs.replayed == [size]
    assert sampled.ids == plain.submit(decodes(plain, count)).result().ids
    for ours, theirs in zip(pool(runner), pool(plain), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
        assert not ours[0].any(), "the null block was written to"


def test_what_the_step_before_left_in_the_buffers_does_not_matter(runner):
    few = decodes(runner, 3)
    runner.submit(batch_of(runner, [(PROMPT[: 3 + row], 0, [1 + row], None) for row in range(9)])).result()
    first = runner.submit(few).result()
    runner.submit(decodes(runner, 9)).result()
    assert runner.submit(few).result().ids == first.ids


def test_a_step_with_a_prompt_is_not_replayed(runner, graphs):
    graphs.replayed.clear()
    runner.submit(batch_of(runner, [(PROMPT[:3], 2, [1], greedy(3)), (PROMPT[:5], 0, [2], None)])).result()
    assert graphs.replayed == []


def test_a_row_that_is_not_sampled_may_decode_too(runner, plain):
    """The last chunk of a prompt but one can have a single token."""
    runner.submit(decodes(runner, 3)).result()  # of the same size, with longer contexts
    parts = [(PROMPT[:1], 0, [1], None), (PROMPT[3:4], 0, [2], greedy(1)), (PROMPT[5:6], 0, [3], greedy(1))]
    assert runner.submit(batch_of(runner, parts)).result().ids == plain.submit(batch_of(plain, parts)).result().ids


@pytest.mark.parametrize("rows", [1, 3])
def test_the_token_of_the_step_before_is_taken_from_the_device(runner, plain, rows):
    prompts = [(PROMPT[: 4 + row], 0, [1 + row], greedy(4 + row)) for row in range(rows)]
    known = plain.submit(batch_of(plain, prompts)).result().ids
    wanted = [([*PROMPT[: 4 + row], known[row]], 4 + row, [1 + row], greedy(5 + row)) for row in reversed(range(rows))]
    unknown = [([*ids[:-1], ~(len(ids) - 5)], *rest) for ids, *rest in wanted]
    first = runner.submit(batch_of(runner, prompts))
    turned = batch_of(runner, unknown)
    turned.rows = turned.rows[::-1].copy()
    second = runner.submit(turned)
    assert first.result().ids == known
    assert second.result().ids == plain.submit(batch_of(plain, wanted)).result().ids


def test_warm_up_has_every_size_and_writes_to_the_null_block_alone(model):
    graphs = Recorded()
    fresh = graph_runner(model, CpuOps(), graphs=graphs, sequences_max=4)
    assert graphs.replayed[:3] == [1, 2, 4]
    assert not any(cache[1:].any() for cache in pool(fresh))


@pytest.mark.parametrize("budget", [1, 4, 700])
def test_warm_steps_stay_within_the_budget_and_the_context(budget):
    rows = [size for size in (1, 2, 4) if size <= budget]
    batches = list(
        warm_batches(
            decode_rows=rows, tokens_max=budget, sequences_max=4, context_length=64, block_size=16, vocab_size=VOCAB
        )
    )
    assert max(len(batch.ids) for batch in batches) == min(budget, 4 * 63)
    assert max(int(batch.context_lens.max()) for batch in batches) < 64
    assert not any(batch.block_tables.any() for batch in batches), "not of the null block"
    assert all(batch.slots.min() >= 0 and batch.slots.max() < 16 for batch in batches)
    assert all(len(batch.samples) == len(batch.context_lens) <= 4 for batch in batches)
    largest = batches[-1]
    assert (len(largest.ids), len(largest.samples)) == (min(budget, 4 * 63), min(budget, 4))
    assert all(params.logprobs for params in largest.samples)


def requests(prompts: list[list[int]]) -> list[EngineRequest]:
    options = [
        {"temperature": 0.0},
        {"seed": 5, "top_p": 0.9, "logprobs": 2},
        {"seed": 6, "top_k": 20, "repetition_penalty": 1.2},
        {"temperature": 0.0, "logit_bias": ((40, 3.0),), "min_tokens": 5},
    ]
    return [
        EngineRequest(
            id=f"r{number}",
            prompts=(prompt,),
            n=1 + number % 2,
            sampling=SamplingParams(max_tokens=12, **options[number % 4]),
            tier=0,
            tenant="acme",
            salt=b"",
        )
        for number, prompt in enumerate(prompts)
    ]


def answers(runner: Runner, vocabulary, prompts: list[list[int]]):
    config = EngineConfig(block_size=BLOCK_SIZE, context_length=64, tokens_per_step=20, sequences_max=6, watermark=0.0)
    engine = Engine(runner, vocabulary, config)
    for request in requests(prompts):
        engine.add(request)
    return drain(engine), engine.stats()


def test_an_engine_on_it_says_what_one_on_the_plain_runner_does(model):
    chance = np.random.default_rng(3)
    shared = chance.integers(2, VOCAB, 33).tolist()
    prompts = [shared[: 5 + 4 * n] + chance.integers(2, VOCAB, 3).tolist() for n in range(6)]
    vocabulary = model.card.vocabulary
    runner = graph_runner(model, CpuOps(), graphs=Recorded(), blocks=7, sequences_max=6)
    ahead, stats = answers(runner, vocabulary, prompts)
    plain, _ = answers(plain_runner(model, CpuOps(), blocks=7), vocabulary, prompts)
    assert (ahead.ids, ahead.text, ahead.finish) == (plain.ids, plain.text, plain.finish)
    assert stats.preemptions_total
    assert stats.prefix_hits_tokens_total
