"""Connections of refused clients end: those and no others, and nobody waits for the look at their descriptors."""

import asyncio
import select
import socket
import threading
from contextlib import ExitStack

from gateway.api.connections import Client, Connections, stop_reading


def test_a_look_ends_the_reading_of_its_clients_and_of_no_others() -> None:
    with ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        clients = [stack.enter_context(socket.create_connection(server.getsockname())) for _ in range(3)]
        served = {}
        for _ in clients:
            connection, address = server.accept()
            served[address] = stack.enter_context(connection)
        refused = clients[1].getsockname()
        stop_reading({refused})
        for client in clients:
            connection = served[client.getsockname()]
            connection.settimeout(30)
            connection.sendall(b"the response")
            assert client.recv(100) == b"the response"
        assert served[refused].recv(100) == b""
        others = [served[client.getsockname()] for client in (clients[0], clients[2])]
        assert select.select(others, [], [], 0)[0] == []  # no end to read


async def test_the_event_loop_goes_on_during_a_look_and_no_other_begins() -> None:
    looks: list[set[Client]] = []
    looking, may_end = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def look(clients: set[Client]) -> None:
        looks.append(set(clients))
        loop.call_soon_threadsafe(looking.set)
        assert may_end.wait(30), "the event loop waits for the look"

    connections = Connections(look, delay_s=0.001)
    connections.end_soon(("127.0.0.1", 1))
    async with asyncio.timeout(30):
        await looking.wait()
        looking.clear()
        for port in (2, 3):
            connections.end_soon(("127.0.0.1", port))
            await asyncio.sleep(0.01)
        assert looks == [{("127.0.0.1", 1)}]
        may_end.set()
        await looking.wait()
    assert looks == [{("127.0.0.1", 1)}, {("127.0.0.1", 2), ("127.0.0.1", 3)}]


async def test_a_look_that_fails_is_not_the_last() -> None:
    looks = 0
    looked = asyncio.Event()
    loop = asyncio.get_running_loop()

    def look(clients: set[Client]) -> None:
        nonlocal looks
        looks += 1
        loop.call_soon_threadsafe(looked.set)
        raise OSError(f"no descriptor left for {len(clients)}")

    connections = Connections(look, delay_s=0.001)
    async with asyncio.timeout(30):
        for number in (1, 2):
            connections.end_soon(("127.0.0.1", number))
            await looked.wait()
            looked.clear()
    assert looks == 2
