"""The device that is measured, how time is taken on it, and the two yardsticks of its speed.

Knows no kernel. Invariant: a time is of the device, between two events, after everything was compiled and has run once.
"""

import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch

from bench.table import Cell

ROUNDS = 5


@dataclass
class Machine:
    """`dry`: a CPU on which kernels are interpreted, with tiny shapes; its times say nothing."""

    dry: bool

    @property
    def device(self) -> torch.device:
        return torch.device("cpu" if self.dry else "cuda")

    def described(self) -> dict[str, Cell]:
        import triton  # noqa: PLC0415 - what interprets kernels is decided before

        name = "CPU, interpreted: times mean nothing" if self.dry else torch.cuda.get_device_name()
        versions: dict[str, Cell] = {
            "python": sys.version.split()[0],
            "torch": torch.__version__,
            "triton": str(triton.__version__),
        }
        return {"device": name, **versions}

    def seconds(self, run: Callable[[], object]) -> float:
        """The median of a few rounds, of one call."""
        run()
        if self.dry:
            start = time.perf_counter()
            run()
            return time.perf_counter() - start
        calls = self._calls(run)
        return statistics.median(self._round(run, calls) / calls for _ in range(ROUNDS))

    def _calls(self, run: Callable[[], object]) -> int:
        """As many as take about 20 ms: the time between two events is then much longer than their own error."""
        return max(1, min(200, round(0.02 / max(self._round(run, 3) / 3, 1e-6))))

    def _round(self, run: Callable[[], object], calls: int) -> float:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        start.record()
        for _ in range(calls):
            run()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1_000

    @cached_property
    def copy_bytes_per_s(self) -> float:
        """Read and written, of a device copy that no cache holds."""
        source = torch.empty(2**16 if self.dry else 2**31, dtype=torch.uint8, device=self.device)
        target = torch.empty_like(source)
        return 2 * source.nbytes / self.seconds(lambda: target.copy_(source))

    @cached_property
    def matmul_flops(self) -> float:
        """Per second, of a large product in bfloat16."""
        side = 64 if self.dry else 8_192
        left, right = (torch.randn(side, side, device=self.device).bfloat16() for _ in range(2))
        return 2 * side**3 / self.seconds(lambda: left @ right)
