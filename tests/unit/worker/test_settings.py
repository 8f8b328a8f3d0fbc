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
        ("DEVICE", "cuda:"),
        ("DEVICE", "cuda:-1"),
        ("DEVICE", "cuda:x"),
        ("DEVICE", "cuda:1,2"),
        ("DEVICE", "cuda:1000"),
        ("DEVICE", "cuda:\u0661"),
        ("DEVICE", "cpu:0"),
        ("TIERS", "0,x"),
        ("TIERS", ","),
        ("KV_BYTES", "0"),
        ("THREADS", "0"),
        ("THREADS", "-1"),
        ("TOKENS_PER_STEP", "0"),
        ("BLOCK_SIZE", "0"),
        ("KV_DTYPE", "int4"),
        ("MEMORY_SHARE", "0"),
        ("MEMORY_SHARE", "1.1"),
        ("METRICS_PORT", "http"),
        ("METRICS_PORT", "65536"),
        ("POOL", "a b"),
        ("TIERS", "-1"),
        ("TIERS", "10"),
        ("DRAIN_S", "-1"),
        ("FAKE_STEP_US", "-1"),
    ],
)
def test_what_cannot_be_read_is_named(name: str, value: str) -> None:
    with pytest.raises(SettingsError):
        load(WorkerSettings, {"FOREBAY_NATS_URL": "nats://host", f"FOREBAY_{name}": value})


def test_tiers_are_served_most_urgent_first() -> None:
    settings = load(WorkerSettings, {"FOREBAY_NATS_URL": "nats://host", "FOREBAY_TIERS": "2, 0"})
    assert settings.tier_numbers() == (0, 2)


@pytest.mark.parametrize(
    ("given", "step", "beside"),
    [
        ({"DEVICE": "cpu"}, 512, 512),
        ({"DEVICE": "cuda"}, 8_192, 2_048),
        ({"DEVICE": "cuda:1"}, 8_192, 2_048),
        ({"DEVICE": "cuda", "TOKENS_PER_STEP": "1024"}, 1_024, 1_024),
        ({"DEVICE": "cuda", "TOKENS_BESIDE_DECODES": "4096"}, 8_192, 4_096),
        ({"DEVICE": "cpu", "TOKENS_PER_STEP": "1024", "TOKENS_BESIDE_DECODES": "64"}, 1_024, 64),
    ],
)
def test_the_tokens_of_a_step_follow_from_the_device(given: dict[str, str], step: int, beside: int) -> None:
    environ = {"FOREBAY_NATS_URL": "nats://host"} | {f"FOREBAY_{name}": value for name, value in given.items()}
    settings = load(WorkerSettings, environ)
    assert (settings.step_tokens, settings.step_tokens_beside_decodes) == (step, beside)
