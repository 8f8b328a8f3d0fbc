"""Whether a job can start now. Pure arithmetic over the engine's last report and what was claimed since.

To a job of some tier, room is what is free above the watermark, and the places and blocks of less urgent running
sequences (not of those on a floor share or of a tier that is owed one, nor blocks that two tiers share), less what was
promised to jobs as urgent or more; a promise to less urgent ones takes nothing from it. Choices that are held until
their prompt is computed stand in nobody's way, but have their places and blocks for sure. Invariant: what has been
chosen or claimed and is not yet in the engine's numbers is counted here, so that two claims between two steps never
take the same blocks.
"""

from dataclasses import dataclass

from shared import wire
from worker.engine.config import EngineConfig
from worker.engine.results import EngineStats, TierLoad


@dataclass(slots=True, frozen=True)
class Need:
    blocks: int
    sequences: int


@dataclass(slots=True, frozen=True)
class _Promise:
    tier: int
    tenant: str
    need: Need
    waits: bool  # it was chosen to wait inside


class Room:
    def __init__(self, config: EngineConfig, stats: EngineStats) -> None:
        self._config = config
        self._stats = stats
        self._watermark = int(stats.blocks_total * config.watermark)
        self._promised: dict[str, _Promise] = {}

    def need(self, job: wire.Job) -> Need:
        """Blocks for every choice's prompt and its first token. The choices of a prompt share its full blocks, but for
        one that its last token fills: that token is computed by each.
        """
        size = self._config.block_size
        blocks = 0
        for prompt in job.prompts:
            tokens = wire.packed_count(prompt)
            shared = (tokens - 1) // size
            blocks += shared + job.n * (tokens // size + 1 - shared)
        return Need(blocks, job.choices)

    def promise(self, key: str, job: wire.Job) -> None:
        need = self.need(job)
        waits = not self.fits(need) and not self.fits_before_others(need, job.tier)
        self._promised[key] = _Promise(job.tier, job.tenant, need, waits)

    def withdraw(self, key: str) -> None:
        """It was not claimed, or will not be computed."""
        self._promised.pop(key, None)

    def promised_tenants(self, tier: int) -> set[str]:
        """Whose jobs are on their way into the engine."""
        return {promise.tenant for promise in self._promised.values() if promise.tier == tier}

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
        """Whether a job of any tier may be claimed: none waits inside, and there is a free place for a sequence."""
        return self._stats.waiting == 0 and not self._waits(least_urgent=None) and self._places() > 0

    def open_to(self, tier: int) -> bool:
        """Whether a job of this tier may be claimed: none waits that is as urgent, and there is a place for it, be it
        that of a less urgent sequence.
        """
        waiting = sum(load.waiting for other, load in self._stats.tiers.items() if other <= tier)
        return waiting == 0 and not self._waits(least_urgent=tier) and self._places(before=tier) > 0

    def fits(self, need: Need) -> bool:
        """Whether it can start now beside what runs. An idle engine takes anything that it can ever hold."""
        if self.idle:
            return True
        blocks = self._stats.blocks_free - self._watermark - self._blocks_promised()
        return need.blocks <= blocks and need.sequences <= self._places()

    def fits_before_others(self, need: Need, tier: int) -> bool:
        """Whether it can start now if less urgent sequences give way."""
        gained = sum(load.blocks for load in self._give_way_to(tier))
        blocks = self._stats.blocks_free + gained - self._watermark - self._blocks_promised(before=tier)
        return need.blocks <= blocks and need.sequences <= self._places(before=tier)

    def _blocks_promised(self, *, before: int | None = None) -> int:
        """Blocks that nobody holds yet and somebody will, those left out that tiers less urgent than `before` will."""
        promised = [p.need.blocks for p in self._promised.values() if before is None or p.tier <= before]
        held = [load.held_blocks for tier, load in self._stats.tiers.items() if before is None or tier <= before]
        return sum(promised) + sum(held)

    def _places(self, *, before: int | None = None) -> int:
        """Free places, those included that are not free for tiers less urgent than `before`."""
        promised = [p.need.sequences for p in self._promised.values() if before is None or p.tier <= before]
        held = [load.held for tier, load in self._stats.tiers.items() if before is None or tier <= before]
        gained = [load.running for load in self._give_way_to(before)]
        return self._config.sequences_max - self._stats.running - sum(promised) - sum(held) + sum(gained)

    def _give_way_to(self, before: int | None) -> list[TierLoad]:
        if before is None:
            return []
        return [load for tier, load in self._stats.tiers.items() if tier > before and not load.owed]

    def _waits(self, *, least_urgent: int | None) -> bool:
        """Whether a job was claimed to wait inside, of this or a more urgent tier, and the engine does not know yet."""
        return any(p.waits and (least_urgent is None or p.tier <= least_urgent) for p in self._promised.values())
