"""Products of few rows with quantized weights: cases for both parts of the check.

Invariant: the truth is the product with the rounded weight, so that only the kernel's own error counts.
"""

from collections.abc import Iterator

import torch

from bench.gpu.machine import Machine
from bench.gpu.part import Case, Job
from kernels import fp8_matmul, reference_matmul
from kernels.quantized_matmul import quantized_matmul
from kernels.quantized_weight import QuantizedWeight, quantize

GROUP = 32


def cases(machine: Machine, dtype: torch.dtype) -> Iterator[Case]:
    for rows, outputs, inputs in ((3, 20, 64),) if machine.dry else ((1, 4_096, 4_096), (17, 1_000, 2_048)):
        generator = torch.Generator(machine.device).manual_seed(7)
        x = torch.randn(rows, inputs, generator=generator, device=machine.device).to(dtype)
        weight = torch.randn(outputs, inputs, generator=generator, device=machine.device)
        for bits in (4, 8):
            packed = quantize(weight, bits=bits, group=GROUP)
            yield Case(
                f"int{bits} product",
                dtype,
                f"{rows} x {inputs} -> {outputs}",
                lambda x=x, packed=packed: (quantized_matmul(x, packed), reference_matmul.quantized_matmul(x, packed)),
            )


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
    if machine.dry:
        return  # numpy has no such type
    eight = fp8_matmul.quantize_weight(weight)
    yield Job(
        "fp8 product",
        shape,
        lambda: fp8_matmul.fp8_matmul(*fp8_matmul.quantize_rows(x), eight, dtype),
        lambda: x @ weight.T,
        outputs * inputs,
        flops,
    )


def _bytes(weight: QuantizedWeight) -> int:
    return weight.codes.nbytes + weight.scales.nbytes + (0 if weight.minimums is None else weight.minimums.nbytes)
