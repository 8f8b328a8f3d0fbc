"""What of this machine the process may use: cores and memory. Knows no model.

In a container a process sees all cores and all memory of its host. What it may use is said by its affinity mask and
by the control groups (either version) that it lies in, of which the strictest holds. More threads than that would
wait, step after step, for the one that the kernel holds back; more memory ends the process.
"""

import os
from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/")
GROUPS = Path("sys/fs/cgroup")


def cores(root: Path = ROOT) -> int:
    """How many threads may compute at the same time, at least 1. A quota's fraction of a core counts for none: one
    thread too many is enough for all of them to be held back.
    """
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for group in _groups(root, "cpu"):
        found = _numbers(group / "cpu.max") or _numbers(group / "cpu.cfs_quota_us", group / "cpu.cfs_period_us")
        quota, period = found if len(found) == 2 else (0, 0)
        if quota > 0 and period > 0:
            allowed = min(allowed, quota // period)
    return max(1, allowed)


def memory(root: Path = ROOT) -> int | None:
    """Bytes, all that the process may ever hold. None where the system does not say."""
    found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")] if "SC_PHYS_PAGES" in os.sysconf_names else []
    for group in _groups(root, "memory"):
        found += _numbers(group / "memory.max") or _numbers(group / "memory.limit_in_bytes")
    return min(found, default=None)


def memory_held(root: Path = ROOT) -> int:
    """Bytes of memory that this process has written to, without files that it maps. 0 where the system does not say."""
    for line in _text(root / "proc/self/status").splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """The folders of the group that the process lies in and of all groups around it, as far as it can see them."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        top = root / GROUPS / controller if controllers else root / GROUPS
        group = top / path.lstrip("/")
        yield from (group, *(above for above in group.parents if above.is_relative_to(top)))


def _numbers(*paths: Path) -> tuple[int, ...]:
    """The whole numbers in the files, none where one says in a word that there is no limit."""
    words = [word for path in paths for word in _text(path).split()]
    return tuple(map(int, words)) if all(word.lstrip("-").isdecimal() for word in words) else ()


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except (OSError, ValueError):
        return ""
