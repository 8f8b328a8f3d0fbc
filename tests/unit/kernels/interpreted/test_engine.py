"""The engine on the Triton back end, end to end: what it says is what a second implementation of the model says of each
request alone (`tiny.logits`, in float64, without cache or batch), whatever happens to the request on the way.
"""

import numpy as np
import pytest
import torch

from kernels.triton_ops import TritonOps
from tests.unit.engine.builders import drain
from tests.unit.engine.device_runners import Recorded
from tests.unit.models import tiny
from worker.engine.batch import SampleParams
from worker.engine.config import EngineConfig
from worker.engine.engine import Engine
from worker.engine.graph_runner import GraphRunner, Sizes
from worker.engine.request import EngineRequest, SamplingParams
from worker.engine.sampler import sample
from worker.models.decoder import Decoder
from worker.models.load import load_model

BLOCK_SIZE, BLOCKS = 4, 6
SHARED = np.random.default_rng(4).integers(2, tiny.VOCAB, 9).tolist()
OUTPUT = 5
SAMPLINGS = {
    "greedy": SamplingParams(max_tokens=OUTPUT, temperature=0.0, ignore_eos=True),
    "seeded": SamplingParams(max_tokens=OUTPUT, temperature=0.9, top_p=0.95, top_k=40, seed=11, ignore_eos=True),
    "penalised": SamplingParams(max_tokens=OUTPUT, seed=12, repetition_penalty=1.3, ignore_eos=True),
}
PROMPTS = {"greedy": [*SHARED, 7, 8], "seeded": SHARED, "penalised": [*SHARED[:8], 9, 10, 11]}
WEIGHTS = tiny.untied()


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    return load_model(tiny.Recipe(tensors=WEIGHTS).write(path), "fp32", weights="fp32")


def alone(prompt: list[int], sampling: SamplingParams) -> list[int]:
    """What the second implementation draws, one token after the other."""
    ids = list(prompt)
    for _ in range(OUTPUT):
        logits = tiny.logits(WEIGHTS, ids)[-1:].float()
        if sampling.penalises:
            seen = sorted(set(ids))
            values = logits[0, seen]
            penalty = sampling.repetition_penalty
            logits[0, seen] = torch.where(values > 0, values / penalty, values * penalty)
        params = SampleParams(
            position=len(ids),
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            seed=sampling.seed,
            choice=0,
            top_k=sampling.top_k,
            min_p=sampling.min_p,
        )
        ids += sample(logits, [params]).ids
    return ids[len(prompt) :]


def test_the_engine_says_what_the_model_says_in_chunks_after_preemption_and_with_a_prefix(model):
    sizes = Sizes(blocks_total=BLOCKS + 1, block_size=BLOCK_SIZE, sequences_max=4, tokens_per_step=6)
    runner = GraphRunner(Decoder(model.config, model.weights, TritonOps()), sizes, Recorded(), kv_dtype=torch.float32)
    runner.warm_up()
    config = EngineConfig(
        block_size=BLOCK_SIZE,
        context_length=model.config.context_length,
        tokens_per_step=6,
        tokens_beside_decodes=6,
        sequences_max=4,
        watermark=0.0,
    )
    engine = Engine(runner, model.card.vocabulary, config)
    for tier, (name, prompt) in enumerate(PROMPTS.items()):
        engine.add(
            EngineRequest(
                id=name, prompts=(prompt,), n=1, sampling=SAMPLINGS[name], tier=tier, tenant="acme", salt=b"acme"
            )
        )
    said = drain(engine)
    for name, prompt in PROMPTS.items():
        assert said.ids[name, 0] == alone(prompt, SAMPLINGS[name]), name
        assert len(set(said.ids[name, 0])) > 2, f"{name} repeats itself: little depends on what was read or drawn"
    assert said.ids["seeded", 0] != alone(PROMPTS["seeded"], SAMPLINGS["greedy"]), "the sampling decides nothing"
    stats = engine.stats()
    assert max(step.tokens for step in said.steps) == 6 < len(SHARED), "no prompt was cut into chunks"
    assert stats.preemptions_total, "nobody was preempted"
    assert stats.prefix_hits_tokens_total, "no prefix was found"
