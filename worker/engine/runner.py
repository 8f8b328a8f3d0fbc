"""The interface between the engine and what computes: torch, Triton, or a fake."""

from typing import Protocol

from worker.engine.batch import Batch, Sampled


class RunnerBroken(Exception):
    """The runner cannot compute any later step either. The cause is the error of a step."""


class PendingStep(Protocol):
    def result(self) -> Sampled:
        """Wait for the step and return what it sampled. Raises what the computation raised, or RunnerBroken. A
        `Sampled` is a PendingStep itself.
        """
        ...


class Runner(Protocol):
    """Owns the model and the KV pool. Called from the engine's thread only, one call at a time.

    `vocab_size` is the number of logits. `blocks_total` counts the pool's blocks, including the null block (id 0, which
    no sequence holds). `block_size` is in tokens; `context_length` is the model's limit in tokens. `steps_ahead` is how
    many steps may be submitted beyond the one whose result is awaited: 0, or 1 where the device computes while the host
    prepares. Steps are computed in the order of submission, each as if the previous one had ended.
    """

    vocab_size: int
    block_size: int
    blocks_total: int
    context_length: int
    steps_ahead: int

    def submit(self, batch: Batch) -> PendingStep:
        """Run the model over the batch, write K and V to `batch.slots`, and sample `batch.sample_rows`. The runner owns
        the batch from now on. An error may be raised here or by the result.
        """
        ...

    def close(self) -> None: ...
