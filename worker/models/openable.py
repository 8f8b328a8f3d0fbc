"""Whether a path can be opened without waiting for anybody. Knows no format."""

import stat
from pathlib import Path

from worker.models.errors import ModelFileError


def check_openable(path: Path) -> None:
    """Raises ModelFileError for a pipe, a socket or a device: reading one may never end. What else is wrong with the
    path is left to whoever opens it.
    """
    try:
        mode = path.stat().st_mode
    except OSError:
        return
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise ModelFileError(f"{path}: neither a file nor a folder")
