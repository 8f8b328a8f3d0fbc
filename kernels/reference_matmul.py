"""Products with quantized weights written plainly in float64: what the kernels must equal, whatever their order."""

import torch
from torch import Tensor

from kernels.quantized_weight import QuantizedWeight

_LARGEST = 448.0


def quantized_matmul(x: Tensor, weight: QuantizedWeight) -> Tensor:
    """[rows, outputs] float64."""
    return x.double() @ weight.whole(torch.float64).T


def quantize_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Each row by its greatest number, rounded to the nearest of E4M3."""
    scales = x.float().abs().amax(1) / _LARGEST
    divisors = torch.where(scales > 0, scales, 1.0)
    return (x.float() / divisors.unsqueeze(1)).to(torch.float8_e4m3fn), scales


def fp8_matmul(codes: Tensor, scales: Tensor, weight_codes: Tensor, weight_scales: Tensor) -> Tensor:
    """[rows, outputs] float64."""
    x = codes.double() * scales.double().unsqueeze(1)
    return x @ (weight_codes.double() * weight_scales.double().unsqueeze(1)).T
