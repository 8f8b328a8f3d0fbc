"""A very first start: half of what is compiled for this processor is compiled by another process meanwhile.

Knows that compiled code is kept in a folder, and what its files are called. Never imports numba.
"""

import contextlib
import subprocess
import sys
from collections.abc import Generator, Mapping
from pathlib import Path

from worker.models.threads import CACHE

COMMAND = (sys.executable, "-P", "-m", "kernels.first_compile")
KEPT = "cpu_layers.attend_prompt-*.nbi"  # what is compiled last


@contextlib.contextmanager
def beside(environ: Mapping[str, str], command: tuple[str, ...] = COMMAND) -> Generator[bool]:
    """Whether anything is compiled; it is done at the end. What could not be compiled will be when it is called."""
    if any(Path(environ[CACHE]).rglob(KEPT)):
        yield False
        return
    with subprocess.Popen(command, env=dict(environ)) as process:
        try:
            yield True
        except BaseException:
            process.kill()
            raise
