"""The preparation of batches on the device: cases for the check of accuracy.

Nothing is rounded here, so a kernel gives the reference's exact bits or is wrong. The reference runs on the host, from
the same numbers. Invariant: everything that a launch must write held another value before, and what it must not write
is compared too.
"""

from collections.abc import Iterator
from dataclasses import astuple
from functools import partial
from types import ModuleType

import torch
from torch import Tensor

from bench.gpu.machine import Machine
from bench.gpu.part import Case
from kernels import device_batch, reference_batch
from kernels.device_batch import COMPUTED, BatchRows, PreparedBatch, SequenceRows

BLOCK_SIZE = 16
TAIL = 3  # tokens past the last sequence
# In turn: a decode, a chunk longer than one iteration of a program, a decode, nothing, a short chunk.
LENGTHS = (1, 300, 1, 0, 3)
STEPS = ("patch_rows", "prepare_batch", "commit_batch")


def cases(machine: Machine) -> Iterator[Case]:
    for sequences, blocks_max in ((5, 30),) if machine.dry else ((7, 300), (256, 1_024)):
        for step in STEPS:
            yield Case(
                step,
                torch.int64,
                f"{sequences} sequences, {blocks_max} blocks",
                partial(_both, machine.device, step, sequences, blocks_max),
                0.0,
            )


def _both(device: torch.device, step: str, sequences: int, blocks_max: int) -> tuple[Tensor, Tensor]:
    got = _after(device_batch, device, step, sequences, blocks_max)
    return got, _after(reference_batch, torch.device("cpu"), step, sequences, blocks_max)


def _after(preparation: ModuleType, device: torch.device, step: str, sequences: int, blocks_max: int) -> Tensor:
    """All that the step could have written, one after the other."""
    chance = torch.Generator().manual_seed(5)

    def some(most: int, *shape: int) -> Tensor:
        return torch.randint(most, shape, generator=chance)

    lengths = torch.tensor(LENGTHS).repeat(sequences)[:sequences]
    start = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    rows = SequenceRows(
        some((blocks_max - 20) * BLOCK_SIZE, sequences + 2).to(device, torch.int32),
        some(50_000, sequences + 2).to(device),
        some(2**31 - 1, sequences + 2, blocks_max).to(device, torch.int32),
    )
    members = torch.randperm(sequences + 2, generator=chance)[:sequences]
    members[::4] = -1  # padding
    tokens = int(start[-1]) + TAIL
    batch = BatchRows(
        members.to(device, torch.int32), start.to(device, torch.int32), (some(50_000, tokens) - 25_000).to(device)
    )
    if step == "patch_rows":
        places = torch.randperm((sequences + 2) * (blocks_max + 1), generator=chance)[: 2 * sequences + 1]
        patches = torch.stack([places // (blocks_max + 1), places % (blocks_max + 1) + COMPUTED, places], 1)
        patches[::5, 0] = -1  # skipped
        preparation.patch_rows(rows, patches.to(device, torch.int32))
        return _flat(rows)
    if step == "commit_batch":
        drawn, sample_of = some(50_000, sequences).to(device), torch.arange(sequences)
        sample_of[1::3] = -1
        preparation.commit_batch(rows, batch, drawn, sample_of.to(device, torch.int32))
        return _flat(rows)
    out = PreparedBatch.of(tokens, sequences, blocks_max, device)
    for each in astuple(out):
        each.fill_(-7)
    preparation.prepare_batch(rows, batch, out, block_size=BLOCK_SIZE)
    return _flat(out)


def _flat(tensors: SequenceRows | PreparedBatch) -> Tensor:
    return torch.cat([each.cpu().long().flatten() for each in astuple(tensors)])
