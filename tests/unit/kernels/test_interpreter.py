"""Runs the tests of `interpreted/` where triton interprets its kernels; see conftest.py."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[2]


@pytest.mark.timeout(600)
def test_the_kernels_agree_with_the_reference_in_the_interpreter() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--no-header", "--rootdir", ROOT, HERE / "interpreted"],
        cwd=ROOT,
        # One thread: the products are tiny, and other tests want the rest of the cores.
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
