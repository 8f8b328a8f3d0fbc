"""A TCP proxy between a program and its server that can be cut or frozen, unlike the server itself."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from urllib.parse import urlsplit, urlunsplit


class Proxy:
    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._asking = asyncio.Event()
        self._answering = asyncio.Event()
        self.thaw()
        self.port = 0

    async def listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def cut(self) -> None:
        """Connections are reset and new ones refused until `listen`."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in list(self._open):
            writer.transport.abort()
        await asyncio.sleep(0)

    def freeze(self) -> None:
        """Connections stand and are accepted, but nothing moves until `thaw`."""
        self._asking.clear()
        self._answering.clear()

    def hold_answers(self) -> None:
        """Requests arrive, but nothing comes back until `thaw`."""
        self._answering.clear()

    def forget(self) -> None:
        """Connections that stand carry nothing any more, as after a failover or a firewall's restart; new ones do."""
        self.freeze()
        self._asking, self._answering = asyncio.Event(), asyncio.Event()
        self.thaw()

    def thaw(self) -> None:
        self._asking.set()
        self._answering.set()

    async def close(self) -> None:
        await self.cut()
        self.thaw()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        upstream_reader, upstream = await asyncio.open_connection(*self._target)
        self._open |= {writer, upstream}
        try:
            await asyncio.gather(
                self._pump(reader, upstream, self._asking), self._pump(upstream_reader, writer, self._answering)
            )
        finally:
            for one in (writer, upstream):
                one.transport.abort()
                self._open.discard(one)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, flowing: asyncio.Event) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                await flowing.wait()
                writer.write(data)
                await writer.drain()
        writer.transport.abort()


@contextlib.asynccontextmanager
async def through_proxy(url: str) -> AsyncGenerator[tuple[Proxy, str]]:
    """A proxy in front of the server that `url` names, and the URL that leads through it."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    proxy = Proxy(parts.hostname, parts.port)
    await proxy.listen()
    try:
        account = parts.netloc.rsplit("@", 1)[0]
        yield proxy, urlunsplit(parts._replace(netloc=f"{account}@127.0.0.1:{proxy.port}"))
    finally:
        await proxy.close()
