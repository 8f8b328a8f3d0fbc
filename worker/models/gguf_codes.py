"""Splits GGUF's blocks of 32 numbers with one scale into codes and scales. Nothing is computed, so nothing is rounded.

Knows no file. `gguf.quants` would give the same values as float32, ten times slower and in four to eight times the
memory. Source: ggml's block_q4_0, block_q4_1 and block_q8_0.
"""

from typing import Any

import numpy as np
import torch
from gguf.constants import GGMLQuantizationType as Kind
from numpy.typing import NDArray

from worker.models.source import GROUP, Codes

BLOCKS: dict[Kind, np.dtype[Any]] = {
    Kind.Q4_0: np.dtype([("scale", "<f2"), ("codes", "u1", GROUP // 2)]),
    Kind.Q4_1: np.dtype([("scale", "<f2"), ("minimum", "<f2"), ("codes", "u1", GROUP // 2)]),
    Kind.Q8_0: np.dtype([("scale", "<f2"), ("codes", "i1", GROUP)]),
}
ZERO_OF_Q4_0 = 8  # the code of the value 0


def read_codes(raw: NDArray[np.uint8], kind: Kind) -> Codes:
    """raw: [outputs, bytes], of a kind in BLOCKS."""
    blocks = raw.view(BLOCKS[kind])  # [outputs, inputs / 32]
    scales = blocks["scale"].astype(np.float32)
    if kind == Kind.Q8_0:
        codes, minimums = np.ascontiguousarray(blocks["codes"]), None
    else:
        low_then_high = (blocks["codes"] & 15, blocks["codes"] >> 4)
        codes = np.concatenate(low_then_high, axis=-1)
        minimums = blocks["minimum"].astype(np.float32) if kind == Kind.Q4_1 else scales * -ZERO_OF_Q4_0
    return Codes(
        torch.from_numpy(codes.reshape(len(raw), -1)),
        torch.from_numpy(scales),
        None if minimums is None else torch.from_numpy(minimums),
    )
