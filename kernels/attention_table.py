"""The configurations of the attention kernels: one table for each architecture, of all that a runner can choose.

Owns tile sizes, warps and stages, and which row of the table a launch takes. Imports no triton. `kernels.compile`
compiles each row, so what is served was seen to compile, to hold its registers and to fit into shared memory.

Invariant: a row depends on the model and the pool alone, never on the batch. `keys` decides in which order a row of a
result is added up, so it may differ from one architecture to another, but not between two steps on one.

16-bit tiles: with 32 keys of 128 and three stages, a program has 32 KiB of K and V on their way while it computes, and
four programs fit into an SM of sm_90: 128 KiB, of which the latency of its memory (some 800 ns at 33 GB/s a SM) asks
for 26. Chunks of prompts are bound by computation: 64 rows, so that a tile of keys is used 64 times.
"""

from dataclasses import dataclass
from typing import Literal

KvType = Literal["16-bit", "fp32", "fp8", "int8"]  # of the pool; queries of a quantized one are 16-bit

HEAD_DIMS = (64, 80, 96, 128, 256)
BLOCK_SIZES = (16, 32, 64)
KV_TYPES: tuple[KvType, ...] = ("16-bit", "fp32", "fp8", "int8")


@dataclass(frozen=True, slots=True)
class Tile:
    rows: int  # query tokens x query heads of one KV head; at least 16, the smallest side that tl.dot takes
    keys: int  # that are taken at once; a power of two from 16 on
    warps: int
    stages: int  # tiles of keys in flight, the one at work included


@dataclass(frozen=True, slots=True)
class Row:
    head_dim: int
    block_size: int
    kv: KvType
    decode: Tile  # one query a sequence: `split_attention`
    chunk: Tile  # several: `chunk_attention`


_WIDE: dict[KvType, tuple[Tile, Tile]] = {  # head dims up to 128, with 160 KiB of shared memory or more
    "16-bit": (Tile(16, 32, 4, 4), Tile(64, 64, 4, 3)),
    "fp32": (Tile(16, 16, 4, 3), Tile(16, 16, 4, 3)),
    "fp8": (Tile(16, 32, 4, 5), Tile(64, 64, 4, 3)),
    "int8": (Tile(16, 32, 4, 5), Tile(64, 64, 4, 3)),
}
_WIDE_256: dict[KvType, tuple[Tile, Tile]] = {
    "16-bit": (Tile(16, 32, 4, 4), Tile(64, 32, 8, 3)),
    "fp32": (Tile(16, 16, 8, 3), Tile(16, 16, 8, 3)),
    "fp8": (Tile(16, 32, 4, 4), Tile(64, 32, 8, 3)),
    "int8": (Tile(16, 32, 4, 4), Tile(64, 32, 8, 3)),
}
_NARROW = _WIDE  # with 99 KiB
_NARROW_256: dict[KvType, tuple[Tile, Tile]] = _WIDE_256

ARCHITECTURES = {  # (up to 128, 256); the newest that is not newer than the chip is taken
    "sm_80": (_WIDE, _WIDE_256),
    "sm_86": (_NARROW, _NARROW_256),
    "sm_89": (_NARROW, _NARROW_256),
    "sm_90": (_WIDE, _WIDE_256),
}


def rows(architecture: str) -> list[Row]:
    """The table of one architecture: 60 rows."""
    upto_128, of_256 = ARCHITECTURES[architecture]
    return [
        Row(head_dim, block_size, kv, *(of_256 if head_dim > 128 else upto_128)[kv])
        for head_dim in HEAD_DIMS
        for block_size in BLOCK_SIZES
        for kv in KV_TYPES
    ]


def tiles(capability: int, head_dim: int, kv: KvType) -> tuple[Tile, Tile]:
    """Of decodes and of chunks. capability: of the chip, 90 for sm_90."""
    assert head_dim <= HEAD_DIMS[-1]
    known = [name for name in ARCHITECTURES if int(name.removeprefix("sm_")) <= capability]
    upto_128, of_256 = ARCHITECTURES[known[-1]]
    return (of_256 if head_dim > 128 else upto_128)[kv]
