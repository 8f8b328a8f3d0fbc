"""Part b: how fast each kernel is, as a share of what the device's memory or its products reach in the same run, and
beside what torch itself has for the same work.

Invariant: bytes and operations are those that the work needs, not those that a kernel happens to move.
"""

from collections.abc import Callable, Iterable, Iterator

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from bench.gpu import draws, products
from bench.gpu.cases import AttentionInputs, AttentionShape
from bench.gpu.machine import Machine
from bench.gpu.part import Found, Job, Row, logged
from kernels.attention_scratch import AttentionScratch
from kernels.triton_ops import TritonOps

EPS = 1e-5
KERNELS = TritonOps()
DTYPE = torch.bfloat16


def run(machine: Machine) -> Found:
    yardsticks: Row = {
        "kernel": "yardsticks",
        "shape": "device copy, matrix product",
        "copy_gb_per_s": machine.copy_bytes_per_s / 1e9,
        "matmul_tflops": machine.matmul_flops / 1e12,
    }
    logged(yardsticks)
    rows: list[Row] = []
    faults: list[str] = []
    for make in _jobs(machine):
        try:
            rows += [_measured(machine, job) for job in make()]
        except Exception as fault:  # noqa: BLE001 - one kernel that cannot run must not hide the others
            faults.append(f"{type(fault).__name__}: {fault}")
    shown = ("kernel", "shape", "us", "of_copy", "of_matmul", "of_torch")
    columns = ["kernel", "shape", "us", "of copy", "of product", "of torch's time"]
    return Found([yardsticks, *rows], faults, columns, [[row[name] for name in shown] for row in rows])


def _measured(machine: Machine, job: Job) -> Row:
    seconds = machine.seconds(job.run)
    row: Row = {
        "kernel": job.kernel,
        "shape": job.shape,
        "us": seconds * 1e6,
        "gb_per_s": job.bytes_moved / seconds / 1e9,
        "of_copy": job.bytes_moved / seconds / machine.copy_bytes_per_s,
        "tflops": job.flops / seconds / 1e12,
        "of_matmul": job.flops / seconds / machine.matmul_flops if job.flops else None,
        "of_torch": seconds / machine.seconds(job.torch_run),
    }
    return logged(row)


def _jobs(machine: Machine) -> Iterator[Callable[[], Iterable[Job]]]:
    """Groups of which each holds its memory only while it is measured."""
    batches = (
        ((2, 40),) if machine.dry else ((1, 65_536), (4, 32_768), (16, 4_096), (64, 1_024), (64, 8_192), (256, 1_024))
    )
    for sequences, context in batches:
        yield lambda s=sequences, c=context: [_decode(machine, s, c)]
    for kv in () if machine.dry else (torch.int8, torch.float8_e4m3fn):
        yield lambda kv=kv: [_decode(machine, 64, 8_192, kv)]
    for tokens in (24,) if machine.dry else (1_024, 8_192):
        yield lambda t=tokens: [_prefill(machine, t)]
    for tokens in (2,) if machine.dry else (64, 8_192):
        yield lambda t=tokens: [make(machine, t) for make in (_norm, _add_norm, _silu, _rope)]
    for rows in (2,) if machine.dry else (1, 16, 64):
        yield lambda r=rows: products.jobs(machine, r)
    for rows in (2,) if machine.dry else (1, 256):
        yield lambda r=rows: draws.jobs(machine, r)


def _shape(machine: Machine, lengths: tuple[tuple[int, int], ...], kv: torch.dtype | None = None) -> AttentionShape:
    heads, kv_heads, head_dim = (2, 1, 16) if machine.dry else (32, 8, 128)
    return AttentionShape(heads=heads, kv_heads=kv_heads, head_dim=head_dim, block_size=16, lengths=lengths, kv=kv)


def _attend(inputs: AttentionInputs, queries_max: int | None) -> Callable[[], Tensor]:
    shape = inputs.shape
    context = inputs.block_tables.shape[1] * shape.block_size
    sequences = len(shape.lengths)
    scratch = AttentionScratch.of(sequences, context, shape.heads, shape.head_dim, inputs.device)
    return lambda: KERNELS.paged_attention(
        inputs.q,
        inputs.k_cache,
        inputs.v_cache,
        block_tables=inputs.block_tables,
        query_start=inputs.query_start,
        context_lens=inputs.context_lens,
        scale=shape.head_dim**-0.5,
        window=None,
        k_scale=inputs.scale,
        v_scale=inputs.scale,
        scratch=scratch,
        queries_max=queries_max,
    )


def _decode(machine: Machine, sequences: int, context: int, kv: torch.dtype | None = None) -> Job:
    inputs = AttentionInputs(_shape(machine, ((1, context),) * sequences, kv), _dtype(machine), machine.device)
    shape = inputs.shape
    q = inputs.q.view(sequences, shape.heads, 1, shape.head_dim)
    keys, values = _contiguous(machine, sequences, context, shape)
    return Job(
        "paged_attention, decode" + ("" if kv is None else f", {str(kv).removeprefix('torch.')}"),
        f"{sequences} x {context}",
        _attend(inputs, 1),
        lambda: F.scaled_dot_product_attention(q, keys, values, enable_gqa=True),
        inputs.pool_bytes_read + 2 * inputs.q.nbytes,
    )


def _prefill(machine: Machine, tokens: int) -> Job:
    inputs = AttentionInputs(_shape(machine, ((tokens, tokens),)), _dtype(machine), machine.device)
    shape = inputs.shape
    q = inputs.q.view(1, tokens, shape.heads, shape.head_dim).transpose(1, 2)
    keys, values = _contiguous(machine, 1, tokens, shape)
    return Job(
        "paged_attention, prompt",
        f"{tokens}",
        _attend(inputs, None),
        lambda: F.scaled_dot_product_attention(q, keys, values, is_causal=True, enable_gqa=True),
        inputs.pool_bytes_read + 2 * inputs.q.nbytes,
        flops=2 * tokens**2 * shape.heads * shape.head_dim,  # half of the square, two products
    )


def _contiguous(machine: Machine, sequences: int, context: int, shape: AttentionShape) -> tuple[Tensor, Tensor]:
    """[sequences, kv_heads, context, head_dim], as torch's attention wants them."""
    size = (sequences, shape.kv_heads, context, shape.head_dim)
    dtype = _dtype(machine)
    return torch.randn(size, device=machine.device).to(dtype), torch.randn(size, device=machine.device).to(dtype)


def _norm(machine: Machine, tokens: int) -> Job:
    x, _, weight = _hidden(machine, tokens)

    def unfused() -> Tensor:
        wide = x.float()
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPS)).to(x.dtype) * weight

    return Job("rms_norm", _size(x), lambda: KERNELS.rms_norm(x, weight, EPS), unfused, 2 * x.nbytes)


def _add_norm(machine: Machine, tokens: int) -> Job:
    x, residual, weight = _hidden(machine, tokens)

    def unfused() -> Tensor:
        return F.rms_norm(x + residual, weight.shape, weight, EPS)

    # In place: the numbers grow no further than the norm lets them.
    return Job("add_rms_norm", _size(x), lambda: KERNELS.add_rms_norm(x, residual, weight, EPS), unfused, 4 * x.nbytes)


def _silu(machine: Machine, tokens: int) -> Job:
    width = 32 if machine.dry else 14_336
    x = torch.randn(tokens, 2 * width, device=machine.device).to(_dtype(machine))

    def unfused() -> Tensor:
        return F.silu(x[:, :width]) * x[:, width:]

    return Job("silu_and_mul", _size(x), lambda: KERNELS.silu_and_mul(x), unfused, x.nbytes * 3 // 2)


def _rope(machine: Machine, tokens: int) -> Job:
    shape = _shape(machine, ())
    heads = shape.heads + 2 * shape.kv_heads
    qkv = torch.randn(tokens, heads, shape.head_dim, device=machine.device).to(_dtype(machine))
    q, k, v = qkv.split([shape.heads, shape.kv_heads, shape.kv_heads], 1)
    half = shape.head_dim // 2
    cos, sin = (torch.rand(tokens, half, device=machine.device) for _ in range(2))
    positions = torch.arange(tokens, device=machine.device)
    pool = (-(-tokens // 16), 16, shape.kv_heads, shape.head_dim)
    k_cache, v_cache = (torch.zeros(pool, dtype=qkv.dtype, device=machine.device) for _ in range(2))

    def unfused() -> None:
        wide_cos, wide_sin = (torch.cat((angle, angle), -1)[:, None] for angle in (cos, sin))
        for heads_ in (q, k):
            turned = torch.cat((-heads_[..., half:], heads_[..., :half]), -1)
            _ = (heads_ * wide_cos + turned * wide_sin).to(qkv.dtype)
        k_cache.view(-1, *pool[2:])[positions] = k
        v_cache.view(-1, *pool[2:])[positions] = v

    return Job(
        "rope_and_cache",
        _size(qkv),
        lambda: KERNELS.rope_and_cache(
            q, k, v, cos=cos, sin=sin, positions=positions, k_cache=k_cache, v_cache=v_cache, slots=positions
        ),
        unfused,
        2 * qkv.nbytes,
    )


def _hidden(machine: Machine, tokens: int) -> tuple[Tensor, Tensor, Tensor]:
    hidden = 64 if machine.dry else 4_096
    x, residual = (torch.randn(tokens, hidden, device=machine.device).to(_dtype(machine)) for _ in range(2))
    return x, residual, torch.ones(hidden, dtype=x.dtype, device=machine.device)


def _dtype(machine: Machine) -> torch.dtype:
    return torch.float32 if machine.dry else DTYPE


def _size(x: Tensor) -> str:
    return " x ".join(map(str, x.shape))
