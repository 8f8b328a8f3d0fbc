"""What the kernels' tests share: closeness per type, and memory that is as large as a real pool but never touched."""

import numpy as np
import torch
from torch import Tensor

TOLERANCE = {torch.float32: 2e-6, torch.float16: 2e-3}


def assert_near(actual: Tensor, expected: Tensor) -> None:
    """`actual` against the reference's float32 result. NaN is never near."""
    tolerance = TOLERANCE[actual.dtype]
    torch.testing.assert_close(actual.float(), expected, rtol=tolerance, atol=tolerance)


def sparse(elements: int, dtype: torch.dtype = torch.float16) -> Tensor:
    """Memory of `elements`, all 0. It comes from calloc: pages that nobody writes take no memory."""
    return torch.from_numpy(np.zeros(elements * dtype.itemsize, dtype=np.uint8)).view(dtype)
