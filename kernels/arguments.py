"""The checks that a launcher makes of its arguments before it starts a kernel.

A kernel computes with whatever lies at the addresses that it is given: for a strided view where it expects contiguous
elements it computes wrong numbers, and a tensor that is too short it reads past the end. Owns the checks and their one
error, which names the argument. Knows no kernel.
"""

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

FLOAT_TYPES = (torch.float32, torch.bfloat16, torch.float16)


def expect(
    name: str,
    tensor: Tensor,
    shape: Sequence[int | None],
    dtypes: torch.dtype | Collection[torch.dtype],
    device: torch.device,
    *,
    strided: bool = False,
) -> None:
    """Raises ValueError unless `tensor` has this shape (None is any size), one of these types, this device, and
    contiguous elements; with `strided`, only its last dimension must be contiguous.
    """
    dtypes = (dtypes,) if isinstance(dtypes, torch.dtype) else dtypes
    laid_out = tensor.ndim > 0 and tensor.stride(-1) == 1 if strided else tensor.is_contiguous()
    if laid_out and tensor.dtype in dtypes and tensor.device == device and _matches(tensor.shape, shape):
        return
    found = f"{_type(tensor.dtype)} {list(tensor.shape)} on {tensor.device} with strides {list(tensor.stride())}"
    sizes = ", ".join("any" if size is None else str(size) for size in shape)
    layout = "contiguous in its last dimension" if strided else "contiguous"
    types = " or ".join(_type(dtype) for dtype in dtypes)
    raise ValueError(f"{name}: {found}; the kernel takes {types} [{sizes}] on {device}, {layout}")


def expect_that(name: str, holds: bool, takes: str) -> None:
    """Raises ValueError unless `holds`; `takes` says what the kernel accepts for the argument `name`."""
    if not holds:
        raise ValueError(f"{name}: the kernel takes {takes}")


def _matches(found: torch.Size, shape: Sequence[int | None]) -> bool:
    return len(found) == len(shape) and all(
        wanted is None or size == wanted for size, wanted in zip(found, shape, strict=True)
    )


def _type(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
