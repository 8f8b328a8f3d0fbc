"""Cores and memory, by the files with which Linux tells a container what it may use."""

import mmap
import os
from pathlib import Path

import pytest

from worker import machine

MANY = 100_000_000  # of a quota, more cores than any machine has
V1 = "4:memory:/a/b\n1:cpu,cpuacct:/a/b\n0::/\n"
V2 = "0::/a/b\n"


def write(root: Path, groups: str, files: dict[str, str]) -> Path:
    for name, text in {"proc/self/cgroup": groups, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("groups", "files"),
    [
        (V2, {"a/b/cpu.max": "150000 100000\n"}),
        (V2, {"a/b/cpu.max": "50000 100000\n"}),
        (V2, {"a/b/cpu.max": f"{MANY} 100000\n", "a/cpu.max": "100000 100000\n", "cpu.max": "max 100000\n"}),
        ("0::/not/seen/here\n", {"cpu.max": "100000 100000\n"}),
        ("0::/../..\n", {"cpu.max": "100000 100000\n"}),
        (V1, {"cpu/a/b/cpu.cfs_quota_us": "100000\n", "cpu/a/b/cpu.cfs_period_us": "100000\n"}),
        (V1, {"cpu/cpu.cfs_quota_us": "25000\n", "cpu/cpu.cfs_period_us": "50000\n"}),
    ],
)
def test_a_quota_of_less_than_two_cores_is_one_thread(tmp_path: Path, groups: str, files: dict[str, str]) -> None:
    root = write(tmp_path, groups, {f"sys/fs/cgroup/{name}": text for name, text in files.items()})
    assert machine.cores(root) == 1


@pytest.mark.parametrize(
    ("groups", "files"),
    [
        (V2, {"a/b/cpu.max": "max 100000\n"}),
        (V2, {"a/b/cpu.max": f"{MANY} 100000\n"}),
        (V1, {"cpu/a/b/cpu.cfs_quota_us": "-1\n", "cpu/a/b/cpu.cfs_period_us": "100000\n"}),
        (V1, {"cpu/a/b/cpu.cfs_period_us": "100000\n"}),
        ("", {}),
    ],
)
def test_without_a_quota_each_core_of_the_affinity_counts(tmp_path: Path, groups: str, files: dict[str, str]) -> None:
    root = write(tmp_path, groups, {f"sys/fs/cgroup/{name}": text for name, text in files.items()})
    assert machine.cores(root) == len(os.sched_getaffinity(0))


def test_a_process_that_is_bound_to_one_core_computes_with_one_thread(tmp_path: Path) -> None:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        assert machine.cores(tmp_path) == 1
    finally:
        os.sched_setaffinity(0, before)


@pytest.mark.parametrize(
    ("groups", "files"),
    [
        (V2, {"a/memory.max": "1000000\n", "a/b/memory.max": "max\n"}),
        (V2, {"a/memory.max": "2000000\n", "a/b/memory.max": "1000000\n"}),
        (V1, {"memory/a/b/memory.limit_in_bytes": "1000000\n", "memory/memory.limit_in_bytes": f"{2**63 - 4096}\n"}),
    ],
)
def test_the_strictest_limit_of_memory_holds(tmp_path: Path, groups: str, files: dict[str, str]) -> None:
    root = write(tmp_path, groups, {f"sys/fs/cgroup/{name}": text for name, text in files.items()})
    assert machine.memory(root) == 1_000_000


def test_without_a_limit_it_is_all_memory(tmp_path: Path) -> None:
    assert machine.memory(tmp_path) == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_what_is_held_is_what_was_written() -> None:
    before = machine.memory_held()
    with mmap.mmap(-1, 2**26, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as fresh:  # a heap may reuse what it had freed
        fresh[: 2**25] = b"x" * 2**25
        assert machine.memory_held() - before >= 2**24
    assert machine.memory_held(Path("/nowhere")) == 0
