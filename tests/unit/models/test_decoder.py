"""The decoder over a paged pool against the whole sequence computed at once (`tiny.logits`), in every composition."""

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind

from kernels.cpu import CpuOps
from kernels.reference import ReferenceOps
from tests.unit.models import tiny
from tests.unit.models.stepper import BLOCK, Stepper
from tests.unit.models.tiny import Recipe
from worker.models.load import load_model

IDS = np.random.default_rng(1).integers(2, tiny.VOCAB, 30).tolist()


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return load_model(Recipe().write(tmp_path_factory.mktemp("model") / "tiny.gguf"), "fp32")


@pytest.fixture(params=[CpuOps, ReferenceOps])
def stepper(request, model):
    return Stepper(model, request.param())


def expect(got: torch.Tensor, ids: list[int], last: int | None = None) -> None:
    want = tiny.logits(tiny.tensors(), ids).float()
    torch.testing.assert_close(got, want if last is None else want[-last:], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("length", [1, 2, BLOCK, BLOCK + 1, 30])
def test_a_whole_prompt(stepper, length):
    expect(stepper.step(a=IDS[:length])["a"], IDS[:length])


@pytest.mark.parametrize("chunk", [1, 3, BLOCK, 7])
def test_a_prompt_in_chunks(stepper, chunk):
    got = [stepper.step(a=IDS[at : at + chunk])["a"] for at in range(0, len(IDS), chunk)]
    expect(torch.cat(got), IDS)


def test_prompts_chunks_and_decodes_in_one_step(stepper):
    others = [IDS[::-1], IDS[5:25], IDS[::2]]
    stepper.step(a=IDS[:20], b=others[0][:3])
    stepper.step(b=others[0][3:9], c=others[1][:19])
    got = stepper.step(a=IDS[20:21], b=others[0][9:11], c=others[1][19:20], d=others[2])
    expect(got["a"], IDS[:21], 1)
    expect(got["b"], others[0][:11], 2)
    expect(got["c"], others[1], 1)
    expect(got["d"], others[2])


def test_only_wanted_rows_reach_the_head(model):
    stepper = Stepper(model, CpuOps())
    seen = []
    head = stepper.decoder.weights.head
    stepper.decoder.weights.head = lambda x: seen.append(len(x)) or head(x)
    try:
        stepper.step(a=IDS)
    finally:
        stepper.decoder.weights.head = head
    assert seen == [30]


@pytest.mark.parametrize("neighbour", [[5] * 6, IDS[6:12]])
def test_a_rows_result_does_not_depend_on_its_neighbours_values(model, neighbour):
    def second_row(values: list[int]) -> torch.Tensor:
        stepper = Stepper(model, CpuOps())
        stepper.step(a=values, b=IDS[:6])
        return stepper.step(a=[values[0]], b=[IDS[6]])["b"]

    assert torch.equal(second_row(neighbour), second_row(IDS[20:26]))


def test_a_neighbour_that_went_wrong_harms_nobody(model):
    stepper = Stepper(model, CpuOps())
    stepper.step(a=IDS[:6], b=IDS[:6])
    for cache in (*stepper.pool.keys, *stepper.pool.values):
        cache[stepper.tables["a"]] = torch.nan
    got = stepper.step(a=IDS[6:7], b=IDS[6:7], c=IDS[:5])
    assert got["a"].isnan().all()
    expect(got["b"], IDS[:7], 1)
    expect(got["c"], IDS[:5])


@pytest.mark.parametrize(
    "kind", [Kind.F16, Kind.BF16, Kind.Q8_0, Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1], ids=lambda kind: kind.name
)
def test_quantized_files_compute_what_their_values_say(tmp_path, kind):
    model = load_model(Recipe(kind=kind).write(tmp_path / "m.gguf"), "fp32")
    got = Stepper(model, CpuOps()).step(a=IDS)["a"]
    torch.testing.assert_close(got, tiny.logits(tiny.tensors(), IDS, kind).float(), rtol=1e-4, atol=1e-4)


def test_a_file_with_an_output_matrix_of_its_own(tmp_path):
    weights = tiny.tensors()
    weights["output.weight"] = tiny.tensors(seed=9)["token_embd.weight"]
    model = load_model(Recipe(tensors=weights).write(tmp_path / "m.gguf"), "fp32")
    got = Stepper(model, CpuOps()).step(a=IDS)["a"]
    torch.testing.assert_close(got, tiny.logits(weights, IDS).float(), rtol=1e-4, atol=1e-4)


def test_rotary_factors_of_later_llamas_are_obeyed(tmp_path):
    weights = tiny.tensors()
    weights["rope_freqs.weight"] = np.linspace(1, 8, tiny.HEAD_DIM // 2, dtype=np.float32)
    model = load_model(Recipe(tensors=weights).write(tmp_path / "m.gguf"), "fp32")
    got = Stepper(model, CpuOps()).step(a=IDS)["a"]
    torch.testing.assert_close(got, tiny.logits(weights, IDS).float(), rtol=1e-4, atol=1e-4)
    assert not torch.allclose(got, tiny.logits(tiny.tensors(), IDS).float(), rtol=1e-2, atol=1e-2)


def test_bfloat16_is_close(tmp_path):
    model = load_model(Recipe().write(tmp_path / "m.gguf"), "bf16")
    stepper = Stepper(model, CpuOps())
    got = torch.cat([stepper.step(a=IDS[:29])["a"], stepper.step(a=IDS[29:])["a"]])
    want = tiny.logits(tiny.tensors(), IDS).float()
    assert got.dtype == torch.float32
    # the logits spread over +-20; bfloat16 has 8 bits of mantissa and there are 2 layers
    assert (got - want).abs().mean() < 0.15
    assert (got - want).abs().max() < 1.0
