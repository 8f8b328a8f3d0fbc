"""The launches of paged attention that are compiled ahead of time: every row of the table, and the options outside it.

Knows shapes of tensors, not how kernels work. Invariant: each row is launched as a bfloat16 model would (float32 for
rows of fp32), with four query heads per KV head.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from kernels.attention_call import AttentionCall
from kernels.attention_scratch import SPLIT_KEYS
from kernels.attention_table import Row, Tile, rows
from kernels.launch import Launch

_TYPES = {"16-bit": torch.bfloat16, "fp32": torch.float32, "fp8": torch.float8_e4m3fn, "int8": torch.int8}
_KV_HEADS, _GROUP = 2, 4


@dataclass(frozen=True, slots=True)
class _Extra:
    """Options of a model that are not in the table."""

    name: str = ""
    window: int | None = None
    soft_cap: float | None = None
    group: int = _GROUP


# In `make check`, all with blocks of 16: the largest and the usual row of each kind, and a head dim of 80.
_CHECKED = {
    "decode": {(80, "16-bit"), (128, "16-bit"), (128, "fp8"), (128, "int8"), (256, "16-bit"), (256, "fp8")},
    "chunk": {(80, "16-bit"), (128, "16-bit"), (128, "fp8"), (256, "16-bit")},
}
_EXTRAS = (_Extra(" windowed", window=4096), _Extra(" capped", soft_cap=50.0), _Extra(" group 7", group=7))


def launches_of(
    architecture: str, kind: str, tile: Callable[[Row], Tile], launch: Callable[[AttentionCall, Tile], object]
) -> list[Launch]:
    """The launches of one kernel; `tile` takes its tile from a row."""
    plain = [(row, _Extra()) for row in rows(architecture)]
    usual = next(row for row in rows(architecture) if (row.head_dim, row.block_size, row.kv) == (128, 16, "16-bit"))
    return [
        Launch(
            f"{kind} {row.head_dim} x {row.block_size} {row.kv}{extra.name}",
            lambda row=row, extra=extra: launch(_call(row, extra), tile(row)),
            may_spill=kind != "decode",
            checked=row.block_size == 16 and not extra.name and (row.head_dim, row.kv) in _CHECKED[kind],
        )
        for row, extra in [*plain, *((usual, extra) for extra in _EXTRAS)]
    ]


def _call(row: Row, extra: _Extra) -> AttentionCall:
    """Two sequences of one query each and of more than one split."""
    dtype = torch.float32 if row.kv == "fp32" else torch.bfloat16
    q = torch.zeros(2, _KV_HEADS * extra.group, row.head_dim, dtype=dtype)
    cache = torch.zeros(2, row.block_size, _KV_HEADS, row.head_dim).to(_TYPES[row.kv])
    scale = torch.zeros(cache.shape[:3]) if row.kv in {"fp8", "int8"} else None
    return AttentionCall(
        q,
        q,
        cache,
        cache,
        scale,
        scale,
        block_tables=torch.zeros(2, 2 * SPLIT_KEYS // row.block_size, dtype=torch.int32),
        query_start=torch.arange(3, dtype=torch.int32),
        context_lens=torch.zeros(2, dtype=torch.int32),
        scale=row.head_dim**-0.5,
        soft_cap=extra.soft_cap,
        window=extra.window,
    )
