"""Where a decoder's tensors come from, as one protocol: GGUF files (`gguf_source`) and folders (`checkpoint_source`).

Names are those of `names`, whatever the file calls them. Knows no model and holds no tensor.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

GROUP = 32  # inputs that share a scale


@dataclass(slots=True, frozen=True)
class Codes:
    """A matrix in the few bits in which the file stores it: `scale * code`, or `scale * code + minimum`."""

    codes: Tensor  # [outputs, inputs] int8, or uint8 from 0 to 15
    scales: Tensor  # [outputs, inputs / 32] float32
    minimums: Tensor | None  # the same; only with uint8

    def values(self) -> Tensor:
        """The values of the codes, [outputs, inputs] float32. Exact: a product has fewer bits than float32 holds."""
        found = self.codes.float().view(*self.scales.shape, GROUP)
        found *= self.scales.unsqueeze(-1)
        if self.minimums is not None:
            found += self.minimums.unsqueeze(-1)
        return found.view(self.codes.shape)

    @classmethod
    def below(cls, parts: Sequence["Codes"]) -> "Codes | None":
        """The matrices stacked, one below the other. None if they are not of one kind."""
        if len({part.codes.dtype for part in parts}) != 1:
            return None
        minimums = [part.minimums for part in parts if part.minimums is not None]
        return cls(
            torch.cat([part.codes for part in parts]),
            torch.cat([part.scales for part in parts]),
            torch.cat(minimums) if minimums else None,
        )


class TensorSource(Protocol):
    @property
    def path(self) -> Path:
        """The file or folder."""
        ...

    def place(self, name: str) -> str:
        """File and tensor, for a message: `m.gguf: tensor blk.0.attn_q.weight`."""
        ...

    def shape(self, name: str) -> tuple[int, ...] | None:
        """None where the file has no such tensor. Raises ModelFileError for a number type that is not implemented."""
        ...

    def nbytes(self, name: str) -> int:
        """What the tensor takes in the file."""
        ...

    def read(self, name: str) -> Tensor:
        """The tensor in memory of its own, in a floating point type. Rows of Q and K pair element `d` of a head with
        `d + head_dim / 2`. Raises ModelFileError for values that are not finite.
        """
        ...

    def codes(self, name: str) -> Codes | None:
        """The tensor of `read` as the file stores it; None if that is not `Codes`. Raises the same errors."""
        ...

    def unused(self, names: Collection[str]) -> list[str]:
        """The file's tensors, by its own names, that are not in `names` and that affect the result."""
        ...
