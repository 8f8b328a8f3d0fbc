"""One HTTP request of a command to a gateway, over the standard library's client."""

import http.client
import json
from collections.abc import Generator
from contextlib import closing, contextmanager
from urllib.parse import urlsplit

from cli.errors import CommandError

ERROR_BYTES_MAX = 65_536


@contextmanager
def answered(
    base_url: str, key: str, method: str, path: str, body: str | None = None, *, timeout_s: float
) -> Generator[http.client.HTTPResponse]:
    """The response, to be read inside. Raises CommandError for a refusal, and if there is no gateway at the address."""
    if not (key.isascii() and key.isprintable()):
        raise CommandError("that is no API key")
    if not base_url.startswith(("http://", "https://")):
        raise CommandError(f"{base_url} is no gateway's address: that begins with http:// or https://")
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json", "Connection": "close"}
    try:
        url = urlsplit(base_url)
        kind = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
        with closing(kind(url.hostname or "", url.port, timeout=timeout_s)) as connection:
            connection.request(method, url.path + path, body, headers)
            with connection.getresponse() as response:
                if response.status != http.HTTPStatus.OK:
                    raise CommandError(_message(response))
                yield response
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise CommandError(f"no gateway at {base_url}: {reason}") from error


def _message(response: http.client.HTTPResponse) -> str:
    raw = response.read(ERROR_BYTES_MAX)
    try:
        return str(json.loads(raw)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"HTTP {response.status}"
