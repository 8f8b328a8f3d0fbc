"""The seam between the engine and whatever computes: torch, Triton, or a fake."""

from typing import Protocol

from worker.engine.batch import Batch, Sampled


class Runner(Protocol):
    """Owns the model and the KV pool. Called from the engine's thread only, one call at a time.

    `vocab_size` is the number of logits; `blocks_total` counts the pool's blocks with the null block (id 0, which no
    sequence holds); `block_size` is in tokens; `context_length` is the model's limit in tokens.
    """

    vocab_size: int
    block_size: int
    blocks_total: int
    context_length: int

    def execute(self, batch: Batch) -> Sampled:
        """Run the model over the batch, write K and V to `batch.slots`, and sample `batch.sample_rows`."""
        ...

    def close(self) -> None: ...
