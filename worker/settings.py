"""The worker's settings: each field is the variable FOREBAY_<NAME>."""

from typing import Annotated, Literal

import msgspec

from shared import subjects
from shared.log import Level
from shared.settings import DrainSeconds, Port, Positive, Seconds, Secret
from worker.device import FORMS, is_cuda, is_device

Microseconds = Annotated[int, msgspec.Meta(ge=0)]

TIERS = range(10)  # as the schema of the gateways' database allows
STEP_TOKENS, CUDA_STEP_TOKENS, CUDA_TOKENS_BESIDE_DECODES = 512, 8_192, 2_048


class WorkerSettings(msgspec.Struct, frozen=True, kw_only=True):
    nats_url: Secret
    """With user and password, so it is never shown."""

    model: str | None = None
    """A GGUF file, or a folder with config.json, tokenizer.json and safetensors; without one, the demo model."""

    served_name: str | None = None
    """What clients call the model; without one, the file's or the folder's name."""

    device: str = "auto"
    """Where the model is computed: cpu, cuda, one of several as cuda:1, or auto, which takes CUDA where there is a
    device."""

    runner: Literal["torch", "triton", "fake"] | None = None
    """What computes; without one, torch on a CPU and triton on CUDA."""

    dtype: Literal["auto", "fp32", "bf16"] = "auto"
    """The type of activations. auto is bf16 where the processor multiplies it natively, fp32 elsewhere; on a CPU, auto
    also rounds the activations that multiply 4-bit weights to 8 bits (docs/adr/0020).
    """

    weights: Literal["auto", "fp32", "bf16", "int8", "int4", "fp8"] = "auto"
    """How weights are stored and multiplied: `worker.models.packer`, and on CUDA `worker.models.device_packer`."""

    metrics_host: str = "127.0.0.1"
    metrics_port: Port = 9101
    pool: str = "default"

    tiers: str = "0,1,2"
    """The queues it takes from, most urgent first."""

    kv_dtype: Literal["auto", "fp8", "int8"] = "auto"
    """The type of K and V in the pool; auto is the type of activations. The other two hold twice as many tokens as
    bf16, with a scale for each token and head; on CUDA only.
    """

    kv_bytes: Positive | None = None
    """Of the KV pool; without a number, 1 GiB on a CPU or what its memory has room for, and on CUDA what is left of
    `memory_share`."""

    memory_share: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.9
    """The share of a CUDA device's memory that this worker and everything else on the device may take."""

    block_size: Positive = 16
    """Of the KV pool, in tokens, on every device: prefixes are found in whole blocks, and the kernels look up the block
    of each key by itself, so larger ones would make no larger reads."""

    sequences_max: Positive = 256

    tokens_per_step: Positive | None = None
    """Without a number, 512, and 8,192 on CUDA: a step of prompts then takes so long that its launches hardly count,
    and its activations take about 1 GB for an 8B model.
    """

    tokens_beside_decodes: Positive | None = None
    """The prompt tokens in a step that also decodes, at most. Without a number: 2,048 on CUDA (by arithmetic about 60
    ms of an H200 for an 8B model, at which its products are as fast as with more); on a CPU as many as keep the step
    within 4 times the typical gap between tokens. Fewer keep running streams even, more let new ones start sooner.
    """

    step_s_max: Seconds = 60.0
    """Seconds. An engine whose step takes longer counts as hung: health goes red, and the worker's requests are lost.
    Must exceed the longest regular step: a whole budget of prompt tokens on a slow processor.
    """

    threads: Positive | None = None
    """That compute; without a number, one per core that the process may use, by its affinity and its control group."""

    fake_step_us: Microseconds = 10_000
    fake_token_us: Microseconds = 0
    """What a step of the fake runner takes, and each token in it."""

    drain_s: DrainSeconds = 30.0
    """How long running requests may go on after SIGTERM."""

    log_level: Level = "info"

    def __post_init__(self) -> None:
        self.tier_numbers()
        subjects.token(self.pool)
        if not is_device(self.device):
            raise ValueError(f"device must be {FORMS}")

    @property
    def step_tokens(self) -> int:
        """`tokens_per_step` on the device that was chosen."""
        return self.tokens_per_step or (CUDA_STEP_TOKENS if is_cuda(self.device) else STEP_TOKENS)

    @property
    def step_tokens_beside_decodes(self) -> int:
        """The same of `tokens_beside_decodes`, where there is no pace."""
        beside = CUDA_TOKENS_BESIDE_DECODES if is_cuda(self.device) else self.step_tokens
        return self.tokens_beside_decodes or min(beside, self.step_tokens)

    def tier_numbers(self) -> tuple[int, ...]:
        """Ascending, so the most urgent first. Raises ValueError."""
        names = {tier.strip() for tier in self.tiers.split(",")}
        if not names <= {str(tier) for tier in TIERS}:
            raise ValueError(f"tiers must be numbers from {TIERS[0]} to {TIERS[-1]} with commas between")
        return tuple(sorted(map(int, names)))
