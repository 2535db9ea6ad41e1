"""A way to a provider that loses answers when told to: the request arrives, and nobody hears what became of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit


class Proxy:
    """Passes requests on. `lose` says how many of the next answers to `/token` are lost."""

    def __init__(self) -> None:
        self.url = ""
        self.target = ""
        self.lose = 0
        self.seen = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._pass_on(reader, writer)
        except ConnectionRefusedError:
            # Nobody is there: whoever asked hears no answer either.
            writer.transport.abort()
        finally:
            writer.close()
            await asyncio.gather(writer.wait_closed(), return_exceptions=True)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        answer = await self._asked(head.replace(b"\r\n", b"\r\nConnection: close\r\n", 1) + body)
        is_token = " /token " in first
        self.seen += is_token
        if is_token and self.lose:
            self.lose -= 1
        else:
            writer.write(answer)

    async def _asked(self, request: bytes) -> bytes:
        there = urlsplit(self.target)
        reader, writer = await asyncio.open_connection(there.hostname, there.port)
        writer.write(request)
        try:
            return await reader.read()
        finally:
            writer.close()
            await writer.wait_closed()


@asynccontextmanager
async def proxying() -> AsyncIterator[Proxy]:
    proxy = Proxy()
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        yield proxy
