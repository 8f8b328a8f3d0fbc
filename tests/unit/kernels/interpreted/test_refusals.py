"""What no launcher may hand to its kernel, which would compute with it or read past its end.

Each case is one argument of a call that is right otherwise; the refusal names it.
"""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kernels import device_batch
from kernels.device_batch import BatchRows, PreparedBatch, SequenceRows
from kernels.fp8_matmul import Fp8Weight, fp8_matmul, quantize_rows, quantize_weight
from kernels.logit_edits import edit_logits
from kernels.quantized_matmul import quantized_matmul
from kernels.quantized_weight import QuantizedWeight, pack, quantize
from kernels.rms_norm import HIDDEN_MAX
from kernels.split_sum import sum_splits
from kernels.token_draw import VOCAB_MAX, draw_tokens
from kernels.whole_weight import whole_fp8_weight, whole_weight
from tests.unit.kernels.interpreted.attention_step import Step, scratch_of
from tests.unit.kernels.interpreted.near import sparse
from tests.unit.kernels.interpreted.rows import draw_params, logit_edits, row, token_lists

CPU = torch.device("cpu")


def refusal(name: str):
    return pytest.raises(ValueError, match=f"^{name}: ")


def strided(x: Tensor) -> Tensor:
    """The same numbers with others between them."""
    return torch.stack([x, x.new_full(x.shape, 7)], -1)[..., 0]


def test_a_refusal_says_what_came_and_what_is_taken(ops) -> None:
    with pytest.raises(ValueError, match=r"positions: int32 \[3\] on cpu.*takes int64 \[3\] on cpu, contiguous"):
        rotate(ops, positions=torch.zeros(3, dtype=torch.int32))
    with pytest.raises(ValueError, match=r"\[3, any, 16\] on cpu, contiguous in its last dimension"):
        rotate(ops, k=torch.randn(2, 2, 16))


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
    "queries of one head alone": ("q", {"q": torch.randn(3, 16)}),
    "strided queries": ("q", {"q": strided(torch.randn(3, 4, 16))}),
    "doubles": ("q", {"q": torch.randn(3, 4, 16).double()}),
    "an odd head dim": ("q", {"q": torch.randn(3, 4, 15)}),
    "keys of too few tokens": ("k", {"k": torch.randn(2, 2, 16)}),
    "keys elsewhere": ("k", {"k": torch.randn(3, 2, 16, device="meta")}),
    "values of fewer heads": ("v", {"v": torch.randn(3, 1, 16)}),
    "strided values": ("v", {"v": strided(torch.randn(3, 2, 16))}),
    "a pool of other heads": ("k_cache", {"k_cache": torch.zeros(6, 4, 1, 16)}),
    "a pool of blocks without slots": ("k_cache", {"k_cache": torch.zeros(6, 0, 2, 16)}),
    "a pool of another type": ("k_cache", {"k_cache": torch.zeros(6, 4, 2, 16).half()}),
    "pools of two sizes": ("v_cache", {"v_cache": torch.zeros(5, 4, 2, 16)}),
    "pools of two types": ("v_cache", {"v_cache": torch.zeros(6, 4, 2, 16, dtype=torch.int8)}),
    "pools of two layouts": ("v_cache", {"v_cache": torch.zeros(6, 2, 4, 16).transpose(1, 2)}),
    "no scale of a quantized pool": (
        "k_scale",
        {name: torch.zeros(6, 4, 2, 16, dtype=torch.int8) for name in ("k_cache", "v_cache")},
    ),
    "strided scales": (
        "v_scale",
        {
            **{name: torch.zeros(6, 4, 2, 16, dtype=torch.int8) for name in ("k_cache", "v_cache")},
            "k_scale": torch.zeros(6, 4, 2),
            "v_scale": strided(torch.zeros(6, 4, 2)),
        },
    ),
    "positions strided": ("positions", {"positions": strided(torch.tensor([4, 0, 39]))}),
    "positions expanded": ("positions", {"positions": torch.tensor([4]).expand(3)}),
    "positions of another type": ("positions", {"positions": torch.tensor([4.0, 0.0, 39.0])}),
    "slots strided": ("slots", {"slots": strided(torch.tensor([5, -1, 9]))}),
    "slots of another type": ("slots", {"slots": torch.tensor([5.0, -1.0, 9.0])}),
    "sin shorter than cos": ("sin", {"sin": torch.randn(39, 8)}),
    "cos strided": ("cos", {"cos": strided(torch.randn(40, 8))}),
    "cos of another type": ("cos", {"cos": torch.randn(40, 8).double()}),
    "a short norm": ("q_norm", {"q_norm": torch.ones(8)}),
    "a strided norm": ("k_norm", {"k_norm": strided(torch.ones(16))}),
    "a norm of whole numbers": ("q_norm", {"q_norm": torch.ones(16, dtype=torch.int32)}),
    "one norm": ("k_norm", {"k_norm": None}),
    "a norm elsewhere": ("q_norm", {"q_norm": torch.ones(16, device="meta")}),
}


@pytest.mark.parametrize(("name", "changes"), ROTATIONS.values(), ids=ROTATIONS)
def test_rope_and_cache_refuses_it_by_name(ops, name, changes) -> None:
    rotate(ops)
    with refusal(name):
        rotate(ops, **changes)


def wide(step: Step) -> Step:
    caches = {name: torch.zeros(4, 16, 2, 320) for name in ("k_cache", "v_cache")}
    return replace(step, q=torch.randn(4, 4, 320), **caches)


ATTENTION = {
    "tables of another type": ("block_tables", lambda step: replace(step, block_tables=step.block_tables.float())),
    "tables of twice the width": ("block_tables", lambda step: replace(step, block_tables=step.block_tables.long())),
    "tables strided": ("block_tables", lambda step: replace(step, block_tables=strided(step.block_tables))),
    "a table too few": ("block_tables", lambda step: replace(step, block_tables=step.block_tables[:1])),
    "contexts of another type": ("context_lens", lambda step: replace(step, context_lens=step.context_lens.float())),
    "contexts strided": ("context_lens", lambda step: replace(step, context_lens=strided(step.context_lens))),
    "a start too few": ("query_start", lambda step: replace(step, query_start=step.query_start[:-1])),
    "starts of twice the width": ("query_start", lambda step: replace(step, query_start=step.query_start.long())),
    "doubles": (
        "q",
        lambda step: replace(step, q=step.q.double(), k_cache=step.k_cache.double(), v_cache=step.v_cache.double()),
    ),
    "strided queries": ("q", lambda step: replace(step, q=strided(step.q))),
    "heads that no tile holds": ("q", wide),
    "heads that KV heads do not divide": ("q", lambda step: replace(step, q=torch.randn(4, 3, 32))),
    "keys of another head dim": ("k_cache", lambda step: replace(step, k_cache=step.k_cache[..., :16])),
    "keys of another type": ("k_cache", lambda step: replace(step, k_cache=step.k_cache.half())),
    "keys of no head": ("k_cache", lambda step: replace(step, k_cache=step.k_cache[:, :, :0])),
    "keys elsewhere": ("k_cache", lambda step: replace(step, k_cache=step.k_cache.to("meta"))),
    "values of fewer blocks": ("v_cache", lambda step: replace(step, v_cache=step.v_cache[1:])),
    "scales of whole keys": ("k_scale", lambda step: replace(step, k_scale=torch.ones(step.k_cache.shape[:3]))),
    "no scale of values": ("v_scale", lambda step: replace(step.quantized(torch.int8), v_scale=None)),
    "scales of too few blocks": (
        "k_scale",
        lambda step: replace(step.quantized(torch.int8), k_scale=torch.ones(1, *step.k_cache.shape[1:3])),
    ),
    "a window of no key": ("window", lambda step: replace(step, window=0)),
    "a cap of 0": ("soft_cap", lambda step: replace(step, soft_cap=0.0)),
}


@pytest.mark.parametrize(("name", "spoil"), ATTENTION.values(), ids=ATTENTION)
def test_paged_attention_refuses_it_by_name(ops, name, spoil) -> None:
    step = Step.of([(1, 5), (3, 9)])
    step.run(ops)
    with refusal(name):
        spoil(step).run(ops)


@pytest.mark.parametrize("name", ["out", "weight_log2"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.int32])
def test_a_scratch_of_another_type_is_refused(ops, name, dtype) -> None:
    scratch = scratch_of(1, 1024, 0.0)
    step = Step.of([(1, 600)], heads=2, kv_heads=1, head_dim=16, block_size=64)
    step.run(ops, scratch=scratch)
    with refusal(f"scratch.{name}"):
        step.run(ops, scratch=replace(scratch, **{name: getattr(scratch, name).to(dtype)}))


def test_a_scratch_of_other_heads_is_refused(ops) -> None:
    step = Step.of([(1, 600)], heads=4, kv_heads=1, head_dim=16, block_size=64)
    with refusal("scratch.out"):
        step.run(ops, scratch=scratch_of(1, 1024, 0.0))


WEIGHTS = {
    "too few groups of scales": ("weight.scales", lambda w: replace(w, scales=w.scales[:, :1])),
    "too few tiles of scales": ("weight.scales", lambda w: replace(w, scales=w.scales[:1])),
    "too few minimums": ("weight.minimums", lambda w: replace(w, minimums=w.minimums[:1])),
    "no minimums": ("weight.minimums", lambda w: replace(w, minimums=None)),
    "more outputs than codes": ("weight.codes", lambda w: replace(w, outputs=40)),
    "codes of another type": ("weight.codes", lambda w: replace(w, codes=w.codes.short())),
    "scales of another type": (
        "weight.scales",
        lambda w: replace(w, scales=w.scales.double(), minimums=w.minimums.double()),
    ),
    "scales elsewhere": ("weight.scales", lambda w: replace(w, scales=w.scales.to("meta"))),
    "codes strided": ("weight.codes", lambda w: replace(w, codes=strided(w.codes))),
}


@pytest.mark.parametrize(
    "use", [lambda w: quantized_matmul(torch.randn(2, 64), w), lambda w: whole_weight(w, torch.float32)]
)
@pytest.mark.parametrize(("name", "spoil"), WEIGHTS.values(), ids=WEIGHTS)
def test_weights_of_few_bits_that_do_not_fit_are_refused(use, name, spoil) -> None:
    weight: QuantizedWeight = quantize(torch.randn(32, 64), bits=4, group=32)
    use(weight)
    with refusal(name):
        use(spoil(weight))


INPUTS = {
    "inputs that the weight has not": torch.randn(2, 96),
    "doubles": torch.randn(2, 64).double(),
    "numbers apart": strided(torch.randn(2, 64)),
    "rows an odd number apart": torch.randn(2, 65)[:, :64],
    "a single row": torch.randn(64),
    "rows elsewhere": torch.randn(2, 64, device="meta"),
}


@pytest.mark.parametrize("x", INPUTS.values(), ids=INPUTS)
def test_inputs_of_a_product_that_do_not_fit_are_refused(x) -> None:
    with refusal("x"):
        quantized_matmul(x, quantize(torch.randn(32, 64), bits=4, group=32))


PACKINGS = {
    "codes of another type": ("codes", torch.zeros(8, 64), torch.ones(8, 2), None),
    "scales of fewer outputs": ("scales", torch.zeros(8, 64, dtype=torch.int8), torch.ones(7, 2), None),
    "groups of 16": ("scales", torch.zeros(8, 64, dtype=torch.int8), torch.ones(8, 4), None),
    "no groups": ("scales", torch.zeros(8, 64, dtype=torch.int8), torch.ones(8, 0), None),
    "fewer minimums": ("minimums", torch.zeros(8, 64, dtype=torch.uint8), torch.ones(8, 2), torch.ones(8, 1)),
}


@pytest.mark.parametrize(("name", "codes", "scales", "minimums"), PACKINGS.values(), ids=PACKINGS)
def test_codes_and_factors_that_do_not_fit_are_not_packed(name, codes, scales, minimums) -> None:
    with refusal(name):
        pack(codes, scales, minimums)


@pytest.mark.parametrize(("name", "bits", "group"), [("bits", 5, 32), ("group", 4, 48), ("group", 4, 0)])
def test_weights_are_not_rounded_to_other_bits_or_groups(name, bits, group) -> None:
    with refusal(name):
        quantize(torch.randn(4, 64), bits=bits, group=group)


def strided_codes(weight: Fp8Weight) -> Fp8Weight:
    return Fp8Weight(strided(weight.codes.view(torch.int8)).view(torch.float8_e4m3fn), weight.scales)


FP8_WEIGHTS = {
    "codes of another type": ("weight.codes", lambda w: Fp8Weight(w.codes.float(), w.scales)),
    "codes strided": ("weight.codes", strided_codes),
    "too few scales": ("weight.scales", lambda w: Fp8Weight(w.codes, w.scales[1:])),
    "scales of half the width": ("weight.scales", lambda w: Fp8Weight(w.codes, w.scales.half())),
    "scales elsewhere": ("weight.scales", lambda w: Fp8Weight(w.codes, w.scales.to("meta"))),
}


@pytest.mark.parametrize(
    "use",
    [
        lambda w: fp8_matmul(*quantize_rows(torch.randn(2, 64)), w, torch.float32),
        lambda w: whole_fp8_weight(w, torch.float32),
    ],
)
@pytest.mark.parametrize(("name", "spoil"), FP8_WEIGHTS.values(), ids=FP8_WEIGHTS)
def test_weights_of_fp8_that_do_not_fit_are_refused(use, name, spoil) -> None:
    weight = quantize_weight(torch.randn(32, 64))
    use(weight)
    with refusal(name):
        use(spoil(weight))


def test_rows_of_fp8_that_do_not_fit_are_refused() -> None:
    weight = quantize_weight(torch.randn(32, 64))
    codes, scales = quantize_rows(torch.randn(2, 64))
    with refusal("codes"):
        fp8_matmul(codes[:, :32], scales, weight, torch.float32)
    with refusal("codes"):
        fp8_matmul(codes.float(), scales, weight, torch.float32)
    with refusal("scales"):
        fp8_matmul(codes, scales[:1], weight, torch.float32)
    with refusal("x"):
        quantize_rows(strided(torch.randn(2, 64)))
    with refusal("x"):
        quantize_rows(torch.zeros(2, 64, dtype=torch.int8))


def test_parts_of_a_sum_of_another_layout_are_refused() -> None:
    with refusal("parts"):
        sum_splits(strided(torch.zeros(2, 3, 8)), torch.float32)
    with refusal("parts"):
        sum_splits(torch.zeros(2, 3, 8).half(), torch.float16)


@pytest.mark.parametrize("name", ["starts", "ids", "values"])
def test_lists_of_edits_that_are_not_contiguous_are_refused(name) -> None:
    lists = token_lists([([3], [1.0]), ([4], [2.0])])
    edits = replace(logit_edits([row(), row()]), bias=lists, seen=lists, banned=lists)
    edit_logits(torch.zeros(2, 50), edits)
    for of in ("bias", "seen", "banned"):
        spoiled = replace(edits, **{of: replace(lists, **{name: strided(getattr(lists, name))})})
        with refusal(f"{of}.{name}"):
            edit_logits(torch.zeros(2, 50), spoiled)


def test_parameters_of_edits_that_do_not_fit_are_refused() -> None:
    edits = logit_edits([row(), row()])
    with refusal("presence"):
        edit_logits(torch.zeros(2, 50), replace(edits, presence=torch.zeros(1)))
    with refusal("logits"):
        edit_logits(torch.zeros(2, 50).half(), edits)
    with refusal("logits"):
        edit_logits(strided(torch.zeros(2, 50)), edits)


PARAMS = {
    "temperature": torch.ones(2).double(),
    "top_p": torch.ones(1),
    "min_p": strided(torch.zeros(2)),
    "top_k": torch.zeros(2, dtype=torch.int64),
    "seed": torch.zeros(2, dtype=torch.int32),
    "choice": torch.zeros(2, 1, dtype=torch.int64),
    "position": torch.zeros(2, dtype=torch.int64, device="meta"),
}


@pytest.mark.parametrize(("name", "spoiled"), PARAMS.items(), ids=PARAMS)
def test_parameters_of_a_draw_that_do_not_fit_are_refused(name, spoiled) -> None:
    params = draw_params([row(), row()])
    with refusal(name):
        draw_tokens(torch.randn(2, 50), replace(params, **{name: spoiled}))


LOGITS = {
    "numbers apart": strided(torch.randn(2, 50)),
    "doubles": torch.randn(2, 50).double(),
    "one row alone": torch.randn(50),
    "no vocabulary": torch.randn(2, 0),
    "a vocabulary that float32 cannot count": sparse(2 * VOCAB_MAX).view(2, VOCAB_MAX),
}


@pytest.mark.parametrize("logits", LOGITS.values(), ids=LOGITS)
def test_logits_that_cannot_be_drawn_from_are_refused(logits) -> None:
    with refusal("logits"):
        draw_tokens(logits, draw_params([row(), row()]))


NORMS = {
    "doubles": ("x", torch.randn(3, 8).double(), torch.ones(8)),
    "numbers apart": ("x", strided(torch.randn(3, 8)), torch.ones(8)),
    "rows that no program holds": ("x", torch.randn(1, HIDDEN_MAX + 1), torch.ones(HIDDEN_MAX + 1)),
    "one row alone": ("x", torch.randn(8), torch.ones(8)),
    "a short weight": ("weight", torch.randn(3, 8), torch.ones(7)),
    "a strided weight": ("weight", torch.randn(3, 8), strided(torch.ones(8))),
    "a weight elsewhere": ("weight", torch.randn(3, 8), torch.ones(8, device="meta")),
}


@pytest.mark.parametrize(("name", "x", "weight"), NORMS.values(), ids=NORMS)
def test_norms_refuse_it_by_name(ops, name, x, weight) -> None:
    with refusal(name):
        ops.rms_norm(x, weight, 1e-6)
    with refusal(name):
        ops.add_rms_norm(x, x.clone(), weight, 1e-6)


def test_sums_over_each_other_are_refused(ops) -> None:
    x, weight = torch.randn(3, 8), torch.ones(8)
    with refusal("residual"):
        ops.add_rms_norm(x, x[:], weight, 1e-6)
    with refusal("residual"):
        ops.add_rms_norm(x, torch.randn(3, 8).half(), weight, 1e-6)
    with refusal("x"):
        ops.add_rms_norm(x[:1].clone().expand(3, 8), x, weight, 1e-6)
    with refusal("residual"):
        ops.add_rms_norm(x, x[:1].clone().expand(3, 8), weight, 1e-6)


GATES = {
    "an odd width": torch.randn(2, 15),
    "whole numbers": torch.zeros(2, 16, dtype=torch.int32),
    "numbers apart": strided(torch.randn(2, 16)),
    "three dimensions": torch.randn(1, 2, 16),
}


@pytest.mark.parametrize("gate_up", GATES.values(), ids=GATES)
def test_activations_of_another_form_are_refused(ops, gate_up) -> None:
    with refusal("gate_up"):
        ops.silu_and_mul(gate_up)


def batch_of() -> BatchRows:
    start = torch.arange(3, dtype=torch.int32)
    return BatchRows(torch.arange(2, dtype=torch.int32), start, torch.zeros(2, dtype=torch.int64))


SEQUENCES = {
    "tables of twice the width": ("block_tables", lambda rows: replace(rows, block_tables=rows.block_tables.long())),
    "tables turned": (
        "block_tables",
        lambda rows: replace(rows, block_tables=rows.block_tables[:, :4].T.contiguous().T),
    ),
    "tables elsewhere": ("block_tables", lambda rows: replace(rows, block_tables=rows.block_tables.to("meta"))),
    "fewer counts than tables": ("last_ids", lambda rows: replace(rows, computed=rows.computed[:-1])),
    "fewer ids than tables": ("last_ids", lambda rows: replace(rows, last_ids=rows.last_ids[:-1])),
    "ids of half the width": ("last_ids", lambda rows: replace(rows, last_ids=rows.last_ids.int())),
    "counts of twice the width": ("computed", lambda rows: replace(rows, computed=rows.computed.long())),
}
PREPARATIONS = {
    "patch": lambda rows: device_batch.patch_rows(rows, torch.zeros(1, 3, dtype=torch.int32)),
    "prepare": lambda rows: device_batch.prepare_batch(rows, batch_of(), PreparedBatch.of(2, 2, 4, CPU), block_size=4),
    "commit": lambda rows: device_batch.commit_batch(
        rows, batch_of(), torch.zeros(2, dtype=torch.int64), torch.zeros(2, dtype=torch.int32)
    ),
}


@pytest.mark.parametrize("prepare", PREPARATIONS.values(), ids=PREPARATIONS)
@pytest.mark.parametrize(("name", "spoil"), SEQUENCES.values(), ids=SEQUENCES)
def test_rows_of_a_device_that_do_not_fit_are_refused(prepare, name, spoil) -> None:
    rows = SequenceRows.of(4, 4, CPU)
    prepare(rows)
    with refusal(name):
        prepare(spoil(rows))


PREPARED = {
    "ids": torch.zeros(2, dtype=torch.int32),
    "positions": torch.zeros(3, dtype=torch.int64),
    "slots": strided(torch.zeros(2, dtype=torch.int64)),
    "context_lens": torch.zeros(2, dtype=torch.int64),
    "block_tables": torch.zeros(2, 5, dtype=torch.int32),  # wider than those that the device remembers
}


@pytest.mark.parametrize(("name", "spoiled"), PREPARED.items(), ids=PREPARED)
def test_a_prepared_batch_that_does_not_fit_is_refused(name, spoiled) -> None:
    out = replace(PreparedBatch.of(2, 2, 4, CPU), **{name: spoiled})
    with refusal(f"out.{name}"):
        device_batch.prepare_batch(SequenceRows.of(4, 4, CPU), batch_of(), out, block_size=4)


@pytest.mark.parametrize("block_size", [0, -4])
def test_blocks_of_no_size_are_refused(block_size) -> None:
    out = PreparedBatch.of(2, 2, 4, CPU)
    with refusal("block_size"):
        device_batch.prepare_batch(SequenceRows.of(4, 4, CPU), batch_of(), out, block_size=block_size)


BATCHES = {
    "rows": torch.zeros(2, dtype=torch.int64),
    "query_start": torch.zeros(2, dtype=torch.int32),
    "given_ids": torch.zeros(2, dtype=torch.int32),
}


@pytest.mark.parametrize(("name", "spoiled"), BATCHES.items(), ids=BATCHES)
def test_a_batch_of_the_host_that_does_not_fit_is_refused(name, spoiled) -> None:
    batch, rows = replace(batch_of(), **{name: spoiled}), SequenceRows.of(4, 4, CPU)
    with refusal(name):
        device_batch.prepare_batch(rows, batch, PreparedBatch.of(2, 2, 4, CPU), block_size=4)


def test_drawn_tokens_that_do_not_fit_are_refused() -> None:
    rows, drawn, sample_of = SequenceRows.of(4, 4, CPU), torch.zeros(2, dtype=torch.int64), torch.zeros(2).int()
    with refusal("patches"):
        device_batch.patch_rows(rows, torch.zeros(2, 2, dtype=torch.int32))
    with refusal("drawn"):
        device_batch.commit_batch(rows, batch_of(), drawn.int(), sample_of)
    with refusal("sample_of"):
        device_batch.commit_batch(rows, batch_of(), drawn, sample_of[:1])
