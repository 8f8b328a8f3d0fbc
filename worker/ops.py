"""The worker's own HTTP port: `/metrics`, `/healthz/live`, `/healthz/ready`. For operators, never for clients.

Runs in a thread of its own, from before the model is loaded: a loading worker is alive but not ready, and one whose
event loop or engine hangs can still report it.
"""

import contextlib
import socket
import threading
from collections.abc import Callable, Generator, Mapping
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from worker.errors import CannotStart

REQUEST_TIMEOUT_S = 5.0


class _Handler(BaseHTTPRequestHandler):
    timeout = REQUEST_TIMEOUT_S
    pages: dict[str, Callable[[], tuple[int, bytes]]]

    def do_GET(self) -> None:
        self.wfile.write(self._headed())

    def do_HEAD(self) -> None:
        self._headed()

    def _headed(self) -> bytes:
        """Send the head of the response; its body."""
        page = self.pages.get(self.path.partition("?")[0])
        status, body = page() if page is not None else (404, b"not found\n")
        self.send_response(status)
        self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        return body

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Scrapes are not events."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, host: str, port: int, handler: type[_Handler]) -> None:
        self.address_family, _, _, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        super().__init__((str(where[0]), port), handler)


@contextlib.contextmanager
def serving(
    host: str, port: int, *, metrics: Callable[[], bytes], health: Mapping[str, Callable[[], str | None]]
) -> Generator[int]:
    """Serve while entered; yields the port. `health` returns, by path, what is wrong (None if nothing is). Raises
    CannotStart if the port is taken.
    """

    def answer(wrong: Callable[[], str | None]) -> tuple[int, bytes]:
        reason = wrong()
        return (200, b"ok\n") if reason is None else (503, f"{reason}\n".encode())

    pages = {"/metrics": lambda: (200, metrics()), **{path: partial(answer, wrong) for path, wrong in health.items()}}
    handler = type("Handler", (_Handler,), {"pages": pages})
    try:
        server = _Server(host, port, handler)
    except OSError as error:
        raise CannotStart(f"the metrics port {host}:{port} cannot be used: {error.strerror}") from error
    thread = threading.Thread(target=server.serve_forever, args=(0.1,), name="ops", daemon=True)
    thread.start()
    try:
        yield int(server.server_address[1])
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
