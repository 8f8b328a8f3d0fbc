"""Weights in the file's own bits: the same numbers as dequantized ones, wherever they are used."""

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from gguf.quants import dequantize, quantize

from kernels.packed_weight import matmul, pack
from kernels.reference import ReferenceOps
from tests.unit.models.stepper import Stepper
from tests.unit.models.tiny import Recipe, logits
from worker.models.compiled_linear import CompiledLinear
from worker.models.errors import ModelFileError
from worker.models.gguf_codes import BLOCKS, read_codes
from worker.models.load import load_model
from worker.models.source import Codes

KINDS = sorted(BLOCKS)
IDS = [3, 70, 5, 5, 90, 11]


def raw(kind: Kind, outputs: int = 24, inputs: int = 96) -> np.ndarray:
    values = np.random.default_rng(kind).normal(0, 0.1, (outputs, inputs)).astype(np.float32)
    values[3] = 0
    return quantize(values, kind)


@pytest.mark.parametrize("kind", KINDS)
def test_codes_stand_for_what_the_gguf_package_computes_bit_by_bit(kind):
    codes = read_codes(raw(kind), kind)
    want = torch.from_numpy(dequantize(raw(kind), kind))
    assert torch.equal(codes.values(), want)
    packed = pack(codes.codes, codes.scales, codes.minimums)
    assert torch.equal(matmul(torch.eye(96), packed).T, want)


def test_codes_of_one_kind_are_put_below_each_other_and_of_two_kinds_not():
    four, eight = read_codes(raw(Kind.Q4_1), Kind.Q4_1), read_codes(raw(Kind.Q8_0), Kind.Q8_0)
    both = Codes.below([four, four])
    assert both is not None
    assert torch.equal(both.values(), torch.cat([four.values(), four.values()]))
    assert Codes.below([four, eight]) is None
    assert Codes.below([]) is None


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_computes_from_codes_what_the_file_says(tmp_path, kind):
    """The rows of Q and K are in another order in the file: their codes and scales have to follow."""
    recipe = Recipe(kind=kind)
    model = load_model(recipe.write(tmp_path / "m.gguf"), "fp32")
    assert isinstance(model.weights.layers[0].qkv, CompiledLinear)
    want = logits(recipe.tensors, IDS, kind).float()
    torch.testing.assert_close(Stepper(model, ReferenceOps()).step(a=IDS)["a"], want, rtol=1e-4, atol=1e-4)


def test_projections_of_two_kinds_are_multiplied_together_all_the_same(tmp_path):
    path = Recipe(kind=Kind.Q4_1, kinds={"blk.0.attn_v.weight": Kind.Q8_0}).write(tmp_path / "m.gguf")
    mixed, wide = (load_model(path, "fp32", weights=mode) for mode in ("auto", "fp32"))
    assert mixed.weights.nbytes < wide.weights.nbytes / 2
    got, want = (Stepper(model, ReferenceOps()).step(a=IDS)["a"] for model in (mixed, wide))
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("field", ["scale", "minimum"])
def test_a_factor_that_is_not_finite_is_refused(tmp_path, field):
    path = Recipe(kind=Kind.Q4_1).write(tmp_path / "m.gguf")
    content = bytearray(path.read_bytes())
    place = content.index(quantize(Recipe().tensors["blk.1.ffn_up.weight"], Kind.Q4_1).tobytes())
    start = place + (0 if field == "scale" else 2)
    content[start : start + 2] = np.float16(np.inf).tobytes()
    path.write_bytes(content)
    with pytest.raises(ModelFileError, match=r"blk\.1\.ffn_up\.weight holds values that are not finite"):
        load_model(path, "fp32")
