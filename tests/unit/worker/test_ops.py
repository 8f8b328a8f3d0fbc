"""The worker's operators' port over a real socket."""

import socket
from http.client import HTTPConnection

import pytest

from worker.errors import CannotStart
from worker.ops import serving


def asked(host: str, port: int, method: str, path: str) -> tuple[int, bytes]:
    connection = HTTPConnection(host, port, timeout=30)
    try:
        connection.request(method, path)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_it_is_asked_as_load_balancers_and_collectors_do(host: str) -> None:
    if host == "::1" and not socket.has_dualstack_ipv6():
        pytest.skip("no IPv6 here")
    with serving(
        host, 0, metrics=lambda: b"metric 1\n", health={"/live": lambda: None, "/ready": lambda: "no"}
    ) as port:
        assert asked(host, port, "GET", "/metrics?name[]=metric") == (200, b"metric 1\n")
        assert asked(host, port, "GET", "/ready") == (503, b"no\n")
        assert asked(host, port, "HEAD", "/live") == (200, b"")
        assert asked(host, port, "HEAD", "/ready") == (503, b"")
        assert asked(host, port, "GET", "/else")[0] == 404
        assert asked(host, port, "POST", "/metrics")[0] == 501


def test_a_port_that_is_taken_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with (
            pytest.raises(CannotStart, match=f"127.0.0.1:{port}"),
            serving("127.0.0.1", port, metrics=bytes, health={}),
        ):
            pass
