"""The memory that serving a model takes, by kind, and how much work it allows. Pure arithmetic; allocates nothing.

An operator who sees where the memory goes can size a machine; "not enough memory" alone is no help.
"""

from dataclasses import dataclass

from worker.models.config import ModelConfig

POOL_DEFAULT = 1024**3
LOGIT_COPIES = 3  # of a step's float32 logits: as computed, processed, and sorted by the sampler


@dataclass(slots=True, frozen=True, kw_only=True)
class Memory:
    weights_bytes: int  # as they are kept
    kv_bytes: int
    activations_bytes: int  # at most, in the largest step
    kv_tokens: int  # that the pool holds
    full_contexts: int  # sequences of the model's whole context that run at the same time


def memory_of(
    config: ModelConfig,
    *,
    weights_bytes: int,
    item_bytes: int,
    kv_item_bytes: int,
    kv_tokens: int,
    step_tokens: int,
    step_samples: int,
    gathers: bool,
) -> Memory:
    """`item_bytes`, `kv_item_bytes`: of a number among activations, and in the pool. `kv_tokens`: what the
    pool has room for. `step_tokens`, `step_samples`: the most that one step computes and samples. `gathers`: whether
    attention copies a prompt's context out of the pool, as on a CPU.
    """
    attention = (2 * config.heads + 2 * config.kv_heads) * config.head_dim  # q, k, v and what is attended
    widest = 3 * config.hidden + max(attention, 3 * config.intermediate)  # the residual, its norm, an addend; one block
    logits = step_samples * config.vocab_size * 4 * LOGIT_COPIES
    context = config.context_length
    copied = context * 2 * config.kv_heads * config.head_dim * 4 if gathers else 0
    return Memory(
        weights_bytes=weights_bytes,
        kv_bytes=kv_tokens * config.kv_elements_per_token * kv_item_bytes,
        activations_bytes=step_tokens * widest * item_bytes + logits + copied,
        kv_tokens=kv_tokens,
        full_contexts=kv_tokens // config.context_length,
    )


def pool_bytes(asked: int | None, room: int | None) -> int:
    """The bytes of a KV pool on a CPU: what was asked for, else 1 GiB or what there is room for. Its memory is taken as
    it is written to, so a pool that is too large would end the process in the middle of its work. `room`: bytes
    beside the weights and the largest step, None if that is not known. Raises ValueError where too much was asked for.
    """
    if asked is None:
        return POOL_DEFAULT if room is None else max(0, min(POOL_DEFAULT, room))
    if room is not None and asked > room:
        raise ValueError(f"FOREBAY_KV_BYTES={asked} does not fit: {max(0, room)} bytes are left beside the model")
    return asked
