import pytest

from shared.settings import Secret, SettingsError, load
from worker.settings import WorkerSettings


def test_defaults_need_only_nats() -> None:
    settings = load(WorkerSettings, {"FOREBAY_NATS_URL": "nats://worker:secret@host:4222"})
    assert settings.nats_url == Secret("nats://worker:secret@host:4222")
    assert "secret" not in repr(settings)
    assert settings.tier_numbers() == (0, 1, 2)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("RUNNER", "magic"),
        ("DEVICE", "tpu"),
        ("TIERS", "0,x"),
        ("TIERS", ","),
        ("KV_BYTES", "0"),
        ("KV_DTYPE", "int4"),
        ("MEMORY_SHARE", "0"),
        ("MEMORY_SHARE", "1.1"),
        ("METRICS_PORT", "http"),
    ],
)
def test_what_cannot_be_read_is_named(name: str, value: str) -> None:
    with pytest.raises(SettingsError):
        load(WorkerSettings, {"FOREBAY_NATS_URL": "nats://host", f"FOREBAY_{name}": value})


def test_tiers_are_served_most_urgent_first() -> None:
    settings = load(WorkerSettings, {"FOREBAY_NATS_URL": "nats://host", "FOREBAY_TIERS": "2, 0"})
    assert settings.tier_numbers() == (0, 2)
