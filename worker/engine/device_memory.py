"""The division of a device's memory: weights, activations and graphs take what they need, and the KV pool the rest.

Pure arithmetic; allocates nothing. Invariant: the parts never add up to more than the share that may be used.
"""

from dataclasses import dataclass

GIB = 1024**3
# Of a recorded graph, beside the tensors that all of them share: its nodes and their arguments. A planning figure.
GRAPH_BYTES = 16 * 1024**2


@dataclass(slots=True, frozen=True, kw_only=True)
class DeviceMemory:
    total_bytes: int
    usable_bytes: int  # a share of the total
    others_bytes: int  # in use already, by libraries and other processes
    weights_bytes: int
    activations_bytes: int  # at most, in the largest step
    graphs_bytes: int
    kv_bytes: int
    blocks: int  # of the pool, with the null block
    kv_tokens: int  # that the others hold
    full_contexts: int  # sequences of the model's whole context that run at the same time

    def lines(self) -> list[str]:
        """The budget as lines of the log: what may be used, less each part, and what is left."""
        parts = [
            ("may be used", self.usable_bytes),
            ("- in use by others", self.others_bytes),
            ("- weights", self.weights_bytes),
            ("- activations", self.activations_bytes),
            ("- graphs", self.graphs_bytes),
            ("= KV pool", self.kv_bytes),
        ]
        sums = [f"{name:20}{size / GIB:10.2f} GiB" for name, size in parts]
        return [*sums, f"{self.kv_tokens} tokens in {self.blocks} blocks: {self.full_contexts} full contexts at once"]


def divide(
    *,
    total_bytes: int,
    free_bytes: int,
    share: float,
    weights_bytes: int,
    activations_bytes: int,
    graphs: int,
    token_bytes: int,
    block_size: int,
    context_length: int,
    kv_bytes_wanted: int | None = None,
) -> DeviceMemory:
    """`free_bytes`: once the weights are there. `token_bytes`: what one token keeps in the pool. Raises ValueError,
    with the sum, where no pool of two blocks is left, or less than `kv_bytes_wanted`.
    """
    usable = int(total_bytes * share)
    others = max(total_bytes - free_bytes - weights_bytes, 0)
    left = usable - others - weights_bytes - activations_bytes - graphs * GRAPH_BYTES
    kv_bytes = left if kv_bytes_wanted is None else kv_bytes_wanted
    blocks = max(kv_bytes, 0) // (token_bytes * block_size)
    kv_tokens = max(blocks - 1, 0) * block_size
    memory = DeviceMemory(
        total_bytes=total_bytes,
        usable_bytes=usable,
        others_bytes=others,
        weights_bytes=weights_bytes,
        activations_bytes=activations_bytes,
        graphs_bytes=graphs * GRAPH_BYTES,
        kv_bytes=blocks * token_bytes * block_size,
        blocks=blocks,
        kv_tokens=kv_tokens,
        full_contexts=kv_tokens // context_length,
    )
    if blocks < 2 or kv_bytes > left:
        raise ValueError("the device has not enough memory for the KV pool:\n" + "\n".join(memory.lines()))
    return memory
