"""The readiness probe of a process of the stack: one HTTP GET."""

import http.client
import json
from dataclasses import dataclass
from urllib.parse import urlsplit

SECONDS_MAX = 10.0  # a gateway takes 2 s of them to find out that a server is away
BODY_BYTES_MAX = 4096


@dataclass(frozen=True, slots=True)
class Health:
    ready: bool
    detail: str


def probe(url: str) -> Health:
    """Ask a readiness URL, past any proxy. Never raises: what cannot be reached is not ready."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=SECONDS_MAX)
    try:
        connection.request("GET", parts.path)
        response = connection.getresponse()
        body = response.read(BODY_BYTES_MAX).decode(errors="replace").strip()
        return Health(response.status == http.HTTPStatus.OK, _reason(body) or f"HTTP {response.status}")
    except (OSError, http.client.HTTPException) as error:
        return Health(ready=False, detail=f"not reachable ({type(error).__name__})")
    finally:
        connection.close()


def _reason(body: str) -> str:
    """One line of a gateway's `{"ready": false, "wrong": {"worker": "no worker is ready"}, "impaired": {}}` or of plain
    text.
    """
    try:
        answer = json.loads(body)
        found = {**answer["wrong"], **answer.get("impaired", {})}
        return ", ".join(f"{what}: {why}" for what, why in found.items())
    except (ValueError, KeyError, TypeError, AttributeError):
        return body.partition("\n")[0]
