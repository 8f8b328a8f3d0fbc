"""Kernels on a stream and a device other than torch's defaults: cases for the check of accuracy.

On a stream of its own, a kernel reads what that stream was told to write just before, after long work; on any other
stream it would read the old contents. One kernel stands for all, since all are launched in the same way.
"""

from collections.abc import Iterator
from contextlib import nullcontext

import torch
from torch import Tensor

from bench.gpu.machine import Machine
from bench.gpu.part import Case
from kernels.reference import ReferenceOps
from kernels.rms_norm import rms_norm

EPS = 1e-5


def cases(machine: Machine) -> Iterator[Case]:
    yield Case("rms_norm", torch.float32, "another stream", lambda: _on_another_stream(machine))
    for index in range(1, torch.cuda.device_count()):
        device = torch.device("cuda", index)
        yield Case("rms_norm", torch.float32, f"{device}, not the current one", lambda d=device: _on_device(d))


def _on_another_stream(machine: Machine) -> tuple[Tensor, Tensor]:
    side = 16 if machine.dry else 4_096
    source, weight, x = torch.randn(side, side), torch.ones(side), torch.zeros(side, side)
    source, weight, x = (each.to(machine.device) for each in (source, weight, x))
    with nullcontext() if machine.dry else torch.cuda.stream(torch.cuda.Stream()):
        for _ in range(20):
            _ = source @ source  # only to keep the stream busy
        x.copy_(source)
        got = rms_norm(x, weight, EPS)
    if not machine.dry:
        torch.cuda.synchronize()
    return got, ReferenceOps().rms_norm(source, weight, EPS)


def _on_device(device: torch.device) -> tuple[Tensor, Tensor]:
    x, weight = torch.randn(64, 4_096).to(device), torch.ones(4_096).to(device)
    return rms_norm(x, weight, EPS), ReferenceOps().rms_norm(x, weight, EPS)
