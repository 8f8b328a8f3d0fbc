"""A model folder as publishers lay it out: JSON files and safetensors files, of which an index names the shards.

Owns which file holds which tensor: `model.safetensors.index.json` decides if there is one; otherwise all `.safetensors`
files count. Does not know what any field or tensor means.

Invariant: every shard of an opened checkpoint is complete, and no tensor is in two shards.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from worker.models.errors import ModelFileError
from worker.models.json_file import Fields, read_fields
from worker.models.safetensors_file import SafetensorsFile

INDEX = "model.safetensors.index.json"
CONFIG = "config.json"
# What a folder without one may be.
INSTEAD = {
    "*.gguf": "of GGUF files, name one",
    "adapter_config.json": "an adapter is no model; merge it into its own",
    "snapshots/*": "of a cache of models, name a folder in snapshots",
}
CACHED = re.compile(r".*/models--(?P<full>[^/]+)/snapshots/[^/]+")  # a revision in that cache
SHARD = re.compile(r"(?P<stem>.+)-\d+-of-(?P<count>\d+)\.safetensors")


@dataclass(slots=True, frozen=True)
class ModelFolder:
    """The folder, by its JSON files alone."""

    path: Path

    @property
    def name(self) -> str:
        """The folder's; in Hugging Face's cache, where folders are named by revisions, the model's."""
        place = self.path.resolve()
        cached = CACHED.fullmatch(place.as_posix())
        return cached["full"].rpartition("--")[2] if cached else place.name

    def config(self) -> Fields:
        """Raises ModelFileError, for a folder of something else with what it seems to be."""
        if self.path.is_dir() and not (self.path / CONFIG).exists():
            hints = (hint for pattern, hint in INSTEAD.items() if any(self.path.glob(pattern)))
            raise ModelFileError(f"{self.path / CONFIG}: missing" + "".join(f" ({hint})" for hint in hints))
        return self.fields(CONFIG)

    def fields(self, name: str, *, optional: bool = False) -> Fields:
        return read_fields(self.path / name, optional=optional)


@dataclass(slots=True, frozen=True)
class Checkpoint:
    path: Path
    homes: dict[str, SafetensorsFile]  # by tensor

    @classmethod
    def open(cls, folder: ModelFolder) -> "Checkpoint":
        """Map every shard. Raises ModelFileError."""
        if (folder.path / INDEX).exists():
            return cls(folder.path, _indexed(folder))
        return cls(folder.path, _listed(folder))


def _indexed(folder: ModelFolder) -> dict[str, SafetensorsFile]:
    index = folder.fields(INDEX)
    shard_of = index.inner("weight_map").values
    if not shard_of:
        raise ModelFileError(f"{index.place}: field weight_map names no tensor")
    shards: dict[str, SafetensorsFile] = {}
    for name, shard in shard_of.items():
        if not isinstance(shard, str) or not shard or Path(shard).name != shard:
            raise ModelFileError(f"{index.place}: tensor {name} lies in {shard!r}, which is no file of this folder")
        if shard not in shards:
            if not (folder.path / shard).exists():
                raise ModelFileError(f"{folder.path / shard}: missing, although {INDEX} names it")
            shards[shard] = SafetensorsFile.open(folder.path / shard)
        if name not in shards[shard].tensors:
            raise ModelFileError(f"{shards[shard].path}: tensor {name} is missing, although {INDEX} names it")
    return {name: shards[shard] for name, shard in shard_of.items()}


def _listed(folder: ModelFolder) -> dict[str, SafetensorsFile]:
    paths = sorted(folder.path.glob("model*.safetensors")) or sorted(folder.path.glob("*.safetensors"))
    if not paths:
        pickled = " (weights in *.bin are not read: pickles can run code)" if any(folder.path.glob("*.bin")) else ""
        raise ModelFileError(f"{folder.path}: no safetensors file{pickled}")
    _check_complete(paths)
    homes: dict[str, SafetensorsFile] = {}
    for file in map(SafetensorsFile.open, paths):
        for name in file.tensors:
            if name in homes:
                raise ModelFileError(f"{file.path}: tensor {name} is also in {homes[name].path.name}")
            homes[name] = file
    return homes


def _check_complete(paths: list[Path]) -> None:
    """Without an index, the shards' numbered names say how many there must be."""
    counts: dict[tuple[str, int], int] = {}
    for path in paths:
        if found := SHARD.fullmatch(path.name):
            key = found["stem"], int(found["count"])
            counts[key] = counts.get(key, 0) + 1
    for (stem, count), present in counts.items():
        if present != count:
            raise ModelFileError(f"{paths[0].parent}: {present} of the {count} shards of {stem} are here")
