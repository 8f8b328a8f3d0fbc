"""What a kernel takes for granted of a tensor, asked before it is launched.

A kernel is given an address and computes with whatever lies there: a strided view where it counts on neighbours gives
wrong numbers, a short one reads past its end. Owns the one question and its error. Knows no kernel.
"""

import torch
from torch import Tensor


def expect(name: str, tensor: Tensor, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
    """Raises ValueError unless it has this shape, type and device, and its elements lie side by side."""
    if tensor.shape == shape and tensor.dtype == dtype and tensor.device == device and tensor.is_contiguous():
        return
    found = f"{_type(tensor.dtype)} {list(tensor.shape)} on {tensor.device} with strides {list(tensor.stride())}"
    raise ValueError(f"{name}: {found}; the kernel takes {_type(dtype)} {list(shape)} on {device}, contiguous")


def _type(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
