"""What is no address of NATS is refused when a bus is made, and without a word of its password."""

import pytest

from shared.bus import Bus
from shared.settings import SettingsError


@pytest.mark.parametrize(
    "url",
    [
        "garbage",
        "garbage:4222",
        "nats://",
        "nats://:hunter2@",
        "http://gateway:hunter2@host:4222",
        "nats://gateway:hunter2@host:port",
        "nats://gateway:hunter2@host:99999",
        "nats://gateway:hunter2@[host",
        "nats://host:4222,hunter2",
        " ",
    ],
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(SettingsError, match="FOREBAY_NATS_URL is not of the form nats://") as refusal:
        Bus(url, name="test", role="gateway")
    assert "hunter2" not in str(refusal.value)


@pytest.mark.parametrize(
    "url", ["nats://host", "tls://u:p@host:4222", "nats://u:p@[::1]:4222", "nats://a:4222, nats://b:4222", "wss://host"]
)
async def test_what_is_one_is_not_asked_for_yet(url: str) -> None:
    assert not Bus(url, name="test", role="gateway").ready
