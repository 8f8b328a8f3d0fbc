"""The configurations of the attention kernels: one table for each architecture, of all that a runner can choose.

Owns tile sizes, warps and stages, and which row of the table a launch takes. Imports no triton. `kernels.compile`
compiles each row, so what is served was seen to compile, to hold its registers and to fit into shared memory.

Invariant: a row depends on the model and the pool alone, never on the batch. `keys` decides in which order a row of a
result is added up, so it may differ from one architecture to another, but not between two steps on one.

Five stages: triton gives the lookup of the block, the load that needs it and the products a stage each, and two tiles
of keys are on their way while one is multiplied. With 32 keys of 128 in bfloat16 that is 32 KiB a program, 37 KiB of
shared memory and 107 registers, so that four programs share an SM of sm_90: 128 KiB on their way, of which the latency
of its memory (some 800 ns at 33 GB/s) asks for 26. Chunks are bound by computation: a tile of keys serves 64 rows.
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


_SM_80: dict[KvType, tuple[Tile, Tile]] = {  # head dims up to 128: of decodes, of chunks
    "16-bit": (Tile(16, 32, 4, 5), Tile(64, 32, 4, 3)),
    "fp32": (Tile(16, 32, 4, 3), Tile(16, 32, 4, 3)),
    "fp8": (Tile(16, 32, 4, 5), Tile(64, 32, 4, 3)),
    "int8": (Tile(16, 32, 4, 5), Tile(64, 32, 4, 3)),
}
_SM_80_256: dict[KvType, tuple[Tile, Tile]] = {  # of 256
    "16-bit": (Tile(16, 32, 4, 5), Tile(64, 32, 8, 3)),
    "fp32": (Tile(16, 16, 8, 3), Tile(16, 16, 8, 3)),
    "fp8": (Tile(16, 32, 8, 5), Tile(64, 32, 8, 3)),
    "int8": (Tile(16, 32, 8, 5), Tile(64, 32, 8, 3)),
}
_SM_90 = _SM_80 | {  # its matrix instruction takes 64 rows and leaves registers for twice the keys
    "16-bit": (Tile(16, 32, 4, 5), Tile(64, 64, 4, 3)),
    "fp8": (Tile(16, 32, 4, 5), Tile(64, 64, 8, 3)),
    "int8": (Tile(16, 32, 4, 5), Tile(64, 64, 8, 3)),
}

ARCHITECTURES = {  # (up to 128, 256); the newest that is not newer than the chip is taken
    "sm_80": (_SM_80, _SM_80_256),
    "sm_86": (_SM_80, _SM_80_256),
    "sm_89": (_SM_80, _SM_80_256),
    "sm_90": (_SM_90, _SM_80_256),
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
