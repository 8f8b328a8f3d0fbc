"""Whether a job can start now. Pure arithmetic over the engine's last report and what was claimed since.

Invariant: what has been claimed and is not yet in the engine's numbers is counted here, so that two claims between two
steps never take the same blocks.
"""

from dataclasses import dataclass

from shared import wire
from worker.engine.config import EngineConfig
from worker.engine.results import EngineStats


@dataclass(slots=True, frozen=True)
class Need:
    blocks: int
    sequences: int


class Room:
    def __init__(self, config: EngineConfig, stats: EngineStats) -> None:
        self._config = config
        self._stats = stats
        self._watermark = int(stats.blocks_total * config.watermark)
        self._promised: dict[str, Need] = {}

    def need(self, job: wire.Job) -> Need:
        """Blocks for every choice's prompt and its first token."""
        size = self._config.block_size
        blocks = sum(-(-(len(prompt) // 4 + 1) // size) for prompt in job.prompts)
        return Need(blocks * job.n, len(job.prompts) * job.n)

    def promise(self, key: str, need: Need) -> None:
        self._promised[key] = need

    def reported(self, stats: EngineStats, keys: list[str]) -> None:
        """`stats` include the jobs of `keys`."""
        self._stats = stats
        for key in keys:
            self._promised.pop(key, None)

    @property
    def idle(self) -> bool:
        return not self._promised and self._stats.running == 0 and self._stats.waiting == 0

    @property
    def open(self) -> bool:
        """Whether another job may be claimed at all: none waits inside, and there is a place for a sequence."""
        return self._stats.waiting == 0 and self._sequences_free() > 0

    def fits(self, need: Need) -> bool:
        """Whether it can start now beside what runs. An idle engine takes anything that it can ever hold."""
        if self.idle:
            return True
        blocks = self._stats.blocks_free - self._watermark - sum(n.blocks for n in self._promised.values())
        return need.blocks <= blocks and need.sequences <= self._sequences_free()

    def may_wait(self) -> bool:
        """Whether a job that does not fit may be claimed to wait inside: only one at a time."""
        return self._stats.waiting == 0 and not self._promised

    def _sequences_free(self) -> int:
        promised = sum(need.sequences for need in self._promised.values())
        return self._config.sequences_max - self._stats.running - promised
