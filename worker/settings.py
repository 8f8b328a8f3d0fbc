"""The worker's settings: each field is the variable FOREBAY_<NAME>."""

from typing import Literal

import msgspec

from shared.log import Level
from shared.settings import Secret


class WorkerSettings(msgspec.Struct, frozen=True, kw_only=True):
    nats_url: Secret
    """With user and password, so it is never shown."""

    model: str | None = None
    """A GGUF file, or a folder with config.json, tokenizer.json and safetensors; without one, the demo model."""

    served_name: str | None = None
    """What clients call the model; without one, the file's or the folder's name."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the model is computed; auto takes CUDA where there is a device."""

    runner: Literal["torch", "triton", "fake"] | None = None
    """What computes; without one, torch on a CPU and triton on CUDA."""

    dtype: Literal["auto", "fp32", "bf16"] = "auto"
    """Of activations."""

    weights: Literal["auto", "fp32", "bf16", "int8", "int4"] = "auto"
    """How a CPU keeps and multiplies them: `worker.models.packer`."""

    metrics_host: str = "127.0.0.1"
    metrics_port: int = 9101
    pool: str = "default"

    tiers: str = "0,1,2"
    """The queues it takes from, most urgent first."""

    kv_bytes: int | None = None
    """Of the KV pool; without a number, 1 GiB on a CPU, and on CUDA what is left of `memory_share`."""

    memory_share: float = 0.9
    """Of a CUDA device's memory: what this worker and all else on it may take."""

    block_size: int = 16
    sequences_max: int = 256
    tokens_per_step: int = 512

    tokens_beside_decodes: int | None = None
    """Of these, at most so many of prompts in a step that also decodes; without a number, all on a GPU, and on a CPU as
    many as make it take 4 times the typical gap between tokens. Fewer keep running streams even, more let new ones
    start sooner."""

    step_s_max: float = 60.0
    """Seconds. An engine whose step takes longer hangs: health goes red, and what the worker holds is lost. To be above
    the longest step that is in order: a whole budget of prompt tokens on a slow processor."""

    threads: int | None = None
    """That compute; without a number, one per core."""

    fake_step_us: int = 10_000
    fake_token_us: int = 0
    """What a step of the fake runner takes, and each token in it."""

    drain_s: float = 30.0
    """How long running requests may go on after SIGTERM."""

    log_level: Level = "info"

    def __post_init__(self) -> None:
        if not self.tier_numbers():
            raise ValueError("tiers names no tier")
        kv_bytes = 1 if self.kv_bytes is None else self.kv_bytes
        if min(kv_bytes, self.block_size, self.sequences_max, self.tokens_per_step) < 1:
            raise ValueError("kv_bytes, block_size, sequences_max and tokens_per_step must be positive")
        if not 0 < self.memory_share <= 1:
            raise ValueError("memory_share must be above 0 and at most 1")
        if self.tokens_beside_decodes is not None and self.tokens_beside_decodes < 1:
            raise ValueError("tokens_beside_decodes must be positive")
        if not self.step_s_max > 0:
            raise ValueError("step_s_max must be positive")

    def tier_numbers(self) -> tuple[int, ...]:
        """Raises ValueError."""
        return tuple(sorted({int(tier) for tier in self.tiers.split(",")}))
