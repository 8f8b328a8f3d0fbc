"""Part c, continued: the engine with weights or a KV pool in few bits, compared with the same in bfloat16.

For each variant: the error of the logits of two layers, and the speed of decodes. Knows no kernel. Invariant: both
sides of a comparison have the same random weights, and one variant's memory is freed before the next one allocates.
"""

import gc
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bench.gpu.accuracy import error_ratio
from bench.gpu.machine import Machine
from bench.gpu.part import Found, Level, Row, logged
from bench.gpu.random_model import RandomWeights, llama_8b, tiny
from bench.gpu.serving import BLOCK_SIZE, HALF_OUTPUT, INPUT, Driven
from kernels.compilations import Compilations
from kernels.triton_ops import TritonOps
from worker.engine.kv_pool import KvDtype, kv_pool, pool_dtype
from worker.models.config import ModelConfig
from worker.models.decoder import Decoder, StepTensors
from worker.models.device_packer import DeviceMode, DevicePacker

PROMPT = 80  # more rows than are multiplied from codes


@dataclass(frozen=True)
class Variant:
    """With the error of logits that its rounding may bring over two layers: about twice what a width of 1,024 has."""

    weights: DeviceMode = "auto"
    kv: KvDtype = "auto"
    error_max: float = 0.0

    @property
    def name(self) -> str:
        return f"weights {self.weights}, KV {self.kv}"


VARIANTS = (
    Variant(weights="int8", error_max=0.05),
    Variant(weights="int4", error_max=0.5),
    Variant(weights="fp8", error_max=0.25),
    Variant(kv="int8", error_max=0.05),
    Variant(kv="fp8", error_max=0.12),
)


def run(machine: Machine) -> Found:
    config = tiny() if machine.dry else llama_8b()
    rows: list[Row] = []
    faults: list[str] = []
    few = replace(config, layers=min(2, config.layers), windows=config.windows[:2])
    exact = _logits(machine, few, Variant())
    for variant in VARIANTS[1:4:2] if machine.dry else VARIANTS:
        try:
            error = error_ratio(_logits(machine, few, variant), exact)
            speed, late = _speed(machine, config, variant)
            rows.append(logged({"variant": variant.name, "error": error, **speed}))
        except Exception as fault:  # noqa: BLE001 - one variant that cannot run must not hide the others
            faults.append(f"{variant.name}: {type(fault).__name__}: {fault}")
            continue
        finally:
            gc.collect()  # a runner and its steps form a cycle
        faults += [f"{variant.name}: {kernel} was compiled after the warm-up" for kernel in late]
        if not error <= variant.error_max:
            faults.append(f"{variant.name}: logits with an error of {error:.2g}")
    shown = ("variant", "error", "sequences", "weights_gib", "kv_token_bytes", "decode_tokens_per_s", "of_bandwidth")
    columns = ["variant", "error", "sequences", "weights GiB", "KV bytes a token", "decode tokens/s", "of bandwidth"]
    return Found(rows, faults, columns, [[row[name] for name in shown] for row in rows])


def _decoder(machine: Machine, config: ModelConfig, variant: Variant) -> Decoder:
    dtype = _dtype(machine)
    pack = DevicePacker(variant.weights, dtype)
    return Decoder(config, RandomWeights(config, dtype, machine.device, pack=pack).make(), TritonOps())


def _speed(machine: Machine, config: ModelConfig, variant: Variant) -> tuple[Row, list[str]]:
    """And the kernels that were compiled after the warm-up. Weights show at one sequence, a pool at many."""
    level = Level(1, 128, 64) if variant.kv == "auto" else Level(64, INPUT + HALF_OUTPUT - 16, 32)
    if machine.dry:
        level = Level(min(level.sequences, 2), 3, 3)
    compilations, late = Compilations(), list[str]()
    compilations.watch()
    driven = Driven(
        machine,
        _decoder(machine, config, variant),
        _dtype(machine),
        level,
        graphs=True,
        kv_dtype=pool_dtype(variant.kv, _dtype(machine)),
    )
    compilations.ready(late.append)
    row = driven.level(level)
    driven.close()
    return row, late


@torch.inference_mode()
def _logits(machine: Machine, config: ModelConfig, variant: Variant) -> Tensor:
    """[2, vocab] after a prompt and after a decode that reads what the prompt has left."""
    device, dtype = machine.device, pool_dtype(variant.kv, _dtype(machine))
    decoder = _decoder(machine, config, variant)
    prompt = 5 if machine.dry else PROMPT
    blocks = -(-(prompt + 1) // BLOCK_SIZE)
    pool = kv_pool(config, blocks_total=1 + blocks, block_size=BLOCK_SIZE, dtype=dtype, device=device)
    tables = torch.arange(1, 1 + blocks, dtype=torch.int32, device=device).unsqueeze(0)
    logits: list[Tensor] = []
    for start, end in ((0, prompt), (prompt, prompt + 1)):
        positions = torch.arange(start, end, device=device)
        step = StepTensors(
            ids=positions + 1,
            positions=positions,
            slots=positions + BLOCK_SIZE,
            query_start=torch.tensor([0, end - start], dtype=torch.int32, device=device),
            context_lens=torch.tensor([end], dtype=torch.int32, device=device),
            block_tables=tables,
            sample_rows=torch.tensor([end - start - 1], device=device),
        )
        logits.append(decoder.forward(step, pool))
    return torch.cat(logits)


def _dtype(machine: Machine) -> torch.dtype:
    return torch.float32 if machine.dry else torch.bfloat16
