"""After the first step of a kind no batch compiles anew: for seconds, all streams of a worker would stand still.

Here for everything but attention: sampling, quantized products, the preparation of batches, norms and activations.
Where Triton interprets, nothing is compiled; this file runs where it does not.
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from kernels.capture import capture
from kernels.device_batch import BatchRows, PreparedBatch, SequenceRows, commit_batch, patch_rows, prepare_batch
from kernels.fp8_matmul import Fp8Weight, fp8_matmul, quantize_rows
from kernels.quantized_matmul import quantized_matmul
from kernels.quantized_weight import quantize
from kernels.rms_norm import add_rms_norm, rms_norm
from kernels.sampling import DrawParams, LogitEdits, TokenLists
from kernels.silu_and_mul import silu_and_mul
from kernels.token_draw import draw_tokens

CPU = torch.device("cpu")


def anywhere(count: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """A slice of a buffer that begins at an odd place, as a batch's parameters do when they travel in one copy."""
    return torch.zeros(count + count % 7 + 1, dtype=dtype)[count % 7 + 1 :]


def sampling(rows: int) -> None:
    lists = TokenLists(anywhere(rows + 1, torch.int32), anywhere(rows, torch.int32), anywhere(rows))
    limits = [anywhere(rows) for _ in range(3)]
    counters = [anywhere(rows, torch.int64) for _ in range(3)]
    params = DrawParams(limits[0], anywhere(rows, torch.int32), *limits[1:], *counters)
    draw_tokens(torch.zeros(rows, 5000), params, LogitEdits(lists, lists, lists, *limits))


def products(rows: int) -> None:
    x = torch.zeros(rows, 2048, dtype=torch.float16)
    quantized_matmul(x, quantize(torch.zeros(16, 2048), bits=4, group=32))
    quantized_matmul(x, quantize(torch.zeros(16, 2048), bits=8, group=32))
    weight = Fp8Weight(torch.zeros(16, 2048).to(torch.float8_e4m3fn), torch.zeros(16))
    fp8_matmul(*quantize_rows(x), weight, torch.float16)


def batches(sequences: int) -> None:
    rows, out = SequenceRows.of(300, 128, CPU), PreparedBatch.of(2 * sequences, sequences, 128, CPU)
    batch = BatchRows(
        anywhere(sequences, torch.int32), anywhere(sequences + 1, torch.int32), anywhere(2 * sequences, torch.int64)
    )
    patch_rows(rows, anywhere(3 * sequences, torch.int32).view(-1, 3))
    prepare_batch(rows, batch, out, block_size=16)
    commit_batch(rows, batch, anywhere(sequences, torch.int64), anywhere(sequences, torch.int32))


def element_wise(tokens: int) -> None:
    x, weight = torch.zeros(tokens, 576), torch.zeros(576)
    rms_norm(x, weight, 1e-5)
    add_rms_norm(x, x.clone(), weight, 1e-5)
    silu_and_mul(torch.zeros(tokens, 2 * 1536))


@pytest.mark.parametrize(
    ("step", "kernels"),
    [
        (sampling, ["_draw_kernel", "_edit_kernel", "scan_kernel"]),
        # 4 and 8 bits are two variants of one kernel; their sums are one, and that of half as many splits another.
        (
            products,
            ["_fp8_matmul_kernel", *["_quantized_matmul_kernel"] * 2, "_quantize_rows_kernel", *["_sum_kernel"] * 2],
        ),
        (batches, ["_commit_kernel", "_patch_kernel", "_prepare_kernel"]),
        (element_wise, ["_add_rms_norm_kernel", "_rms_norm_kernel", "_silu_and_mul_kernel"]),
    ],
    ids=["sampling", "products", "batches", "element-wise"],
)
def test_no_size_of_batch_compiles_anew(step: Callable[[int], None], kernels: list[str]) -> None:
    with capture("sm_90") as caught:
        for size in (1, 2, 15, 16, 17, 64, 256):
            step(size)
    assert sorted(variant.kernel for variant in caught.variants.values()) == sorted(kernels)
