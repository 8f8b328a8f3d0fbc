"""Reads the container format GGUF: metadata, and where each tensor's bytes lie (version 2 and 3, little-endian).

Our own reader, because the `gguf` package's builds an object per array element (4.7 s for the demo model, here 0.1 s)
and does not notice a truncated file. Knows no architecture and no dtype beyond block sizes; `weights` and `config`
interpret the contents.

Invariant: an opened file is complete: every tensor lies inside it and overlaps no other. Otherwise ModelFileError is
raised. Source: the GGUF specification in ggml's docs/gguf.md.
"""

import math
import mmap
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from numpy.typing import NDArray

from worker.models.errors import ModelFileError
from worker.models.extents import Extent, check_extents
from worker.models.openable import check_openable

MAGIC = b"GGUF"
VERSIONS = (2, 3)
BIG_ENDIAN = [version.to_bytes(4, "little") for version in VERSIONS]
PARTS = "split.count"
ALIGNMENT, ALIGNMENT_DEFAULT, ALIGNMENT_STEP = "general.alignment", 32, 8
DIMENSIONS_MAX = 4

STRING = 8
ARRAY = 9
LENGTH = struct.Struct("<Q")
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


@dataclass(slots=True, frozen=True)
class TensorInfo:
    """Where a tensor lies. `shape` has the outermost dimension first, as torch and numpy write it."""

    name: str
    shape: tuple[int, ...]
    kind: GGMLQuantizationType
    offset: int  # from the start of the file
    nbytes: int


@dataclass(slots=True)
class _Cursor:
    """A position in the mapped file. Reading past the end raises struct.error or ValueError."""

    data: mmap.mmap
    at: int = 0

    def scalar(self, code: str) -> Any:
        value = struct.unpack_from("<" + code, self.data, self.at)[0]
        self.at += struct.calcsize("<" + code)
        return value

    def string(self) -> str:
        return self.strings(1)[0]

    def strings(self, count: int) -> list[str]:
        """Many strings in one loop, because a vocabulary and its merges have a hundred thousand."""
        data, at, size, unpack = self.data, self.at, len(self.data), LENGTH.unpack_from
        found: list[str] = []
        for _ in range(count):
            start = at + LENGTH.size
            at = start + unpack(data, at)[0]
            if at > size:
                msg = "a string runs past the end"
                raise ValueError(msg)
            found.append(data[start:at].decode())
        self.at = at
        return found

    def value(self, kind: int) -> Any:
        if kind == STRING:
            return self.string()
        if kind == ARRAY:
            return self.array()
        return self.scalar(SCALARS[kind])

    def array(self) -> list[Any]:
        kind, count = self.scalar("I"), self.scalar("Q")
        if count > len(self.data) - self.at:
            msg = "an array runs past the end"
            raise ValueError(msg)
        if kind == STRING:
            return self.strings(count)
        if kind not in SCALARS:
            return [self.value(kind) for _ in range(count)]
        code = f"<{count}{SCALARS[kind]}"
        values = list(struct.unpack_from(code, self.data, self.at))
        self.at += struct.calcsize(code)
        return values


@dataclass(slots=True)
class GgufFile:
    """An open GGUF file. `metadata` maps keys to Python values, arrays to lists."""

    path: Path
    data: mmap.mmap
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])
    tensors: dict[str, TensorInfo] = field(default_factory=dict[str, TensorInfo])

    @classmethod
    def open(cls, path: Path) -> "GgufFile":
        """Map `path` and read everything but the tensors' bytes. Raises ModelFileError."""
        file = cls(path, _map(path))
        try:
            file._read_header()
        except (struct.error, ValueError, KeyError, OverflowError, RecursionError) as error:
            msg = f"{path}: damaged or truncated GGUF header ({error})"
            raise ModelFileError(msg) from error
        check_extents(path, (Extent(t.offset, t.nbytes, t.name) for t in file.tensors.values()), len(file.data))
        return file

    def bytes_of(self, tensor: TensorInfo) -> NDArray[np.uint8]:
        """The tensor's raw bytes, a read-only view of the mapped file."""
        return np.frombuffer(self.data, np.uint8, tensor.nbytes, tensor.offset)

    def require(self, key: str, kind: type | tuple[type, ...]) -> Any:
        """The metadata value `key`. Raises ModelFileError when it is absent or of another type."""
        value = self.metadata.get(key)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            found = "missing" if value is None else f"a {type(value).__name__}"
            msg = f"{self.path}: metadata field {key} is {found}"
            raise ModelFileError(msg)
        return value

    def items(self, key: str, kind: type | tuple[type, ...]) -> list[Any]:
        """The array metadata value `key`, whose elements are all of `kind`. Raises ModelFileError likewise."""
        values = self.require(key, list)
        if not all(isinstance(value, kind) for value in values):
            raise ModelFileError(f"{self.path}: metadata field {key} holds values of another type")
        return values

    def flag(self, key: str, *, default: bool) -> bool:
        return self.require(key, bool) if key in self.metadata else default

    def _read_header(self) -> None:
        cursor = _Cursor(self.data, len(MAGIC))
        version = cursor.scalar("I")
        if version.to_bytes(4, "big") in BIG_ENDIAN:
            raise ModelFileError(f"{self.path}: the file is big-endian, which is not supported")
        if version not in VERSIONS:
            msg = f"{self.path}: GGUF version {version} is not supported (only {VERSIONS})"
            raise ModelFileError(msg)
        tensor_count, entry_count = cursor.scalar("Q"), cursor.scalar("Q")
        for _ in range(entry_count):
            key = cursor.string()
            if key in self.metadata:
                raise ModelFileError(f"{self.path}: metadata field {key} is there twice")
            self.metadata[key] = cursor.value(cursor.scalar("I"))
        if PARTS in self.metadata and (parts := self.require(PARTS, int)) > 1:
            raise ModelFileError(
                f"{self.path}: one of {parts} parts of a model; merge them, with llama-gguf-split --merge"
            )
        infos = [self._tensor_info(cursor) for _ in range(tensor_count)]
        alignment = self._alignment()
        start = -(-cursor.at // alignment) * alignment
        for name, shape, kind, relative, nbytes in infos:
            if name in self.tensors:
                msg = f"{self.path}: tensor {name} appears twice"
                raise ModelFileError(msg)
            if relative % alignment:
                raise ModelFileError(f"{self.path}: tensor {name} lies at {relative}, no multiple of {alignment}")
            self.tensors[name] = TensorInfo(name, shape, kind, start + relative, nbytes)

    def _alignment(self) -> int:
        """Of the tensors, in bytes."""
        if ALIGNMENT not in self.metadata:
            return ALIGNMENT_DEFAULT
        value = self.require(ALIGNMENT, int)
        if value < ALIGNMENT_STEP or value % ALIGNMENT_STEP:
            raise ModelFileError(f"{self.path}: metadata field {ALIGNMENT} is {value}, no multiple of {ALIGNMENT_STEP}")
        return value

    def _tensor_info(self, cursor: _Cursor) -> tuple[str, tuple[int, ...], GGMLQuantizationType, int, int]:
        name = cursor.string()
        dimensions = cursor.scalar("I")
        if not 1 <= dimensions <= DIMENSIONS_MAX:
            msg = f"{self.path}: tensor {name} has {dimensions} dimensions"
            raise ModelFileError(msg)
        shape = tuple(cursor.scalar("Q") for _ in range(dimensions))[::-1]
        number, offset = cursor.scalar("I"), cursor.scalar("Q")
        try:
            kind = GGMLQuantizationType(number)
        except ValueError:
            msg = f"{self.path}: tensor {name} has the unknown quantization type {number}"
            raise ModelFileError(msg) from None
        block_elements, block_bytes = GGML_QUANT_SIZES[kind]
        if shape[-1] % block_elements:
            msg = f"{self.path}: tensor {name}: rows of {shape[-1]} do not divide into blocks of {block_elements}"
            raise ModelFileError(msg)
        return name, shape, kind, offset, math.prod(shape) // block_elements * block_bytes


def _map(path: Path) -> mmap.mmap:
    check_openable(path)
    try:
        with path.open("rb") as file:
            head = file.read(len(MAGIC))
            if not head:
                msg = f"{path}: the file is empty"
                raise ModelFileError(msg)
            if head != MAGIC:
                msg = f"{path}: not a GGUF file (a model of safetensors is named by its folder)"
                raise ModelFileError(msg)
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        msg = f"{path}: cannot be read: {error.strerror}"
        raise ModelFileError(msg) from error
