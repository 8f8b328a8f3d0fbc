"""Whether a path can be opened without waiting for anybody, and is the file that it seems. Knows no format."""

import stat
from pathlib import Path

from worker.models.errors import ModelFileError

POINTER = b"version https://git-lfs"


def check_openable(path: Path) -> None:
    """Raises ModelFileError for a pipe, a socket or a device: reading one may never end; and for what a clone without
    Git LFS leaves in a file's place. What else is wrong with the path is left to whoever opens it.
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
