"""What no launcher may hand to its kernel, which would compute with it or read past its end."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kernels import device_batch
from kernels.device_batch import BatchRows, PreparedBatch, SequenceRows
from kernels.logit_edits import edit_logits
from kernels.quantized_matmul import quantized_matmul
from kernels.quantized_weight import QuantizedWeight, quantize
from kernels.whole_weight import whole_weight
from tests.unit.kernels.interpreted.attention_step import Step, scratch_of
from tests.unit.kernels.interpreted.rows import logit_edits, row, token_lists

REFUSED = (ValueError, AssertionError)
CPU = torch.device("cpu")


def strided(x: Tensor) -> Tensor:
    """The same numbers with others between them."""
    return torch.stack([x, x.new_full(x.shape, 7)], -1)[..., 0]


def test_a_refusal_says_what_came_and_what_is_taken(ops) -> None:
    with pytest.raises(ValueError, match=r"positions: int32 \[3\] on cpu.*takes int64 \[3\] on cpu, contiguous"):
        rotate(ops, positions=torch.zeros(3, dtype=torch.int32))


def rotate(ops, **changes: Tensor | None) -> Tensor:
    arguments = {
        "q": torch.randn(3, 4, 16),
        "k": torch.randn(3, 2, 16),
        "v": torch.randn(3, 2, 16),
        "cos": torch.randn(40, 8),
        "sin": torch.randn(40, 8),
        "positions": torch.tensor([4, 0, 39]),
        "slots": torch.tensor([5, -1, 9]),
        "k_cache": torch.zeros(6, 4, 2, 16),
        "v_cache": torch.zeros(6, 4, 2, 16),
        "q_norm": torch.ones(16),
        "k_norm": torch.ones(16),
    }
    return ops.rope_and_cache(**(arguments | changes))


ROTATIONS = {
    "positions strided": {"positions": strided(torch.tensor([4, 0, 39]))},
    "positions expanded": {"positions": torch.tensor([4]).expand(3)},
    "positions of another type": {"positions": torch.tensor([4.0, 0.0, 39.0])},
    "slots strided": {"slots": strided(torch.tensor([5, -1, 9]))},
    "slots of another type": {"slots": torch.tensor([5.0, -1.0, 9.0])},
    "sin shorter than cos": {"sin": torch.randn(39, 8)},
    "cos strided": {"cos": strided(torch.randn(40, 8))},
    "cos of another type": {"cos": torch.randn(40, 8).double()},
    "a short norm": {"q_norm": torch.ones(8)},
    "a strided norm": {"k_norm": strided(torch.ones(16))},
    "one norm": {"k_norm": None},
    "a norm elsewhere": {"q_norm": torch.ones(16, device="meta")},
    "an odd head dim": {
        **{name: torch.randn(3, heads, 15) for name, heads in (("q", 4), ("k", 2), ("v", 2))},
        **{name: torch.zeros(6, 4, 2, 15) for name in ("k_cache", "v_cache")},
        **{name: torch.randn(40, 7) for name in ("cos", "sin")},
        **{name: torch.ones(15) for name in ("q_norm", "k_norm")},
    },
}


@pytest.mark.parametrize("changes", ROTATIONS.values(), ids=ROTATIONS)
def test_rope_and_cache(ops, changes) -> None:
    rotate(ops)
    with pytest.raises(REFUSED):
        rotate(ops, **changes)


ATTENTION = {
    "tables of another type": lambda step: replace(step, block_tables=step.block_tables.float()),
    "tables of twice the width": lambda step: replace(step, block_tables=step.block_tables.long()),
    "contexts of another type": lambda step: replace(step, context_lens=step.context_lens.float()),
    "contexts strided": lambda step: replace(step, context_lens=strided(step.context_lens)),
    "a start too few": lambda step: replace(step, query_start=step.query_start[:-1]),
    "starts of twice the width": lambda step: replace(step, query_start=step.query_start.long()),
    "doubles": lambda step: replace(
        step, q=step.q.double(), k_cache=step.k_cache.double(), v_cache=step.v_cache.double()
    ),
}


@pytest.mark.parametrize("spoil", ATTENTION.values(), ids=ATTENTION)
def test_paged_attention(ops, spoil) -> None:
    step = Step.of([(1, 5), (3, 9)])
    step.run(ops)
    with pytest.raises(REFUSED):
        spoil(step).run(ops)


@pytest.mark.parametrize("dtype", [torch.float16, torch.int32])
def test_a_scratch_of_another_type(ops, dtype) -> None:
    scratch = scratch_of(1, 1024, 0.0)
    step = Step.of([(1, 600)], heads=2, kv_heads=1, head_dim=16, block_size=64)
    step.run(ops, scratch=scratch)
    for name in ("out", "weight_log2"):
        with pytest.raises(REFUSED):
            step.run(ops, scratch=replace(scratch, **{name: getattr(scratch, name).to(dtype)}))


WEIGHTS = {
    "too few groups of scales": lambda w: replace(w, scales=w.scales[:, :1]),
    "too few tiles of scales": lambda w: replace(w, scales=w.scales[:1]),
    "too few minimums": lambda w: replace(w, minimums=w.minimums[:1]),
    "no minimums": lambda w: replace(w, minimums=None),
    "more outputs than codes": lambda w: replace(w, outputs=40),
    "codes of another type": lambda w: replace(w, codes=w.codes.short()),
    "scales of another type": lambda w: replace(w, scales=w.scales.double(), minimums=w.minimums.double()),
    "codes strided": lambda w: replace(w, codes=strided(w.codes)),
}


@pytest.mark.parametrize(
    "use", [lambda w: quantized_matmul(torch.randn(2, 64), w), lambda w: whole_weight(w, torch.float32)]
)
@pytest.mark.parametrize("spoil", WEIGHTS.values(), ids=WEIGHTS)
def test_weights_of_few_bits(use, spoil) -> None:
    weight: QuantizedWeight = quantize(torch.randn(32, 64), bits=4, group=32)
    use(weight)
    with pytest.raises(REFUSED):
        use(spoil(weight))


@pytest.mark.parametrize("name", ["starts", "ids", "values"])
def test_lists_of_edits_that_are_not_contiguous(name) -> None:
    lists = token_lists([([3], [1.0]), ([4], [2.0])])
    edits = replace(logit_edits([row(), row()]), bias=lists, seen=lists, banned=lists)
    edit_logits(torch.zeros(2, 50), edits)
    for of in ("bias", "seen", "banned"):
        spoiled = replace(edits, **{of: replace(lists, **{name: strided(getattr(lists, name))})})
        with pytest.raises(ValueError, match=f"{of}.{name}"):
            edit_logits(torch.zeros(2, 50), spoiled)


def test_sums_over_each_other(ops) -> None:
    x, weight = torch.randn(3, 8), torch.ones(8)
    with pytest.raises(REFUSED):
        ops.add_rms_norm(x, x, weight, 1e-6)
    for first, second in ((x[:1].clone().expand(3, 8), x), (x, x[:1].clone().expand(3, 8))):
        with pytest.raises(REFUSED):
            ops.add_rms_norm(first, second, weight, 1e-6)


def batch_of() -> BatchRows:
    start = torch.arange(3, dtype=torch.int32)
    return BatchRows(torch.arange(2, dtype=torch.int32), start, torch.zeros(2, dtype=torch.int64))


SEQUENCES = {
    "tables of twice the width": lambda rows: replace(rows, block_tables=rows.block_tables.long()),
    "tables turned": lambda rows: replace(rows, block_tables=rows.block_tables[:, :4].T.contiguous().T),
    "fewer counts than tables": lambda rows: replace(rows, computed=rows.computed[:-1]),
    "fewer ids than tables": lambda rows: replace(rows, last_ids=rows.last_ids[:-1]),
    "ids of half the width": lambda rows: replace(rows, last_ids=rows.last_ids.int()),
}
PREPARATIONS = {
    "patch": lambda rows: device_batch.patch_rows(rows, torch.zeros(1, 3, dtype=torch.int32)),
    "prepare": lambda rows: device_batch.prepare_batch(rows, batch_of(), PreparedBatch.of(2, 2, 4, CPU), block_size=4),
    "commit": lambda rows: device_batch.commit_batch(
        rows, batch_of(), torch.zeros(2, dtype=torch.int64), torch.zeros(2, dtype=torch.int32)
    ),
}


@pytest.mark.parametrize("prepare", PREPARATIONS.values(), ids=PREPARATIONS)
@pytest.mark.parametrize("spoil", SEQUENCES.values(), ids=SEQUENCES)
def test_preparations(prepare, spoil) -> None:
    rows = SequenceRows.of(4, 4, CPU)
    prepare(rows)
    with pytest.raises(REFUSED):
        prepare(spoil(rows))


@pytest.mark.parametrize("block_size", [0, -4])
def test_blocks_of_no_size(block_size) -> None:
    out = PreparedBatch.of(2, 2, 4, CPU)
    with pytest.raises(REFUSED):
        device_batch.prepare_batch(SequenceRows.of(4, 4, CPU), batch_of(), out, block_size=block_size)
