"""Causal attention of packed queries over a paged KV pool: prompts, their chunks, decodes, and batches of all of them.

Source: block tables as in PagedAttention (Kwon et al., arXiv 2309.06180), with the query heads of one KV head packed
into the rows of a tile.

Owns which kernels a call launches. Sequences with one query go to `split_attention`, others to `chunk_attention`; each
kernel leaves the other's sequences alone, so a mixed batch is two launches over the same tensors.
Invariant: which kernel computes a row, and how, follows from the row's own sequence, never from the rest of the batch.
"""

from torch import Tensor

from kernels.attention_call import AttentionCall
from kernels.attention_scratch import AttentionScratch
from kernels.chunk_attention import chunk_attention
from kernels.split_attention import programs_each, split_attention


def paged_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    *,
    block_tables: Tensor,
    query_start: Tensor,
    context_lens: Tensor,
    scale: float,
    window: int | None,
    soft_cap: float | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    scratch: AttentionScratch | None = None,
    queries_max: int | None = None,
    decodes: int | None = None,  # noqa: ARG001  each kernel takes the sequences that have as many queries as it wants
) -> Tensor:
    """See `Ops.paged_attention`. Rows of no sequence, past `query_start[-1]`, hold anything."""
    out = q.new_empty(q.shape)
    call = AttentionCall(
        out, q, k_cache, v_cache, k_scale, v_scale, block_tables, query_start, context_lens, scale, soft_cap, window
    )
    if q.shape[0] == 0:
        return out
    decode, chunk = call.tiles()
    if queries_max != 1:
        chunk_attention(call, chunk)
    split_attention(call, decode, scratch, programs_each(call.sequences, k_cache.shape[2]))
    return out
