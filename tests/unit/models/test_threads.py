import os
import pickle
from pathlib import Path
from typing import NamedTuple

import pytest

from worker.models import threads


def raises():
    raise FileNotFoundError("No usable temporary directory")


class Usage(NamedTuple):
    free: int


def test_what_the_environment_says_holds(tmp_path):
    environ = {"OMP_WAIT_POLICY": "ACTIVE", "NUMBA_NUM_THREADS": "7", "NUMBA_CACHE_DIR": "/x", "HOME": str(tmp_path)}
    threads.prepare(environ, 2)
    assert list(tmp_path.iterdir()) == []
    assert environ["OMP_WAIT_POLICY"] == "ACTIVE"
    assert environ["NUMBA_NUM_THREADS"] == "7"
    assert environ["NUMBA_CACHE_DIR"] == "/x"


def test_threads_are_counted_and_spin_briefly(tmp_path):
    environ = {"HOME": str(tmp_path)}
    threads.prepare(environ, 3)
    assert environ["NUMBA_NUM_THREADS"] == "3"
    assert environ["OMP_WAIT_POLICY"] == "PASSIVE"
    assert 0 < int(environ["GOMP_SPINCOUNT"]) <= 10_000
    assert Path(environ["NUMBA_CACHE_DIR"]).parent == tmp_path / ".cache" / "forebay"


def test_code_compiled_from_other_sources_has_another_place(tmp_path):
    names: list[str] = []
    for content in ("a", "b"):
        (tmp_path / "called.py").write_text(content)
        names += [threads.version(tmp_path), threads.version(tmp_path)]
    assert names[0] == names[1] != names[2] == names[3]


@pytest.mark.parametrize("environ", [{}, {"HOME": "FILE"}, {"XDG_CACHE_HOME": "FILE"}])
def test_compiled_code_has_a_place_where_no_home_can_be_written(tmp_path, monkeypatch, environ):
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = threads.cache_folder({name: str(file) for name in environ})
    assert folder.parent == tmp_path
    assert os.access(folder, os.W_OK)


def test_where_a_home_can_be_written_nothing_is_asked_of_temporary_files(tmp_path, monkeypatch):
    """There may be no place for them: a container whose system is read-only, with a volume for caches."""
    monkeypatch.setattr("tempfile.gettempdir", raises)
    assert threads.cache_folder({"HOME": str(tmp_path)}).parent == tmp_path / ".cache"


def test_compiled_code_is_not_kept_where_the_disk_is_full(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("shutil.disk_usage", lambda path: Usage(2**30 if path.parent == tmp_path else 2**20))
    assert threads.cache_folder({"HOME": str(tmp_path / "home")}).parent == tmp_path


@pytest.mark.parametrize("left", [b"", b"\x80\x04\x95", b"\x80\x04K\x01.\0\0", b"\0\0\0."])
def test_what_a_crash_has_left_of_compiled_code_is_compiled_again(tmp_path, left):
    whole, damaged = tmp_path / "kernels" / "a-1.nbi", tmp_path / "kernels" / "a-1.1.nbc"
    whole.parent.mkdir()
    whole.write_bytes(pickle.dumps(1))
    damaged.write_bytes(left)
    threads.prepare({"NUMBA_CACHE_DIR": str(tmp_path)}, 1)
    assert list(whole.parent.iterdir()) == [whole]


@pytest.mark.parametrize("what", ["link", "dangling link", "file", "open to all"])
def test_a_folder_that_others_could_write_is_not_used(tmp_path, monkeypatch, what):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    ours, elsewhere = tmp_path / f"forebay-{os.getuid()}", tmp_path / "elsewhere"
    match what:
        case "link":
            elsewhere.mkdir(mode=0o700)
            ours.symlink_to(elsewhere)
        case "dangling link":
            ours.symlink_to(elsewhere)
        case "file":
            ours.touch()
        case _:
            ours.mkdir()
            ours.chmod(0o777)
    folder = threads.cache_folder({})
    assert folder.is_dir()
    assert folder not in {ours, elsewhere}
    assert folder.parent == tmp_path
