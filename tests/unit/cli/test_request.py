import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from cli.errors import CommandError
from cli.request import answered


@contextmanager
def server(says: bytes) -> Iterator[str]:
    """Says the same to whoever connects, once, and hangs up."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:

        def serve() -> None:
            caller, _ = listening.accept()
            with closing(caller):
                caller.recv(65_536)
                caller.sendall(says)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
        thread.join()


@pytest.mark.parametrize(
    ("says", "words"),
    [
        (b"INFO {}\r\n", "no gateway at"),
        (b"", "no gateway at"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{", "no gateway at"),  # it dies in the middle
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n", "no gateway at"),
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\n{}", "HTTP 404"),
        (b'HTTP/1.1 400 Bad\r\n\r\n{"error": {"message": "too hot"}}', "too hot"),
    ],
)
def test_what_is_no_answer_is_one_sentence(says: bytes, words: str) -> None:
    with (
        server(says) as base_url,
        pytest.raises(CommandError, match=words),
        answered(base_url, "k", "GET", "/models", timeout_s=10) as response,
    ):
        response.read()
