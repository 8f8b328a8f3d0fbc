"""Reads one file in the container format safetensors: an index of tensors in JSON, then their bytes.

Written for this purpose because the `safetensors` package opens a file that was cut short with a message that names no
tensor, and reads bfloat16 only through torch, which a model card must do without. Knows no architecture.

Invariant: an opened file is whole: every tensor lies inside it, in a place of its own. What is not raises
ModelFileError.
Source: the format's own description, https://github.com/huggingface/safetensors.
"""

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from worker.models.errors import ModelFileError
from worker.models.extents import Extent, check_extents
from worker.models.json_file import Repeated, parse
from worker.models.openable import check_openable

LENGTH_BYTES = 8  # of the number in front, which is the length of the index
INDEX_BYTES_MAX = 100_000_000  # the format's own limit
ITEM_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}


@dataclass(slots=True, frozen=True)
class StoredTensor:
    shape: tuple[int, ...]
    kind: str  # as the format writes it: F32, F16, BF16
    offset: int  # from the start of the file
    nbytes: int


@dataclass(slots=True)
class SafetensorsFile:
    path: Path
    data: mmap.mmap
    tensors: dict[str, StoredTensor]

    @classmethod
    def open(cls, path: Path) -> "SafetensorsFile":
        """Map `path` and read everything but the tensors' bytes. Raises ModelFileError."""
        data = _map(path)
        index, start = _index(path, data)
        tensors = {
            name: _tensor(f"{path}: tensor {name}", entry, start)
            for name, entry in index.items()
            if name != "__metadata__"
        }
        check_extents(path, (Extent(t.offset, t.nbytes, name) for name, t in tensors.items()), len(data))
        return cls(path, data, tensors)

    def bytes_of(self, tensor: StoredTensor) -> memoryview:
        """The tensor's raw bytes, a read-only view of the mapped file."""
        return memoryview(self.data)[tensor.offset : tensor.offset + tensor.nbytes]


def _map(path: Path) -> mmap.mmap:
    check_openable(path)
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except ValueError as error:
        raise ModelFileError(f"{path}: the file is empty") from error
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read: {error.strerror}") from error


def _index(path: Path, data: mmap.mmap) -> tuple[dict[str, Any], int]:
    """What the file says of its tensors, and where their bytes start."""
    damaged = f"{path}: damaged or truncated: no safetensors index"
    if len(data) < LENGTH_BYTES:
        raise ModelFileError(damaged)
    (length,) = struct.unpack_from("<Q", data)
    start = LENGTH_BYTES + length
    if length > INDEX_BYTES_MAX or start > len(data):
        raise ModelFileError(damaged)
    try:
        index = parse(data[LENGTH_BYTES:start])
    except Repeated as error:
        raise ModelFileError(f"{path}: tensor or field {error} is there twice") from error
    except ValueError as error:
        raise ModelFileError(f"{damaged} ({error})") from error
    if not isinstance(index, dict):
        raise ModelFileError(damaged)
    return index, start


def _tensor(place: str, entry: Any, start: int) -> StoredTensor:
    try:
        kind, shape = entry["dtype"], tuple(int(side) for side in entry["shape"])
        first, end = (int(offset) for offset in entry["data_offsets"])
    except (TypeError, KeyError, ValueError, OverflowError) as error:
        raise ModelFileError(f"{place}: damaged index entry") from error
    nbytes = end - first
    wrong_size = kind in ITEM_BYTES and nbytes != math.prod(shape) * ITEM_BYTES[kind]
    if first < 0 or nbytes < 0 or min(shape, default=0) < 0 or wrong_size:
        raise ModelFileError(f"{place}: {nbytes} bytes do not hold shape {shape} of {kind}")
    return StoredTensor(shape, kind, start + first, nbytes)
