import os
import subprocess
from pathlib import Path

from bench import machine


def git(root: Path, *words: str) -> None:
    identity = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    for role in ("AUTHOR", "COMMITTER"):
        identity |= {f"GIT_{role}_NAME": "a", f"GIT_{role}_EMAIL": "a@example.org"}
    subprocess.run(["git", *words], cwd=root, env={**os.environ, **identity}, check=True, capture_output=True)


def test_the_commit_tells_whether_the_files_are_its_own(tmp_path: Path) -> None:
    git(tmp_path, "init")
    (tmp_path / "file").write_text("one")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "one")
    clean = machine.commit(tmp_path)
    assert len(clean) == 12
    (tmp_path / "file").write_text("two")
    assert machine.commit(tmp_path) == f"{clean}+"


def test_outside_a_repository_there_is_no_commit(tmp_path: Path) -> None:
    assert machine.commit(tmp_path) == ""


def test_the_processor_s_name_is_read_where_the_kernel_tells_it(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nmodel name\t: Fast 9000: X\n\nprocessor\t: 1\nmodel name\t: Fast 9000: X\n")
    assert machine.cpu_model(cpuinfo) == "Fast 9000: X"


def test_every_row_begins_with_where_it_comes_from() -> None:
    assert list(machine.provenance()) == ["date", "commit", "cpu", "cores", "load1"]
