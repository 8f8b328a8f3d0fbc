"""The check for a machine with CUDA, run dry: all of its parts, with tiny shapes, where there is no device."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from bench import gpu_check

ROOT = Path(gpu_check.__file__).parents[1]
# Part of Forebay, and not of the machine that the check is written for.
ABSENT = ("numba", "gguf", "msgspec", "structlog", "nats", "cyclopts", "prometheus_client")


@pytest.mark.timeout(900)
def test_a_dry_run_goes_through_all_parts_with_nothing_installed_but_what_it_names(tmp_path):
    absent = tmp_path / "absent"
    absent.mkdir()
    for name in ABSENT:
        (absent / f"{name}.py").write_text("raise ImportError('not on that machine')\n")
    out = tmp_path / "out"
    run = subprocess.run(
        [sys.executable, "-m", "bench.gpu_check", "--dry-run", "--out", out],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(absent), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=880,
        check=False,
    )
    log = (out / gpu_check.LOG).read_text()
    assert run.returncode == 0, run.stdout + run.stderr + log
    report = json.loads((out / gpu_check.REPORT).read_text())
    assert report["dry_run"]
    assert list(report["parts"]) == list(gpu_check.PARTS)
    for name, part in report["parts"].items():
        assert part["rows"], name
        assert part["faults"] == []
        assert f"{name}, " in run.stdout
    assert "FAULT" not in run.stdout


@pytest.mark.skipif(torch.cuda.is_available(), reason="has a device")
def test_a_part_that_fails_says_so_and_the_next_one_has_its_turn(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(gpu_check, "PARTS", {name: gpu_check.PARTS[name] for name in ("speed", "engine")})
    monkeypatch.setattr(sys, "argv", ["gpu_check", "--out", str(tmp_path)])
    assert gpu_check.main() == 1
    parts = json.loads((tmp_path / gpu_check.REPORT).read_text())["parts"]
    assert [part["faults"] for part in parts.values()] == [[f"ended with 1; see {gpu_check.LOG}"]] * 2
    log = (tmp_path / gpu_check.LOG).read_text()
    assert log.count("Traceback (most recent call last)") >= 2
    assert capsys.readouterr().out.count("FAULT") == 2


def test_a_part_that_does_not_end_is_ended(tmp_path, monkeypatch):
    monkeypatch.setitem(gpu_check.LIMITS_S, "speed", 0)
    assert gpu_check._in_a_process("speed", tmp_path, dry=False)["faults"] == ["took more than 0 s"]


def test_all_parts_together_end_within_eight_minutes():
    assert list(gpu_check.LIMITS_S) == list(gpu_check.PARTS)
    assert sum(gpu_check.LIMITS_S.values()) < 8 * 60
