"""The compute threads of a CPU, how they wait for each other, and the cache folder of code that is compiled for it.

Must be decided before torch and numba are imported, so never imports them. What the environment already says holds.
"""

import contextlib
import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, MutableMapping
from pathlib import Path

import kernels

WAIT_POLICY, SPIN, COUNT, CACHE = "OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "NUMBA_NUM_THREADS", "NUMBA_CACHE_DIR"
PASSIVE, SPIN_TURNS = "PASSIVE", "1000"  # some microseconds
ROOM_BYTES = 2**26  # some ten times what compiled code takes
PICKLED = b"\x80", b"."  # how what numba keeps begins and ends
OPTIMISATION, ENOUGH = "NUMBA_OPT", "2"  # 3 takes a quarter longer to compile, and what it makes is no faster


def prepare(environ: MutableMapping[str, str], threads: int) -> None:
    """For `threads` compute threads.

    A thread that waits for the others of its step spins for microseconds and then sleeps. Spinning on, it keeps the
    core that the one it waits for needs as soon as anything else runs on the machine, and the gateway does: on 2
    shared cores a step of 16 sequences took 0.4 s with sleep and 1.8 s with spinning. Asleep at once, it must be woken
    for each of a step's 300 operations, at 30 us instead of 4.
    """
    environ.setdefault(WAIT_POLICY, PASSIVE)
    environ.setdefault(SPIN, SPIN_TURNS)
    environ.setdefault(COUNT, str(threads))
    environ.setdefault(OPTIMISATION, ENOUGH)
    if CACHE not in environ:
        environ[CACHE] = str(cache_folder(environ) / version(Path(kernels.__file__).parent))
    discard_damaged(Path(environ[CACHE]))


def cache_folder(environ: MutableMapping[str, str]) -> Path:
    """Where compiled code may stay from one start to the next: the user's cache if it can be written and has room, else
    a folder of this user among the temporary files. What numba would choose fails where neither the package nor a home
    is writable. Raises OSError where there is no such folder.
    """
    usable = (folder for folder in _places(environ) if _is_ours_alone(folder) and _has_room(folder))
    return next(usable, None) or Path(tempfile.mkdtemp(prefix="forebay-"))


def _places(environ: MutableMapping[str, str]) -> Iterator[Path]:
    if home := environ.get("XDG_CACHE_HOME"):
        yield Path(home) / "forebay"
    elif home := environ.get("HOME"):
        yield Path(home) / ".cache" / "forebay"
    yield Path(tempfile.gettempdir()) / f"forebay-{os.getuid()}"  # raises where the whole system is read-only


def version(sources: Path) -> str:
    """A name for code compiled from these files. numba asks only whether the file of a function has changed, not those
    of what it calls.
    """
    contents = (path.read_bytes() for path in sorted(sources.glob("*.py")))
    return hashlib.sha256(b"\0".join(contents)).hexdigest()[:12]


def discard_damaged(folder: Path) -> None:
    """Files of compiled code that a crash or a full disk has left without their ends, or empty: numba ends with them
    at every start, where without them it compiles again.
    """
    for path in folder.rglob("*.nb[ic]"):
        with contextlib.suppress(OSError):
            content = path.read_bytes()
            if (content[:1], content[-1:]) != PICKLED:
                path.unlink()


def _has_room(folder: Path) -> bool:
    return shutil.disk_usage(folder).free >= ROOM_BYTES


def _is_ours_alone(folder: Path) -> bool:
    """Whether it is there or can be made, and nobody else can put code into it, which would run as ours."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
    except OSError:
        return False
    others_write = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not others_write
    return ours and os.access(folder, os.W_OK | os.X_OK)
