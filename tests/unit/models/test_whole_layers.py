"""Layers in one compiled call: what the operations give one by one, and rows that know nothing of each other."""

import math

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from numba import typeof

from kernels.cpu import CpuOps
from kernels.first_compile import CALLS
from kernels.reference import ReferenceOps
from tests.unit.models import tiny
from tests.unit.models.stepper import Stepper
from tests.unit.models.tiny import Recipe
from worker.models.card import card_of_gguf
from worker.models.decoder import Decoder
from worker.models.gguf_file import GgufFile
from worker.models.gguf_source import GgufSource
from worker.models.load import LoadedModel, load_model
from worker.models.packer import packer
from worker.models.weights import load_weights
from worker.models.whole_layers import SharedLinear, WholeLayers

CPU = torch.device("cpu")
IDS = np.random.default_rng(1).integers(2, tiny.VOCAB, 30).tolist()


def load(path, *, rounds: bool) -> LoadedModel:
    """As a processor without bfloat16 of its own loads it."""
    file = GgufFile.open(path)
    card = card_of_gguf(file)
    pack = packer("auto", torch.float32, CPU, rounds=rounds)
    weights = load_weights(GgufSource(file, card.config), card.config, dtype=torch.float32, device=CPU, pack=pack)
    return LoadedModel(card, weights, torch.float32, CPU)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """4 bits, and 8 for the head, whose outputs fill whole tiles: as the demo model has them."""
    recipe = Recipe(tiny.tensors(vocab=272), kind=Kind.Q4_1, kinds={"token_embd.weight": Kind.Q8_0})
    return recipe.write(tmp_path_factory.mktemp("model") / "tiny.gguf")


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    """The products that are never rounded, and 4 bits for the head, which are."""
    kinds = {
        f"blk.{layer}.{part}.weight": Kind.BF16 for layer in range(tiny.LAYERS) for part in ("attn_output", "ffn_down")
    }
    recipe = Recipe(tiny.tensors(vocab=272), kind=Kind.Q8_0, kinds={"token_embd.weight": Kind.Q4_1, **kinds})
    return recipe.write(tmp_path_factory.mktemp("mixed") / "tiny.gguf")


@pytest.fixture(
    scope="module",
    params=[("path", False), ("path", True), ("mixed", True)],
    ids=["exact", "rounds", "8 bits, bfloat16 and a rounded head"],
)
def model(request):
    name, rounds = request.param
    return load(request.getfixturevalue(name), rounds=rounds)


def whole(model) -> Stepper:
    stepper = Stepper(model, CpuOps())
    assert isinstance(stepper.decoder.layers, WholeLayers)
    return stepper


def several(stepper: Stepper) -> dict[str, torch.Tensor]:
    stepper.step(a=IDS[:20], b=IDS[::-1][:3])
    stepper.step(b=IDS[::-1][3:9], c=IDS[5:24])
    return stepper.step(a=IDS[20:21], b=IDS[::-1][9:11], c=IDS[24:25], d=IDS[::2])


def test_prompts_chunks_and_decodes_in_one_step(path):
    model = load(path, rounds=False)
    got, want = several(whole(model)), several(Stepper(model, ReferenceOps()))
    for name, rows in got.items():
        torch.testing.assert_close(rows, want[name], rtol=1e-3, atol=1e-3)


def test_rounding_changes_what_comes_out_and_not_much(path):
    """Compared in the mean: what lies between two bytes goes either way with the last bit of a sum."""
    exact, rounded = (several(whole(load(path, rounds=rounds))) for rounds in (False, True))
    for name, rows in rounded.items():
        assert not torch.allclose(rows, exact[name], rtol=1e-4, atol=1e-4)
        assert (rows - exact[name]).abs().mean() < 0.05 * exact[name].abs().mean()


@pytest.mark.parametrize("loud", [1e4, math.nan])
def test_a_row_has_the_same_bits_alone_and_beside_loud_neighbours(model, loud):
    """Others are as many as make another kernel do it, and what lies in their blocks is loud."""

    def last(others: int) -> torch.Tensor:
        stepper = whole(model)
        names = [f"other {n}" for n in range(others)]
        stepper.step(a=IDS[:6], **dict.fromkeys(names, IDS[6:12]))
        for name in names:
            for cache in (*stepper.pool.keys, *stepper.pool.values):
                cache[stepper.tables[name]] *= loud
        prompt = {"prompt": IDS[:9]} if others else {}
        return stepper.step(a=[IDS[6]], **dict.fromkeys(names, IDS[12:13]), **prompt)["a"]

    alone = last(0)
    assert alone.isfinite().all()
    for others in (1, 3, 9):
        assert torch.equal(last(others), alone)


@pytest.mark.parametrize("alike", [True, False], ids=["whole layers", "one by one"])
def test_a_prompt_has_the_same_bits_however_it_is_cut(model, alike):
    """Down to one token, which is what a cached prefix leaves of a prompt that is one longer."""

    def new() -> Stepper:
        stepper = whole(model)
        if not alike:
            stepper.decoder = Decoder(model.config, model.weights, CpuOps())
        return stepper

    cold = new().step(decodes=0, a=IDS)["a"]
    for cut in (1, 8, 16, len(IDS) - 1):
        stepper = new()
        parts = [stepper.step(decodes=0, a=ids)["a"] for ids in (IDS[:cut], IDS[cut:])]
        assert torch.equal(torch.cat(parts), cold)


def test_an_explicit_type_of_activations_rounds_nothing(path):
    assert [load_model(path, dtype).weights.layers[0].qkv.rounds for dtype in ("auto", "fp32")] == [True, False]


def test_what_a_first_start_compiles_beforehand_is_what_is_called(model):
    several(whole(model))  # compiles, or finds in the cache what an earlier run has left
    for function, arguments in CALLS:
        compiled = sum(function.stats.cache_misses.values())
        function.compile(tuple(map(typeof, arguments)))
        assert sum(function.stats.cache_misses.values()) == compiled
        assert len(function.signatures) == 1


def test_8_bits_and_bfloat16_are_as_exact_as_operations_one_by_one(mixed):
    model = load(mixed, rounds=True)
    first = model.weights.layers[0]
    kept = [layer.weight.codes.dtype.name for layer in (first.qkv, first.attention_output, first.gate_up, first.down)]
    assert kept == ["int8", "uint16", "int8", "uint16"]
    got, want = several(whole(model)), several(Stepper(model, ReferenceOps()))
    for name, rows in got.items():
        torch.testing.assert_close(rows, want[name], rtol=1e-3, atol=1e-3)


def test_the_head_is_computed_by_the_same_threads_and_beside_loud_rows_the_same(model):
    head = whole(model).decoder.weights.head
    assert isinstance(head, SharedLinear) == (not model.weights.head.rounds)
    assert head(torch.empty(0, tiny.HIDDEN)).shape == (0, 272)  # of a step that samples nothing
    for rows in (1, 3, 5, 20):
        x = torch.randn(rows, tiny.HIDDEN, generator=torch.Generator().manual_seed(rows))
        got = head(x)
        assert torch.equal(got, model.weights.head(x))
        for loud in (x * 1e4, torch.full_like(x, math.nan)):
            loud[rows // 2] = x[rows // 2]
            assert torch.equal(head(loud)[rows // 2], got[rows // 2])
