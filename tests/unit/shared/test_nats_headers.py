import pytest

from shared.nats_client import STATUS, read_headers


@pytest.mark.parametrize(
    ("block", "headers"),
    [
        (b"", {}),
        (b"NATS/1.0 503\r\n\r\n", {STATUS: "503"}),
        (b"NATS/1.0 404 Message Not Found\r\n\r\n", {STATUS: "404"}),
        (
            b"NATS/1.0\r\nNats-Sequence: 7\r\nNats-Time-Stamp: 2026-01-02T03:04:05.6Z\r\nempty:\r\n\r\n",
            {"Nats-Sequence": "7", "Nats-Time-Stamp": "2026-01-02T03:04:05.6Z", "empty": ""},
        ),
        (
            b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Stream: 1024\r\n\r\n",
            {STATUS: "100", "Nats-Last-Stream": "1024"},
        ),
        (b"NATS/1.0\r\nno colon\r\n\xff: \xfe\r\n\r\n", {"�": "�"}),
    ],
)
def test_headers_are_read_as_the_server_writes_them(block, headers):
    assert read_headers(block) == headers
