"""Where a slice is measured: a database of its own on the one Postgres, or a file; and what can be read off it."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import NamedTuple, Protocol
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import psutil

from tests.servers import postgres


class Meters(NamedTuple):
    """What the database has done so far; zeros where it does not say."""

    cpu_s: float
    wal_bytes: int = 0
    transactions: int = 0
    """That wrote something: each is one wait for the disk, unless the server joins them."""


class Place(Protocol):
    """A fresh database that holds the tables of one side."""

    url: str

    async def count(self, sql: str) -> int: ...

    async def meters(self) -> Meters | None: ...

    async def settle(self) -> None: ...


class PostgresPlace:
    """A database of its own on the shared server."""

    def __init__(self, url: str, connection: asyncpg.Connection, server: psutil.Process) -> None:
        self.url = url
        self._connection = connection
        self._server = server

    async def count(self, sql: str) -> int:
        return int(await self._connection.fetchval(sql))

    async def meters(self) -> Meters:
        sql = (
            "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0'), pg_snapshot_xmax(pg_current_snapshot())::text"
        )
        wal_bytes, next_xid = await self._connection.fetchrow(sql)
        return Meters(self._cpu_s(), int(wal_bytes), int(next_xid))

    def _cpu_s(self) -> float:
        """Of the server and its processes, those that are gone included."""
        own = self._server.cpu_times()
        used = own.user + own.system + own.children_user + own.children_system
        for child in self._server.children(recursive=True):
            with _gone_is_fine():
                times = child.cpu_times()
                used += times.user + times.system
        return float(used)

    async def settle(self) -> None:
        """What autovacuum would have done by the time a backlog this long has gathered."""
        await self._connection.execute("VACUUM ANALYZE")


@contextmanager
def _gone_is_fine() -> Iterator[None]:
    try:
        yield
    except psutil.NoSuchProcess:
        return


class SqlitePlace:
    """A file of its own."""

    def __init__(self, path: Path) -> None:
        self.url = str(path)

    async def count(self, sql: str) -> int:
        return await asyncio.to_thread(self._count, sql)

    def _count(self, sql: str) -> int:
        with closing(sqlite3.connect(f"file:{self.url}?mode=ro", uri=True, timeout=30)) as connection:
            return int(connection.execute(sql).fetchone()[0])

    async def meters(self) -> None:
        return None

    async def settle(self) -> None:
        return None


class Server:
    """One Postgres for all sides. Each side's tables are made once and copied for each slice."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self._process = psutil.Process(int((folder / "postmaster.pid").read_text().split()[0]))
        self._number = 0

    def address(self, database: str) -> str:
        return urlunsplit(urlsplit(self.url)._replace(path=f"/{database}"))

    async def settings(self) -> dict[str, str]:
        """What a reader must know of the server to believe a number."""
        names = ("server_version", "fsync", "synchronous_commit", "full_page_writes", "shared_buffers")
        connection = await asyncpg.connect(self.url)
        try:
            return {name: await connection.fetchval(f"SHOW {name}") for name in names}
        finally:
            await connection.close()

    async def make(self, database: str, template: str = "template1", *, is_large: bool = False) -> str:
        """A copy of a template. Copying files waits for a checkpoint, which only pays where there are many."""
        strategy = "file_copy" if is_large else "wal_log"
        await self._do(f'DROP DATABASE IF EXISTS "{database}" WITH (FORCE)')
        await self._do(f'CREATE DATABASE "{database}" TEMPLATE "{template}" STRATEGY {strategy}')
        return self.address(database)

    @asynccontextmanager
    async def place(self, template: str, *, is_large: bool = False) -> AsyncIterator[PostgresPlace]:
        self._number += 1
        name = f"slice_{self._number}"
        url = await self.make(name, template, is_large=is_large)
        connection = await asyncpg.connect(url)
        try:
            yield PostgresPlace(url, connection, self._process)
        finally:
            await connection.close()
            await self._do(f'DROP DATABASE "{name}" WITH (FORCE)')

    async def _do(self, sql: str) -> None:
        connection = await asyncpg.connect(self.url)
        try:
            await connection.execute(sql)
        finally:
            await connection.close()


@contextmanager
def server(folder: Path) -> Iterator[Server]:
    with postgres(folder) as url:
        yield Server(url, folder)


@contextmanager
def sqlite_place(template: Path, folder: Path) -> Iterator[SqlitePlace]:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    copied = folder / "bench.db"
    # All files of the database: some sides keep locks or a log beside it.
    for file in template.parent.glob(f"{template.name}*"):
        shutil.copy(file, folder / file.name.replace(template.name, copied.name))
    try:
        yield SqlitePlace(copied)
    finally:
        shutil.rmtree(folder)
