"""One call of paged attention, for the tests of its kernels."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kernels.attention_call import AttentionCall
from kernels.attention_scratch import AttentionScratch

NAN = float("nan")


@dataclass
class Step:
    """One call's arguments. `lens` are (query, context) per sequence."""

    q: Tensor
    k_cache: Tensor
    v_cache: Tensor
    block_tables: Tensor
    query_start: Tensor
    context_lens: Tensor
    window: int | None = None
    soft_cap: float | None = None
    k_scale: Tensor | None = None
    v_scale: Tensor | None = None

    @classmethod
    def of(cls, lens, *, heads=4, kv_heads=2, head_dim=32, block_size=16, dtype=torch.float32) -> "Step":
        """Random queries over a pool in which every slot that no context covers, and the null block, is NaN."""
        needed = [-(-context // block_size) for _, context in lens]
        free = iter((torch.randperm(sum(needed)) + 1).tolist())  # tables in no order
        tables = torch.zeros(len(lens), max(*needed, 1, 1), dtype=torch.int32)
        shape = (sum(needed) + 1, block_size, kv_heads, head_dim)
        k_cache, v_cache = (torch.full(shape, NAN, dtype=dtype) for _ in range(2))
        for table, blocks, (_, context) in zip(tables, needed, lens, strict=True):
            table[:blocks] = torch.tensor([next(free) for _ in range(blocks)], dtype=torch.int32)
            for cache in (k_cache, v_cache):
                content = torch.full((blocks * block_size, kv_heads, head_dim), NAN)
                content[:context] = torch.randn(context, kv_heads, head_dim)
                cache[table[:blocks].long()] = content.view(blocks, *shape[1:]).to(dtype)
        queries = [query for query, _ in lens]
        start = torch.tensor([0, *queries]).cumsum(0).to(torch.int32)
        contexts = torch.tensor([context for _, context in lens], dtype=torch.int32)
        q = torch.randn(sum(queries), heads, head_dim).to(dtype)
        return cls(q, k_cache, v_cache, tables, start, contexts)

    def quantized(self, dtype: torch.dtype) -> "Step":
        """The same, its pool in eight bits. Slots that no context covers hold a NaN where the type has one, and their
        scales are NaN.
        """
        step, largest = replace(self), {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}[dtype]
        for cache, scale in (("k_cache", "k_scale"), ("v_cache", "v_scale")):
            content = getattr(self, cache).float()
            scales = content.abs().amax(-1) / largest
            values = content / scales.unsqueeze(-1)
            setattr(step, cache, (values.nan_to_num(99).round() if dtype == torch.int8 else values).to(dtype))
            setattr(step, scale, scales)
        return step

    def run(self, ops, **more) -> Tensor:
        return ops.paged_attention(
            self.q,
            self.k_cache,
            self.v_cache,
            block_tables=self.block_tables,
            query_start=self.query_start,
            context_lens=self.context_lens,
            scale=self.q.shape[2] ** -0.5,
            window=self.window,
            soft_cap=self.soft_cap,
            k_scale=self.k_scale,
            v_scale=self.v_scale,
            **more,
        )

    def exact(self, truth) -> Tensor:
        return replace(self.in_float(), q=self.q.float()).run(truth)

    def in_float(self) -> "Step":
        """A quantized pool stays as it is: the reference reads it."""
        if self.k_scale is not None:
            return self
        return replace(self, k_cache=self.k_cache.float(), v_cache=self.v_cache.float())

    def alone(self, sequence: int) -> "Step":
        """One sequence of the batch by itself."""
        start, stop = self.query_start[sequence : sequence + 2].tolist()
        return replace(
            self,
            q=self.q[start:stop],
            block_tables=self.block_tables[sequence : sequence + 1],
            query_start=torch.tensor([0, stop - start], dtype=torch.int32),
            context_lens=self.context_lens[sequence : sequence + 1],
        )


def call_of(step: Step) -> AttentionCall:
    """As a launcher of one kernel takes it."""
    return AttentionCall(
        torch.zeros_like(step.q),
        step.q,
        step.k_cache,
        step.v_cache,
        None,
        None,
        step.block_tables,
        step.query_start,
        step.context_lens,
        scale=0.25,
        soft_cap=None,
        window=step.window,
    )


def scratch_of(sequences: int, context: int, fill: float) -> AttentionScratch:
    scratch = AttentionScratch.of(sequences, context, heads=2, head_dim=16, device=torch.device("cpu"))
    for memory in (scratch.out, scratch.weight_log2):
        memory.fill_(fill)
    return scratch
