"""The provenance of a result: the columns of time, commit and machine that every recorded row begins with."""

import os
import platform
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from bench.table import Cell

CPUINFO = Path("/proc/cpuinfo")
GIT_TIMEOUT_S = 10
ROOT = Path(__file__).parent.parent


def provenance() -> dict[str, Cell]:
    """`load1` is the load average before the measurement: with much more than 0, the result is of little value."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "commit": commit(),
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "load1": round(os.getloadavg()[0], 2),
    }


def described(provenance: Mapping[str, Cell]) -> str:
    """For a table's title."""
    return f"{provenance['cores']} cores of {provenance['cpu']}, load average before {provenance['load1']}"


def cpu_model(cpuinfo: Path = CPUINFO) -> str:
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()


def commit(root: Path = ROOT) -> str:
    """The checked-out commit, with `+` when files differ from it; empty outside a repository."""
    short = _git(root, "rev-parse", "--short=12", "HEAD")
    return f"{short}+" if short and _git(root, "status", "--porcelain") else short


def _git(root: Path, *words: str) -> str:
    try:
        # No optional locks: reading the status must not write to the index.
        done = subprocess.run(
            ["git", "--no-optional-locks", *words],
            cwd=root,
            capture_output=True,
            text=True,
            timeout=GIT_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
