"""Graph runners and plain ones over the same tiny random model, on a CPU."""

import torch
from torch import Tensor

from kernels import reference_batch
from kernels.ops import Ops
from kernels.reference_sampling import draw_tokens
from worker.engine.device_sampler import Draw
from worker.engine.graph_runner import GraphRunner, Sizes
from worker.engine.graphs import EagerGraphs, Graphs, Run
from worker.engine.torch_runner import TorchRunner
from worker.models.decoder import Decoder
from worker.models.load import LoadedModel

BLOCK_SIZE = 16


class Recorded:
    """Does what a recorded graph does: every run of every size gives its result in the same memory."""

    def __init__(self) -> None:
        self.replayed: list[int] = []  # the sizes, in order
        self._out = torch.zeros(0)

    def capture(self, run: Run) -> Run:
        rows, width = run().shape
        if rows > len(self._out):
            assert not len(self._out), "not the largest first"
            self._out = torch.zeros(rows, width)

        def replay() -> Tensor:
            self.replayed.append(rows)
            self._out.fill_(torch.nan)
            self._out[:rows] = run()
            return self._out[:rows]

        return replay


def graph_runner(
    model: LoadedModel,
    ops: Ops,
    *,
    graphs: Graphs | None = None,
    blocks: int = 16,
    sequences_max: int = 10,
    kv_dtype: torch.dtype = torch.float32,
    draw: Draw = draw_tokens,
) -> GraphRunner:
    sizes = Sizes(
        blocks_total=blocks + 1, block_size=BLOCK_SIZE, sequences_max=sequences_max, tokens_per_step=2 * sequences_max
    )
    decoder = Decoder(model.config, model.weights, ops)
    runner = GraphRunner(
        decoder,
        sizes,
        graphs or EagerGraphs(),
        kv_dtype=kv_dtype,
        draw=draw,
        preparation=reference_batch,
    )
    runner.warm_up()
    return runner


def plain_runner(model: LoadedModel, ops: Ops, *, blocks: int = 16) -> TorchRunner:
    return TorchRunner(model, ops, blocks_total=blocks + 1, block_size=BLOCK_SIZE)
