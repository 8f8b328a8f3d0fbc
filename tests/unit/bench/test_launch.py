from pathlib import Path

import pytest

from bench import launch
from cli.embedded.directory import DataDirectory


def test_a_stack_is_told_nothing_by_the_caller_s_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREBAY_POSTGRES_URL", "postgresql://somebody/else")
    monkeypatch.setenv("FOREBAY_THREADS", "1")
    monkeypatch.setenv("OPENAI_API_KEY", "fb-other")
    monkeypatch.setenv("LANG", "C.UTF-8")
    environ = launch.environment(DataDirectory(tmp_path), {"runner": "fake", "fake_step_us": 0})
    own = {name: value for name, value in environ.items() if name.startswith(("FOREBAY_", "OPENAI_"))}
    ports = {own.pop(f"FOREBAY_{name}") for name in ("PORT", "OPS_PORT", "METRICS_PORT")}
    assert own == {"FOREBAY_DATA_DIR": str(tmp_path), "FOREBAY_RUNNER": "fake", "FOREBAY_FAKE_STEP_US": "0"}
    assert len(ports) == 3
    assert environ["LANG"] == "C.UTF-8"
