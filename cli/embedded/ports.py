"""TCP ports on the loopback interface: is one free, find one, wait for one."""

import asyncio
import contextlib
import secrets
import socket

LOOPBACK = "127.0.0.1"
# Below the ports that Linux (from 32,768) and macOS (from 49,152) give to outgoing connections.
PORT_MIN, PORTS = 20_000, 12_000


def is_free(port: int, host: str = LOOPBACK) -> bool:
    """Whether a server could listen there now. Connections in TIME_WAIT do not count."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def pick(preferred: int | None = None) -> int:
    """`preferred` if it is free, otherwise a free port from a range that outgoing connections do not use: such a
    connection could take the port before a server listens on it.
    """
    while preferred is None or not is_free(preferred):
        preferred = PORT_MIN + secrets.randbelow(PORTS)
    return preferred


async def wait_listening(port: int, deadline_s: float) -> None:
    """Return once something accepts connections. Raises TimeoutError."""
    async with asyncio.timeout(deadline_s):
        while True:
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection(LOOPBACK, port)
                writer.close()
                return
            await asyncio.sleep(0.02)
