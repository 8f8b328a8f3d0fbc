"""A worker's very first start: half of what must be compiled for this processor is compiled by a second process.

Knows that compiled code is cached in a folder, and what its files are called. Never imports numba.
"""

import contextlib
import subprocess
import sys
from collections.abc import Generator, Mapping
from pathlib import Path

from worker.models.threads import CACHE

COMMAND = (sys.executable, "-P", "-m", "kernels.first_compile")
KEPT = "cpu_layers.attend_prompt-*.nbi"  # the file that is written last


@contextlib.contextmanager
def beside(environ: Mapping[str, str], command: tuple[str, ...] = COMMAND) -> Generator[bool]:
    """Yields whether anything is compiled in a second process, which has ended on leaving. What it could not compile is
    compiled here when it is called.
    """
    if any(Path(environ[CACHE]).rglob(KEPT)):
        yield False
        return
    with subprocess.Popen(command, env=dict(environ)) as process:
        try:
            yield True
        except BaseException:
            process.kill()
            raise
