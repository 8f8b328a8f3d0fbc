"""Part a: every kernel against the plain reference, computed in float32 from the same numbers.

The reported error is the root mean square of the difference over that of the reference. Invariant: a kernel is judged
by the limit of its type, which is a few of its roundings, or by a case's own limit; no kernel that a runner launches is
left out.
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from bench.gpu import batches, draws, places, products, rotation
from bench.gpu.cases import AttentionInputs, AttentionShape
from bench.gpu.machine import Machine
from bench.gpu.part import Case, Found, Row, logged
from bench.table import Cell
from kernels.reference import ReferenceOps
from kernels.triton_ops import TritonOps

LIMITS = {torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 8e-3}
EPS = 1e-5
REFERENCE, KERNELS = ReferenceOps(), TritonOps()
# Per sequence: new tokens, all tokens. Covers the edges of a block of 16, chunks, and a padded row of a graph.
EDGES = ((1, 1), (1, 15), (1, 16), (1, 17), (1, 0), (5, 5), (3, 40), (33, 33))
LONG = ((1, 1_025), (1, 513), (64, 700), (1, 3))
CAP = 2.0  # of scores that are about 1


def run(machine: Machine) -> Found:
    rows: list[Row] = []
    faults: list[str] = []
    worst: dict[tuple[str, str], tuple[float, str]] = {}
    for case in _cases(machine):
        name = str(case.dtype).removeprefix("torch.")
        try:
            error = error_ratio(*case.run())
        except Exception as fault:  # noqa: BLE001 - one case that cannot run must not hide the others
            faults.append(f"{case.kernel} {name} {case.shape}: {type(fault).__name__}: {fault}")
            continue
        rows.append(logged({"kernel": case.kernel, "dtype": name, "shape": case.shape, "error": error}))
        if not error <= (LIMITS[case.dtype] if case.error_max is None else case.error_max):
            faults.append(f"{case.kernel} {name} {case.shape}: an error of {error:.2g}")
        worst[case.kernel, name] = max(worst.get((case.kernel, name), (0.0, "")), (error, case.shape))
    table: list[list[Cell]] = [[kernel, name, error, shape] for (kernel, name), (error, shape) in sorted(worst.items())]
    return Found(rows, faults, ["kernel", "dtype", "worst error", "at"], table)


def error_ratio(got: Tensor, want: Tensor) -> float:
    """RMS of the error over RMS of what is right. NaN if anything is not finite."""
    assert got.shape == want.shape
    error = (got.double() - want.double()).square().mean().sqrt()
    return float(error / want.double().square().mean().sqrt().clamp_min(1e-30))


def _cases(machine: Machine) -> Iterator[Case]:
    dtypes = (torch.float32,) if machine.dry else tuple(LIMITS)
    for dtype in dtypes:
        yield from _elementwise(machine, dtype)
        yield from _attention(machine, dtype)
        yield from rotation.cases(machine, dtype)
        yield from products.cases(machine, dtype)
    yield from batches.cases(machine)
    yield from draws.cases(machine)
    yield from places.cases(machine)


def _elementwise(machine: Machine, dtype: torch.dtype) -> Iterator[Case]:
    for tokens, hidden in ((3, 48),) if machine.dry else ((1, 2_048), (17, 4_096), (1_000, 4_100)):
        x, other, weight = _normal(machine, dtype, (tokens, hidden), (tokens, hidden), (hidden,))
        shape = f"{tokens} x {hidden}"
        yield Case(
            "rms_norm",
            dtype,
            shape,
            lambda x=x, w=weight: (KERNELS.rms_norm(x, w, EPS), REFERENCE.rms_norm(x.float(), w.float(), EPS)),
        )
        yield Case(
            "add_rms_norm",
            dtype,
            shape,
            lambda x=x, r=other, w=weight: (
                KERNELS.add_rms_norm(x.clone(), r.clone(), w, EPS)[0],
                REFERENCE.rms_norm((x + r).float(), w.float(), EPS),
            ),
        )
        yield Case(
            "silu_and_mul",
            dtype,
            shape,
            lambda x=x: (KERNELS.silu_and_mul(x), REFERENCE.silu_and_mul(x.float())),
        )


def _attention(machine: Machine, dtype: torch.dtype) -> Iterator[Case]:
    for shape in _shapes(machine, dtype):
        group = f"head_dim {shape.head_dim}, {shape.heads}/{shape.kv_heads} heads, blocks of {shape.block_size}"
        name = f"{group}, {len(shape.lengths)} sequences" + (f", window {shape.window}" if shape.window else "")
        name += f", soft cap {shape.soft_cap}" if shape.soft_cap else ""
        name += f", {str(shape.kv).removeprefix('torch.')} pool" if shape.kv else ""
        yield Case("paged_attention", dtype, name, lambda s=shape: _attend(machine, dtype, s))


def _shapes(machine: Machine, dtype: torch.dtype) -> Iterator[AttentionShape]:
    """All head dimensions and block sizes in bfloat16; the other types at the commonest."""
    if machine.dry:
        yield AttentionShape(heads=3, kv_heads=1, head_dim=24, block_size=16, lengths=EDGES[3:7], window=5)
        yield AttentionShape(heads=2, kv_heads=1, head_dim=16, block_size=16, lengths=EDGES[3:6], kv=torch.int8)
        yield AttentionShape(heads=1, kv_heads=1, head_dim=16, block_size=64, lengths=LONG[1:2], soft_cap=CAP)
        return
    whole = dtype == torch.bfloat16
    groups = {64: (8, 8), 80: (8, 2), 96: (7, 1), 128: (32, 8), 256: (16, 2)}
    for head_dim in groups if whole else (64, 128):
        heads, kv_heads = groups[head_dim]
        for block_size in (16, 32, 64) if whole else (16,):
            yield AttentionShape(
                heads=heads, kv_heads=kv_heads, head_dim=head_dim, block_size=block_size, lengths=EDGES + LONG
            )
    common = AttentionShape(heads=32, kv_heads=8, head_dim=128, block_size=16, lengths=EDGES + LONG)
    yield replace(common, window=33)
    yield replace(common, soft_cap=CAP)
    for kv in (torch.int8, torch.float8_e4m3fn) if whole else ():
        yield replace(common, kv=kv)


def _attend(machine: Machine, dtype: torch.dtype, shape: AttentionShape) -> tuple[Tensor, Tensor]:
    inputs = AttentionInputs(shape, dtype, machine.device)

    def attend(ops: ReferenceOps | TritonOps, q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        return ops.paged_attention(
            q,
            keys,
            values,
            block_tables=inputs.block_tables,
            query_start=inputs.query_start,
            context_lens=inputs.context_lens,
            scale=shape.head_dim**-0.5,
            window=shape.window,
            soft_cap=shape.soft_cap,
            k_scale=inputs.scale,
            v_scale=inputs.scale,
        )

    pools = inputs.k_cache, inputs.v_cache
    exact = pools if shape.kv is not None else (pools[0].float(), pools[1].float())
    return attend(KERNELS, inputs.q, *pools), attend(REFERENCE, inputs.q.float(), *exact)


def _normal(machine: Machine, dtype: torch.dtype, *shapes: tuple[int, ...]) -> list[Tensor]:
    generator = torch.Generator(machine.device).manual_seed(3)
    return [torch.randn(shape, generator=generator, device=machine.device).to(dtype) for shape in shapes]
