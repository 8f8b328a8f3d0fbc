"""A step of fixed shape that is recorded once and replayed with one call.

Launching the about 300 kernels of a decode step one by one takes the host longer than a small batch takes the device;
replaying a recorded graph is one call. Knows no model. Invariant: a recorded step reads and writes the same addresses
each time, so its inputs must lie in buffers that are never replaced.
"""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

Run = Callable[[], Tensor]


class Graphs(Protocol):
    def capture(self, run: Run) -> Run:
        """A callable that does the same as `run`. Its tensor is overwritten by the next call of anything captured
        here.
        """
        ...


class EagerGraphs:
    """Records nothing: `run` itself is called. For a CPU, and as the reference for a device."""

    def capture(self, run: Run) -> Run:
        return run


class CudaGraphs:
    """CUDA graphs that share one memory pool, so that all sizes together take little more than the largest: capture
    that one first. They may be replayed in any order, since nothing in the pool is read after another graph has run:
    what `run` returns must lie elsewhere.
    """

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        # A stream other than the default one, as capture requires; the same for all graphs, as a shared pool requires.
        self._stream = torch.cuda.Stream()

    def capture(self, run: Run) -> Run:
        # Once without capture, on the same stream: kernels are compiled and loaded, and cuBLAS allocates the workspace
        # that it keeps for a stream. None of that may happen while work is recorded.
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            run()
        torch.cuda.current_stream().wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            out = run()

        def replay() -> Tensor:
            graph.replay()
            return out

        return replay
