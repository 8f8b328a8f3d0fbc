"""What is compiled beside the load of a very first start, and when it is not."""

import sys

import pytest

from worker.models.first_compile import beside


def writing(path) -> tuple[str, ...]:
    return sys.executable, "-c", f"open({str(path)!r}, 'w').close()"


def test_a_first_start_has_it_compiled_before_it_goes_on(tmp_path):
    with beside({"NUMBA_CACHE_DIR": str(tmp_path / "absent")}, writing(tmp_path / "done")) as compiling:
        assert compiling
    assert (tmp_path / "done").exists()


def test_a_later_start_does_not(tmp_path):
    folder = tmp_path / "cache" / "kernels_1234"
    folder.mkdir(parents=True)
    (folder / "cpu_layers.attend_prompt-123.py311.nbi").touch()
    with beside({"NUMBA_CACHE_DIR": str(tmp_path / "cache")}, writing(tmp_path / "done")) as compiling:
        assert not compiling
    assert not (tmp_path / "done").exists()


def test_a_worker_that_cannot_start_does_not_wait_for_it(tmp_path):
    forever = sys.executable, "-c", "import time; time.sleep(1e6)"
    with pytest.raises(ValueError, match="no model"), beside({"NUMBA_CACHE_DIR": str(tmp_path)}, forever):
        raise ValueError("no model")
