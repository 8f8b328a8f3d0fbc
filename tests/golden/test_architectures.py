"""Tiny random checkpoints of every architecture and rotary embedding against the `transformers` library, in float32.

Each case writes a folder as the library saves it and asks for the logits of whole prompts, of prompts in chunks, of
decodes, of a sequence that starts on another's blocks, and of several sequences in one step.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path

import pytest
import torch
import transformers

from kernels.cpu import CpuOps
from kernels.reference import ReferenceOps
from tests.unit.models.folder import write_tokenizer
from tests.unit.models.stepper import BLOCK, Stepper
from worker.models.load import load_model

pytestmark = pytest.mark.filterwarnings("ignore:.*tie_word_embeddings is true, but the head is another")

VOCAB, CONTEXT = 128, 64
SHAPE = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": None,
    "initializer_range": 0.2,
}
SCALINGS = {
    "linear": {"rope_type": "linear", "factor": 3.0},
    "dynamic": {"rope_type": "dynamic", "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
    "yarn, all fields": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 16,
        "beta_fast": 8.0,
        "beta_slow": 2.0,
        "mscale": 0.7,
        "mscale_all_dim": 0.3,
        "truncate": False,
    },
    "yarn, attention factor": {
        "rope_type": "yarn",
        "factor": 2.0,
        "original_max_position_embeddings": 32,
        "attention_factor": 0.8,
    },
}


@dataclass
class Case:
    family: str
    changes: dict[str, object] = field(default_factory=dict)
    edits: dict[str, object] = field(default_factory=dict)  # of config.json, once it is written; None is null

    def write(self, folder: Path) -> torch.nn.Module:
        """Save the folder; the library's model of what it then reads from there."""
        torch.manual_seed(3)
        config = transformers.AutoConfig.for_model(self.family, **(SHAPE | self.changes))
        model = transformers.AutoModelForCausalLM.from_config(config).eval()
        for name, parameter in model.named_parameters():
            if name.endswith(("norm.weight", "bias")):
                torch.nn.init.uniform_(parameter, 0.5, 1.5)
        model.save_pretrained(folder)
        write_tokenizer(folder)
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | self.edits))
        return transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()


CASES = {
    "llama": Case("llama", {"tie_word_embeddings": False}),
    "llama, tied": Case("llama", {"tie_word_embeddings": True}),
    "llama, tied by its config alone": Case(
        "llama", {"tie_word_embeddings": False}, edits={"tie_word_embeddings": True}
    ),
    "llama, every bias": Case("llama", {"attention_bias": True}),
    "llama, head_dim of its own": Case("llama", {"head_dim": 32}),
    "llama, null fields": Case("llama", edits={"head_dim": None, "rope_scaling": None, "sliding_window": None}),
    "llama, as many kv heads as heads": Case("llama", {"num_key_value_heads": 4}),
    "mistral, window": Case("mistral", {"sliding_window": 8}),
    "mistral, window of one": Case("mistral", {"sliding_window": 1}),
    "mistral, no window": Case("mistral", {"sliding_window": None}),
    "qwen2": Case("qwen2", {"use_sliding_window": False, "sliding_window": 8}),
    "qwen2, window on some layers": Case(
        "qwen2", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}
    ),
    "qwen3": Case("qwen3", {"head_dim": 32}),
    "qwen3, heads that do not divide": Case(
        "qwen3", {"hidden_size": 60, "num_attention_heads": 7, "num_key_value_heads": 1, "head_dim": 8}
    ),
    "qwen3, tied": Case("qwen3", {"head_dim": 16, "tie_word_embeddings": True}),
    "qwen3, window by layer_types": Case(
        "qwen3",
        {
            "head_dim": 16,
            "use_sliding_window": True,
            "sliding_window": 5,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    **{
        f"llama, {name}": Case("llama", {"rope_parameters": {"rope_theta": 500.0, **scaling}})
        for name, scaling in SCALINGS.items()
    },
    "qwen2, yarn": Case("qwen2", {"rope_parameters": {"rope_theta": 500.0, **SCALINGS["yarn"]}}),
}


@dataclass
class Models:
    folder: Path
    theirs: torch.nn.Module

    @cached_property
    def loaded(self):
        return load_model(self.folder, "fp32")

    @torch.inference_mode()
    def expected(self, ids: list[int]) -> torch.Tensor:
        return self.theirs(torch.tensor([ids])).logits[0]


@pytest.fixture(scope="module")
def written() -> dict[str, Models]:
    """Each case is written once, in whatever order the tests come."""
    return {}


@pytest.fixture(params=CASES)
def models(request, written, tmp_path_factory) -> Models:
    if request.param not in written:
        folder = tmp_path_factory.mktemp("model")
        written[request.param] = Models(folder, CASES[request.param].write(folder))
    return written[request.param]


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """The products are tiny: handing them to other threads takes longer than they do."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def ids_of(seed: int, count: int) -> list[int]:
    return torch.randint(0, VOCAB, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def near(got: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


@pytest.fixture(params=[ReferenceOps, CpuOps])
def stepper(request, models) -> Stepper:
    return Stepper(models.loaded, request.param())


def test_a_whole_prompt_gives_the_expected_logits(models, stepper):
    ids = ids_of(1, CONTEXT)
    near(stepper.step(a=ids)["a"], models.expected(ids))


def test_chunks_and_then_decodes_give_the_same_logits(models, stepper):
    ids = ids_of(2, 40)
    cuts = [0, 7, 14, 21, 28, 35, *range(36, 41)]
    got = [stepper.step(a=ids[start:end])["a"] for start, end in pairwise(cuts)]
    near(torch.cat(got), models.expected(ids))


def test_a_sequence_on_the_blocks_of_another(models, stepper):
    shared, own = ids_of(3, 5 * BLOCK), ids_of(4, 11)
    stepper.step(a=shared + ids_of(5, 6))
    stepper.share("a", "b", blocks=5)
    got = torch.cat([stepper.step(b=own[:9])["b"], stepper.step(b=own[9:10])["b"], stepper.step(b=own[10:])["b"]])
    near(got, models.expected(shared + own)[len(shared) :])


def test_several_sequences_in_one_step(models, stepper):
    ids = {
        name: ids_of(number, length) for number, (name, length) in enumerate(zip("abcd", (1, 17, 33, 50), strict=True))
    }
    stepper.step(c=ids["c"][:32], d=ids["d"][:20])
    got = stepper.step(a=ids["a"], b=ids["b"], c=ids["c"][32:], d=ids["d"][20:])
    for name, rows in got.items():
        near(rows, models.expected(ids[name])[-len(rows) :])


def test_layers_in_one_compiled_call_compute_what_their_operations_do(models):
    """With weights that are kept in few bits, against the plain operations on the same weights."""
    ids = {name: ids_of(number, length) for number, (name, length) in enumerate(zip("ab", (24, 50), strict=True))}
    kept = load_model(models.folder, "fp32", weights="bf16")
    steppers = [Stepper(kept, CpuOps()), Stepper(kept, ReferenceOps())]
    for step in ({"b": ids["b"][:49]}, {"a": ids["a"], "b": ids["b"][49:]}, {"a": ids["b"][:1]}):
        got, want = (stepper.step(**step) for stepper in steppers)
        for name, rows in got.items():
            near(rows, want[name])
