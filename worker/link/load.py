"""The load of this worker, as its beats state it. Pure: from the engine's last report and the measured speed."""

from shared import wire
from worker.engine.config import EngineConfig
from worker.engine.results import EngineStats
from worker.link.speed import Speed


def worker_load(
    stats: EngineStats, config: EngineConfig, speed: Speed, *, prompt_tokens_left: int, floor_share: float
) -> wire.WorkerLoad:
    # Reserved for choices that wait for their shared prompt.
    held = sum(load.held_blocks for load in stats.tiers.values())
    spare = int(stats.blocks_total * config.watermark) + held
    return wire.WorkerLoad(
        places=config.sequences_max,
        tokens_free=max(0, stats.blocks_free - spare) * config.block_size,
        tokens_held=(stats.blocks_total - stats.blocks_free) * config.block_size,
        prompt_tokens_left=prompt_tokens_left,
        prompt_tokens_per_s=speed.prompt_tokens_per_s,
        step_s=speed.step_s,
        output_tokens_mean=speed.output_tokens_mean,
        cached_share=speed.cached_share,
        floor_share=floor_share,
        tiers=tuple(
            wire.TierWork(tier=tier, running=load.running + load.held, waiting=load.waiting)
            for tier, load in sorted(stats.tiers.items())
        ),
    )
