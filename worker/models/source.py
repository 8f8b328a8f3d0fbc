"""Where a decoder's tensors come from, as one protocol: GGUF files (`gguf_source`) and folders (`checkpoint_source`).

Names are those of `names`, whatever the file calls them. Knows no model and holds no tensor.
"""

from collections.abc import Collection
from pathlib import Path
from typing import Protocol

from torch import Tensor


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

    def unused(self, names: Collection[str]) -> list[str]:
        """The file's tensors, by its own names, that none of `names` is and that mean something."""
        ...
