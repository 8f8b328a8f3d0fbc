"""A damaged or unfit model file is refused with one sentence that names the file and the tensor or field."""

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind

from kernels.cpu import CpuOps
from tests.unit.models import tiny
from tests.unit.models.stepper import Stepper
from tests.unit.models.tiny import Recipe
from worker.models.errors import ModelFileError
from worker.models.load import load_model, resolve_dtype


def refusal(recipe: Recipe, path) -> str:
    recipe.write(path)
    with pytest.raises(ModelFileError) as caught:
        load_model(path, "fp32")
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("name", list(tiny.tensors()))
def test_a_missing_tensor_is_named(tmp_path, name):
    recipe = Recipe()
    del recipe.tensors[name]
    assert refusal(recipe, tmp_path / "m.gguf").endswith(f"tensor {name} is missing")


@pytest.mark.parametrize("name", [name for name, t in tiny.tensors().items() if t.shape[0] != t.shape[-1]])
def test_a_transposed_tensor_is_named(tmp_path, name):
    recipe = Recipe()
    recipe.tensors[name] = np.ascontiguousarray(recipe.tensors[name].T)
    message = refusal(recipe, tmp_path / "m.gguf")
    assert "embedding" in message if name == "token_embd.weight" else f"tensor {name} has shape" in message


def test_a_layer_too_few_is_noticed(tmp_path):
    recipe = Recipe(tensors={name: t for name, t in tiny.tensors().items() if not name.startswith("blk.1.")})
    assert "tensor blk.1." in refusal(recipe, tmp_path / "m.gguf")


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_value_that_is_not_finite_is_refused(tmp_path, value):
    recipe = Recipe()
    recipe.tensors["blk.1.ffn_up.weight"][3, 5] = value
    assert "tensor blk.1.ffn_up.weight holds values" in refusal(recipe, tmp_path / "m.gguf")


def test_a_quantization_that_is_not_implemented_is_named(tmp_path):
    assert "quantization IQ4_NL" in refusal(Recipe(kind=Kind.Q4_0, label=Kind.IQ4_NL), tmp_path / "m.gguf")


@pytest.mark.parametrize(
    "name", ["blk.0.ffn_up.bias", "blk.1.attn_q_norm.weight", "blk.0.post_ffw_norm.weight", "blk.0.attn_sinks.weight"]
)
def test_a_tensor_that_another_model_would_compute_with_is_refused(tmp_path, name):
    recipe = Recipe()
    recipe.tensors[name] = np.ones(tiny.WIDE, np.float32)
    assert f"tensor {name} is not supported" in refusal(recipe, tmp_path / "m.gguf")


@pytest.mark.parametrize("name", ["blk.2.attn_norm.weight", "blk.2.ffn_up.bias", "mtp.weight"])
def test_what_belongs_to_no_layer_of_the_model_is_a_warning(tmp_path, name):
    recipe = Recipe()
    recipe.tensors[name] = np.ones(4, np.float32)
    with pytest.warns(UserWarning, match="ignored tensors"):
        load_model(recipe.write(tmp_path / "m.gguf"), "fp32")


def test_a_tensor_that_nobody_asked_for_is_a_warning(tmp_path):
    recipe = Recipe()
    recipe.tensors["blk.7.extra.weight"] = np.zeros(4, np.float32)
    with pytest.warns(UserWarning, match=r"ignored tensors: blk\.7\.extra\.weight \(1 in all\)"):
        load_model(recipe.write(tmp_path / "m.gguf"), "fp32")


@pytest.mark.parametrize(
    ("recipe", "complaint"),
    [
        (Recipe(architecture="gpt2"), "architecture 'gpt2'"),
        (Recipe(extra={"llama.expert_count": 8}), "mixture of experts"),
        (Recipe(extra={"llama.rope.scaling.type": "longrope"}), "RoPE scaling 'longrope'"),
        (Recipe(extra={"llama.rope.dimension_count": 8}), "partial rotary"),
        (Recipe(extra={"llama.attention.sliding_window_pattern": 2}), "windows on some layers"),
        (Recipe(extra={"llama.block_count": 2**31}), "llama.block_count is 2147483648"),
        (Recipe(extra={"tokenizer.ggml.eot_token_id": "x"}), "tokenizer.ggml.eot_token_id is a str"),
        (Recipe(extra={"tokenizer.chat_template": 7}), "tokenizer.chat_template is a int"),
        (Recipe(model="bert"), "tokenizer model 'bert'"),
        (Recipe(model="llama"), "tokenizer.ggml.scores is missing"),
        (Recipe(model="llama", scores=[0.0, 1.0]), "2 scores"),
        (Recipe(pre="deepseek-v3"), "pre-tokenizer 'deepseek-v3'"),
        (Recipe(merges=["he zz"]), "tokenizer.ggml.merges"),
        (Recipe(types=[1, 2]), "token types"),
        (Recipe(tokens=[*tiny.TOKENS[:-1], "!"]), "repeats a token"),
        (Recipe(tokens=[*tiny.TOKENS, "more"], types=[*tiny.TYPES, 1]), "rows"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_would_compute_something_else_is_refused(tmp_path, recipe, complaint):
    assert complaint in refusal(recipe, tmp_path / "m.gguf")


def test_progress_ends_at_one(tmp_path):
    seen: list[float] = []
    load_model(Recipe().write(tmp_path / "m.gguf"), "fp32", seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == pytest.approx(1.0)


@pytest.fixture(params=[False, True], ids=["emulated", "native"])
def native(request, monkeypatch):
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: request.param, raising=False)
    return request.param


def test_an_explicit_type_is_taken(native):
    cpu = torch.device("cpu")
    assert resolve_dtype("fp32", cpu, codes=False) is torch.float32
    assert resolve_dtype("bf16", cpu, codes=True) is torch.bfloat16
    assert resolve_dtype("auto", torch.device("cuda"), codes=True) is torch.bfloat16


def test_auto_follows_the_processor_unless_weights_have_few_bits(native):
    cpu = torch.device("cpu")
    wide = torch.bfloat16 if native else torch.float32
    for weights, codes, want in (
        ("auto", False, wide),
        ("bf16", False, wide),
        ("bf16", True, wide),
        ("auto", True, torch.float32),
        ("int4", False, torch.float32),
        ("int8", False, torch.float32),
        ("fp32", False, torch.float32),
    ):
        assert resolve_dtype("auto", cpu, weights, codes=codes) is want, (weights, codes)


@pytest.mark.parametrize("kind", [Kind.Q4_1, Kind.Q8_0])
def test_a_file_of_few_bits_is_computed_in_float32(tmp_path, native, kind):
    assert load_model(Recipe(kind=kind).write(tmp_path / "m.gguf")).dtype is torch.float32


@pytest.mark.parametrize("native", [True], indirect=True)
@pytest.mark.parametrize("kind", [Kind.BF16, Kind.F32])
def test_what_auto_chooses_for_wide_files_computes_the_model(tmp_path, native, kind):
    path = Recipe(kind=kind).write(tmp_path / "m.gguf")
    model = load_model(path)
    assert model.dtype is torch.bfloat16
    ids = [3, 50, 9, 70]
    got = Stepper(model, CpuOps()).step(a=ids)["a"]
    want = Stepper(load_model(path, "fp32", weights="fp32"), CpuOps()).step(a=ids)["a"]
    assert (got - want).abs().mean() < 0.05 * want.abs().mean()
