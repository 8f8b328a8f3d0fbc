"""Runs a decoder on a device that computes while the host prepares: decode steps as recorded graphs, other steps kernel
by kernel.

Owns the KV pool and the order of steps. Knows no request and no schedule. On CUDA it uses `CudaGraphs`; on a CPU the
same path runs with `EagerGraphs`, for tests. Invariant: after `warm_up` no step compiles a kernel.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kernels import device_batch
from kernels.attention_scratch import AttentionScratch
from kernels.device_batch import BatchRows, PreparedBatch
from kernels.token_draw import draw_tokens
from worker.engine.batch import Batch, Sampled
from worker.engine.decode_steps import DecodeSteps, given
from worker.engine.device_context import DeviceContext
from worker.engine.device_rows import DeviceRows, Preparation, step_of
from worker.engine.device_sampler import DeviceSampler, Draw
from worker.engine.graphs import Graphs
from worker.engine.kv_pool import kv_pool
from worker.engine.runner import PendingStep
from worker.engine.staging import Staging
from worker.engine.warm_batches import warm_batches
from worker.models.decoder import Decoder, StepTensors


@dataclass(slots=True, frozen=True, kw_only=True)
class Sizes:
    """The sizes for which the runner's memory and graphs are made."""

    blocks_total: int  # with the null block
    block_size: int
    sequences_max: int  # in a step
    tokens_per_step: int


@dataclass(slots=True)
class _Step:
    """A step that the device computes. Implements `PendingStep`."""

    sampled: PendingStep
    context: DeviceContext

    def result(self) -> Sampled:
        with self.context.entered():
            return self.sampled.result()


class GraphRunner:
    """Implements `worker.engine.runner.Runner`. Call `warm_up` before the first step."""

    def __init__(
        self,
        decoder: Decoder,
        sizes: Sizes,
        graphs: Graphs,
        *,
        kv_dtype: torch.dtype,
        draw: Draw = draw_tokens,
        preparation: Preparation = device_batch,
    ) -> None:
        config = decoder.config
        self.vocab_size = config.vocab_size
        self.context_length = config.context_length
        self.block_size = sizes.block_size
        self.blocks_total = sizes.blocks_total
        self.steps_ahead = 1
        self._sizes = sizes
        self._decoder = decoder
        self._graphs = graphs
        self._context = DeviceContext(decoder.weights.embedding.device)
        self._staging = Staging(decoder.weights.embedding.device)
        self._pool = kv_pool(
            config,
            blocks_total=sizes.blocks_total,
            block_size=sizes.block_size,
            dtype=kv_dtype,
            device=self._staging.device,
        )
        self._blocks_max = -(-config.context_length // sizes.block_size)
        self._scratch = AttentionScratch.of(
            sizes.sequences_max,
            self._blocks_max * sizes.block_size,
            config.heads,
            config.head_dim,
            self._staging.device,
        )
        self._rows = DeviceRows(
            self._staging,
            preparation,
            rows_max=sizes.sequences_max,
            blocks_max=self._blocks_max,
            block_size=sizes.block_size,
        )
        self._sampler = DeviceSampler(self._staging, draw)
        self._decodes = DecodeSteps(
            self._forward,
            self._staging,
            self._rows,
            rows_max=sizes.sequences_max,
            blocks_max=self._blocks_max,
            vocab_size=config.vocab_size,
        )

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Compile and record everything that a step can need, without waiting for the computation. Writes only to the
        null block.
        """
        with self._context.entered():
            self._decodes.capture(self._graphs)
        batches = warm_batches(
            decode_rows=self._decodes.sizes,
            tokens_max=self._sizes.tokens_per_step,
            sequences_max=self._sizes.sequences_max,
            context_length=self.context_length,
            block_size=self.block_size,
            vocab_size=self.vocab_size,
        )
        for batch in batches:
            self.submit(batch)

    @torch.inference_mode()
    def submit(self, batch: Batch) -> PendingStep:
        with self._context.entered():
            self._rows.send(batch)
            batch_rows, logits = self._decodes.run(batch) if self._decodes.takes(batch) else self._run(batch)
            drawn = self._sampler.draw(logits, batch.samples)
            self._rows.commit(batch, batch_rows, None if drawn is None else drawn.ids)
            return _Step(self._sampler.landing(logits, drawn, batch.samples), self._context)

    def close(self) -> None:
        """Release the KV pool's memory. Recorded graphs cannot be used any more."""
        self._pool.clear()

    def _run(self, batch: Batch) -> tuple[BatchRows, Tensor]:
        """A step of any shape, kernel by kernel. See `DecodeSteps.run`."""
        up = self._staging.up
        batch_rows = BatchRows(up(batch.rows), up(batch.query_start), up(given(batch.ids)))
        prepared = PreparedBatch.of(len(batch.ids), len(batch.rows), self._blocks_max, self._staging.device)
        self._rows.prepare(batch_rows, prepared)
        return batch_rows, self._forward(step_of(prepared, batch_rows, up(batch.sample_rows), decodes=batch.decodes))

    def _forward(self, step: StepTensors) -> Tensor:
        return self._decoder.forward(replace(step, scratch=self._scratch), self._pool)
