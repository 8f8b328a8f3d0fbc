"""How much `bench.gateway` sends, in full and with `--quick`."""

import msgspec


class Size(msgspec.Struct, frozen=True, kw_only=True):
    """The amount of everything that is sent."""

    idle_requests: int
    idle_tokens: int = 8
    requests: int
    request_clients: int = 32
    request_tokens: int = 8
    streams: int
    stream_clients: int = 64
    stream_tokens: int = 512
    decision_rate: float = 600
    decision_s: float
    body_requests: int
    arrival_rates: tuple[float, ...] = (25, 100)
    arrivals_s: float
    streams_open: int


FULL = Size(
    idle_requests=500, requests=5_000, streams=192, decision_s=10, body_requests=300, arrivals_s=10, streams_open=2_000
)
QUICK = Size(
    idle_requests=50,
    requests=300,
    streams=64,
    stream_tokens=64,
    decision_s=2,
    body_requests=50,
    arrivals_s=2,
    streams_open=200,
)
