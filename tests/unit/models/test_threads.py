import os

import pytest

from worker.models import threads


def test_what_the_environment_says_holds():
    environ = {"OMP_WAIT_POLICY": "ACTIVE", "NUMBA_NUM_THREADS": "7", "NUMBA_CACHE_DIR": "/x", "HOME": "/nowhere"}
    threads.prepare(environ, 2)
    assert environ["OMP_WAIT_POLICY"] == "ACTIVE"
    assert environ["NUMBA_NUM_THREADS"] == "7"
    assert environ["NUMBA_CACHE_DIR"] == "/x"


def test_threads_are_counted_and_spin_briefly(tmp_path):
    environ = {"HOME": str(tmp_path)}
    threads.prepare(environ, 3)
    assert environ["NUMBA_NUM_THREADS"] == "3"
    assert environ["OMP_WAIT_POLICY"] == "PASSIVE"
    assert 0 < int(environ["GOMP_SPINCOUNT"]) <= 10_000
    assert environ["NUMBA_CACHE_DIR"] == str(tmp_path / ".cache" / "forebay")


@pytest.mark.parametrize("environ", [{}, {"HOME": "FILE"}, {"XDG_CACHE_HOME": "FILE"}])
def test_compiled_code_has_a_place_where_no_home_can_be_written(tmp_path, monkeypatch, environ):
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = threads.cache_folder({name: str(file) for name in environ})
    assert folder.parent == tmp_path
    assert os.access(folder, os.W_OK)


def test_another_users_folder_is_not_trusted(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / f"forebay-{os.getuid()}").symlink_to(tmp_path / "elsewhere")
    folder = threads.cache_folder({})
    assert not folder.is_symlink()
    assert folder.parent == tmp_path
