"""`Wire`: a relay in front of Postgres that counts how often a client waits for an answer."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlencode, urlsplit, urlunsplit

SOCKET = ".s.PGSQL.5432"
CHUNK = 1 << 16


class Wire:
    """Round trips so far, over all connections: whatever a client sends before it is answered is one."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.trips = 0


class _Turns:
    """Who spoke last on one connection."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._is_asked = False

    def asked(self) -> None:
        if not self._is_asked:
            self._wire.trips += 1
        self._is_asked = True

    def answered(self) -> None:
        self._is_asked = False


def _near(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / SOCKET
    path.unlink(missing_ok=True)
    return path


@asynccontextmanager
async def relayed(url: str, folder: Path) -> AsyncIterator[Wire]:
    """The same server, seen through a relay."""
    parts = urlsplit(url)
    query = parse_qs(parts.query)
    real = Path(query["host"][0]) / SOCKET
    near = _near(folder)
    wire = Wire(urlunsplit(parts._replace(query=urlencode({"host": str(folder)}, safe="/"))))
    links: set[asyncio.Task[None]] = set()

    async def link(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_unix_connection(str(real))
        turns = _Turns(wire)
        for pump in (_pump(reader, far_writer, turns.asked), _pump(far_reader, writer, turns.answered)):
            task = asyncio.create_task(pump)
            links.add(task)
            task.add_done_callback(links.discard)

    server = await asyncio.start_unix_server(link, path=str(near))
    try:
        yield wire
    finally:
        server.close()
        for task in list(links):
            task.cancel()
        await asyncio.gather(*links, return_exceptions=True)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(near)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seen: Callable[[], None]) -> None:
    try:
        while data := await reader.read(CHUNK):
            seen()
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        return
    finally:
        writer.close()
