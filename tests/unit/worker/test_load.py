"""What loading a model says in the log."""

import pytest
import structlog

from shared.settings import Secret
from tests.unit.models.folder import Folder, write_json
from worker import app
from worker.errors import CannotStart
from worker.metrics import WorkerMetrics
from worker.settings import WorkerSettings


def test_what_is_odd_about_a_model_is_a_line_of_the_log_even_if_it_cannot_be_served(tmp_path) -> None:
    folder = Folder().write(tmp_path / "tiny")
    write_json(folder / "generation_config.json", {"eos_token_id": 99_999})
    settings = WorkerSettings(nats_url=Secret("nats://host"), model=str(folder), runner="fake")
    with structlog.testing.capture_logs() as lines, pytest.raises(CannotStart, match="no words"):
        app.load(settings, WorkerMetrics())
    (odd,) = [line for line in lines if line["event"] == "model.odd"]
    assert odd["log_level"] == "warning"
    assert odd["reason"].endswith("eos_token_id 99999 is no token and ends nothing")


def test_a_machine_without_a_place_for_compiled_code_is_told_what_to_set(monkeypatch) -> None:
    def raises() -> str:
        raise FileNotFoundError("No usable temporary directory")

    monkeypatch.setattr("tempfile.gettempdir", raises)
    for name in ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    settings = WorkerSettings(nats_url=Secret("nats://host"), model="nowhere", runner="torch")
    with pytest.raises(CannotStart, match="NUMBA_CACHE_DIR names one"):
        app.load(settings, WorkerMetrics())


def test_a_pool_in_eight_bits_is_refused_on_a_cpu() -> None:
    settings = WorkerSettings(nats_url=Secret("nats://host"), model="nowhere", runner="torch", kv_dtype="int8")
    with pytest.raises(CannotStart, match="--kv-dtype int8 needs CUDA"):
        app.load(settings, WorkerMetrics())
