"""A proxy before a Postgres that knows where messages begin and end, and cuts a connection at any one of them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Self
from urllib.parse import parse_qs, urlsplit

PORT = 5432
PROTOCOL_3 = 3 << 16
PLACES = ("before", "inside", "after")


class Cut(NamedTuple):
    """Where to cut: at which message, counted in both directions, and how much of it still passes."""

    message: int
    where: str

    def passing(self, message: bytes) -> bytes:
        return {"before": b"", "inside": message[: max(1, len(message) // 2)], "after": message}[self.where]


class CutProxy:
    """Listens on loopback and carries messages to and from a server's socket. Counts and cuts only while armed."""

    def __init__(self, postgres_url: str) -> None:
        (folder,) = parse_qs(urlsplit(postgres_url).query)["host"]
        self._upstream = f"{folder}/.s.PGSQL.{PORT}"
        self._server: asyncio.Server | None = None
        self._pairs: set[_Pair] = set()
        self._armed = False
        self._cuts: dict[int, Cut] = {}
        self.count = 0
        self.struck = 0

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"postgresql://postgres:@127.0.0.1:{self._server.sockets[0].getsockname()[1]}/postgres?sslmode=disable"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.cut_all()
        await self._server.wait_closed()

    def cut_all(self) -> None:
        """Cut every connection, wherever it is."""
        for pair in self._pairs:
            pair.abort()

    @contextmanager
    def armed(self, cuts: Sequence[Cut]) -> Iterator[None]:
        """Count messages from here on, and cut at these."""
        self._armed, self._cuts = True, {cut.message: cut for cut in cuts}
        self.count = self.struck = 0
        try:
            yield
        finally:
            self._armed = False

    def due(self) -> Cut | None:
        """Count one message; the cut, if one falls here."""
        if not self._armed:
            return None
        self.count += 1
        cut = self._cuts.get(self.count)
        self.struck += cut is not None
        return cut

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            to_server = await asyncio.open_unix_connection(self._upstream)
        except OSError:
            writer.transport.abort()
            return
        pair = _Pair(self, (reader, writer), to_server)
        self._pairs.add(pair)
        try:
            await pair.carry()
        finally:
            self._pairs.discard(pair)


Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class _Pair:
    """One client's connection and ours on its behalf; they live and die together."""

    def __init__(self, proxy: CutProxy, client: Stream, server: Stream) -> None:
        self._proxy = proxy
        self._client = client
        self._server = server

    async def carry(self) -> None:
        pumps = [
            asyncio.create_task(self._pump(self._client[0], self._server[1], greets=True)),
            asyncio.create_task(self._pump(self._server[0], self._client[1], greets=False)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.abort()
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    def abort(self) -> None:
        self._client[1].transport.abort()
        self._server[1].transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, greets: bool) -> None:
        while True:
            message = await _greeting(reader) if greets else await _typed(reader)
            if greets and int.from_bytes(message[4:8]) == PROTOCOL_3:
                greets = False
            cut = self._proxy.due()
            writer.write(message if cut is None else cut.passing(message))
            await writer.drain()
            if cut is not None:
                return


async def _greeting(reader: asyncio.StreamReader) -> bytes:
    """The first message of a client has no type before its length."""
    length = await reader.readexactly(4)
    return length + await reader.readexactly(int.from_bytes(length) - 4)


async def _typed(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readexactly(5)
    return head + await reader.readexactly(int.from_bytes(head[1:]) - 4)
