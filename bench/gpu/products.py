"""Products of few rows with quantized weights, and expanded weights: cases for both parts of the check.

Invariant: the expected result is computed from the rounded weight and the rounded rows, so that only a kernel's own
error counts.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from bench.gpu.machine import Machine
from bench.gpu.part import Case, Job
from kernels import reference_matmul
from kernels.fp8_matmul import fp8_matmul, quantize_rows, quantize_weight
from kernels.quantized_matmul import quantized_matmul
from kernels.quantized_weight import QuantizedWeight, quantize
from kernels.whole_weight import whole_fp8_weight, whole_weight

GROUP = 32
# Of E4M3 in any type: matrix units may keep 14 bits of a sum of its products, and a quotient that lies between two
# codes to within its own error may become either.
FP8_ERROR_MAX = 8e-3
FP8_CODES_ERROR_MAX = 2e-3


def cases(machine: Machine, dtype: torch.dtype) -> Iterator[Case]:
    """Inputs of more than one split, so that sums are added up too."""
    for rows, outputs, inputs in ((3, 20, 1_056),) if machine.dry else ((1, 4_096, 4_096), (17, 1_000, 2_048)):
        generator = torch.Generator(machine.device).manual_seed(7)
        x = torch.randn(rows, inputs, generator=generator, device=machine.device).to(dtype)
        weight = torch.randn(outputs, inputs, generator=generator, device=machine.device)
        yield from _in_groups(x, weight)
        yield from _in_e4m3(x, weight)


def _in_groups(x: Tensor, weight: Tensor) -> Iterator[Case]:
    shape = f"{len(x)} x {weight.shape[1]} -> {len(weight)}"
    for bits in (4, 8):
        packed = quantize(weight, bits=bits, group=GROUP)
        yield Case(
            f"int{bits} product",
            x.dtype,
            shape,
            lambda packed=packed: (quantized_matmul(x, packed), reference_matmul.quantized_matmul(x, packed)),
        )
        yield Case(
            f"int{bits} made whole",
            x.dtype,
            shape,
            lambda packed=packed: (whole_weight(packed, x.dtype), packed.whole(x.dtype)),
            0.0,
        )


def _in_e4m3(x: Tensor, weight: Tensor) -> Iterator[Case]:
    shape = f"{len(x)} x {weight.shape[1]} -> {len(weight)}"
    eight = quantize_weight(weight)

    def product() -> tuple[Tensor, Tensor]:
        codes, scales = reference_matmul.quantize_rows(x)
        right = reference_matmul.fp8_matmul(codes, scales, eight.codes, eight.scales)
        return fp8_matmul(codes, scales, eight, x.dtype), right

    def rounded() -> tuple[Tensor, Tensor]:
        got, want = quantize_rows(x), reference_matmul.quantize_rows(x)
        return torch.cat([got[0].float().flatten(), got[1]]), torch.cat([want[0].float().flatten(), want[1]])

    yield Case("fp8 product", x.dtype, shape, product, FP8_ERROR_MAX)
    yield Case("fp8 rows", x.dtype, shape, rounded, FP8_CODES_ERROR_MAX)
    yield Case("fp8 made whole", x.dtype, shape, lambda: (whole_fp8_weight(eight, x.dtype), eight.whole(x.dtype)), 0.0)


def jobs(machine: Machine, rows: int) -> Iterator[Job]:
    """Against the plain product in the type that is computed in, on the projection from 4,096 to 2 x 14,336."""
    outputs, inputs = (32, 64) if machine.dry else (28_672, 4_096)
    dtype = torch.float32 if machine.dry else torch.bfloat16
    x = torch.randn(rows, inputs, device=machine.device).to(dtype)
    weight = torch.randn(outputs, inputs, device=machine.device).to(dtype)
    shape = f"{rows} x {inputs} -> {outputs}"
    flops = 2 * rows * inputs * outputs
    for bits in (4, 8):
        packed = quantize(weight, bits=bits, group=GROUP)
        yield Job(
            f"int{bits} product",
            shape,
            lambda packed=packed: quantized_matmul(x, packed),
            lambda: x @ weight.T,
            _bytes(packed),
            flops,
        )
    eight = quantize_weight(weight)
    yield Job(
        "fp8 product",
        shape,
        lambda: fp8_matmul(*quantize_rows(x), eight, dtype),
        lambda: x @ weight.T,
        outputs * inputs,
        flops,
    )


def _bytes(weight: QuantizedWeight) -> int:
    return weight.codes.nbytes + weight.scales.nbytes + (0 if weight.minimums is None else weight.minimums.nbytes)
