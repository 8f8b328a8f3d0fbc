"""The settings of `forebay up`, by option or by environment."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec

from shared.settings import Secret, load

PROCESSES_MAX = 64  # of each kind: more would run into each other's ports

Port = Annotated[int, msgspec.Meta(ge=1, le=65_535)]
Count = Annotated[int, msgspec.Meta(ge=1, le=PROCESSES_MAX)]


class UpSettings(msgspec.Struct, frozen=True, kw_only=True):
    data_dir: str = ".forebay"
    gateways: Count = 1
    workers: Annotated[int, msgspec.Meta(ge=0, le=PROCESSES_MAX)] = 1
    host: str = "127.0.0.1"  # where the gateways listen for clients
    port: Port = 8080  # gateway i: port + i
    ops_port: Port = 9100  # gateway i: ops_port + 100 i
    metrics_port: Port = 9101  # worker j: metrics_port + j
    postgres_url: Secret | None = None  # instead of the embedded server
    nats_url: Secret | None = None  # instead of the embedded server
    drain_s: Annotated[float, msgspec.Meta(ge=0, le=3_600)] = 10.0  # how long a stop lets running streams finish
    start_s: Annotated[float, msgspec.Meta(gt=0, le=86_400)] = 600.0  # a big model takes its time to load

    @property
    def data_path(self) -> Path:
        return Path(self.data_dir).expanduser()

    @property
    def base_url(self) -> str:
        """What a client on this machine calls."""
        host = "127.0.0.1" if self.host in ("0.0.0.0", "::") else self.host  # noqa: S104 - compared, not bound
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}/v1"

    def gateway_port(self, index: int) -> int:
        return self.port + index

    def gateway_ops_port(self, index: int) -> int:
        return self.ops_port + 100 * index

    def worker_metrics_port(self, index: int) -> int:
        return self.metrics_port + index


def environment(base: Mapping[str, str], options: Mapping[str, object]) -> dict[str, str]:
    """`base` with every option that was given (is not None) written over it as FOREBAY_<NAME>."""
    given = {f"FOREBAY_{name.upper()}": str(value) for name, value in options.items() if value is not None}
    return {**base, **given}


def from_environment(environ: Mapping[str, str]) -> UpSettings:
    return load(UpSettings, environ)
