"""Pools in eight bits: their memory, and an engine that does not notice them but in the last digits."""

import pytest
import torch

from kernels.reference import ReferenceOps
from tests.unit.engine.builders import drain, make_request
from tests.unit.engine.device_runners import BLOCK_SIZE, graph_runner
from tests.unit.models.tiny import HEAD_DIM, KV_HEADS, LAYERS, Recipe, untied
from worker.engine.config import EngineConfig
from worker.engine.engine import Engine
from worker.engine.kv_pool import kv_pool, pool_dtype, token_bytes
from worker.models.load import load_model

EIGHT_BITS = [torch.int8, torch.float8_e4m3fn]
PROMPT = list(range(2, 19))
CONFIG = EngineConfig(block_size=BLOCK_SIZE, context_length=64, tokens_per_step=18, sequences_max=2, watermark=0.0)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return load_model(
        Recipe(tensors=untied()).write(tmp_path_factory.mktemp("model") / "tiny.gguf"), "fp32", weights="fp32"
    )


def test_the_names_of_types():
    assert pool_dtype("auto", torch.bfloat16) == torch.bfloat16
    assert [pool_dtype(name, torch.bfloat16) for name in ("int8", "fp8")] == EIGHT_BITS


@pytest.mark.parametrize("dtype", [torch.bfloat16, *EIGHT_BITS])
def test_a_pool_takes_what_its_tokens_take_scales_included(model, dtype):
    pool = kv_pool(model.config, blocks_total=3, block_size=BLOCK_SIZE, dtype=dtype, device=torch.device("cpu"))
    tensors = [*pool.keys, *pool.values, *(pool.key_scales or []), *(pool.value_scales or [])]
    assert sum(tensor.nbytes for tensor in tensors) == 3 * BLOCK_SIZE * token_bytes(model.config, dtype)
    of_a_head = HEAD_DIM + 4 if dtype in EIGHT_BITS else 2 * HEAD_DIM
    assert token_bytes(model.config, dtype) == 2 * LAYERS * KV_HEADS * of_a_head
    pool.clear()
    assert not pool.keys
    assert not pool.key_scales


def test_preemption_and_prefixes_change_nothing_in_a_pool_of_eight_bits(model):
    def said(blocks: int):
        runner = graph_runner(model, ReferenceOps(), blocks=blocks, sequences_max=2, kv_dtype=torch.int8)
        engine = Engine(runner, model.card.vocabulary, CONFIG)
        for tail, output in ((1, 18), (2, 18), (3, 2)):  # the third finds what the first has left
            options = {"max_tokens": output, "temperature": 0.0, "ignore_eos": True}
            engine.add(make_request(f"r{tail}", [*PROMPT, tail], **options))
        return drain(engine).ids, engine.stats()

    tight, stats = said(blocks=4)
    roomy, calm = said(blocks=8)
    assert stats.preemptions_total > calm.preemptions_total == 0
    assert stats.prefix_hits_tokens_total
    assert tight == roomy
    assert all(len(set(ids)) > 1 for ids in roomy.values()), "the last token alone decides"
