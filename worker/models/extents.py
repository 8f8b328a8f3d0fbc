"""Checks where tensors lie in a file: each inside it, and none overlapping another. Knows no format."""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from worker.models.errors import ModelFileError


class Extent(NamedTuple):
    offset: int  # from the start of the file
    nbytes: int
    name: str


def check_extents(path: Path, extents: Iterable[Extent], file_bytes: int) -> None:
    """Raises ModelFileError, naming the first tensor that lies where it cannot."""
    taken = 0
    for offset, nbytes, name in sorted(extents):
        if offset < taken:
            raise ModelFileError(f"{path}: damaged: tensor {name} lies in the bytes of another")
        taken = offset + nbytes
        if taken > file_bytes:
            raise ModelFileError(
                f"{path}: truncated: tensor {name} needs bytes up to {taken}, the file has {file_bytes}"
            )
