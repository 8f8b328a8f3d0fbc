"""Whether a path can be opened without blocking, and is really the model file. Knows no format."""

import stat
from pathlib import Path

from worker.models.errors import ModelFileError

POINTER = b"version https://git-lfs"


def check_openable(path: Path) -> None:
    """Raises ModelFileError for a pipe, a socket or a device, from which reading may never end, and for a Git LFS
    pointer. Other faults of the path are left to the reader.
    """
    try:
        mode = path.stat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise ModelFileError(f"{path}: neither a file nor a folder")
        if stat.S_ISREG(mode):
            _check_content(path)
    except OSError:
        return


def _check_content(path: Path) -> None:
    with path.open("rb") as file:
        if file.read(len(POINTER)) == POINTER:
            raise ModelFileError(f"{path}: a pointer of Git LFS instead of the file (git lfs pull fetches it)")
