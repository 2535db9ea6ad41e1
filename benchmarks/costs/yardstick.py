"""Raw statements of the same shape, on tables of their own that do not grow: what this machine gives at this moment."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import asyncpg

QUEUE = "default"
HOT = "hot"
BODY = '{"text":"' + "x" * 100 + '"}'
_TABLES = (
    "CREATE TABLE raw_heads (id text PRIMARY KEY, rev integer NOT NULL)",
    "CREATE TABLE raw_entries (thread text, rev integer, data text NOT NULL, PRIMARY KEY (thread, rev))",
    "CREATE TABLE raw_work (id integer PRIMARY KEY, queue text NOT NULL, owner text)",
    "CREATE INDEX raw_work_free ON raw_work (queue, id) WHERE owner IS NULL",
    f"INSERT INTO raw_heads VALUES ('{HOT}', 0)",
)
_CLAIM = """
    UPDATE raw_work SET owner = 'me' WHERE id IN (
        SELECT id FROM raw_work WHERE queue = {queue} AND owner IS NULL ORDER BY id LIMIT {limit} {skip_locked}
    ) RETURNING id
"""
_APPEND = """
    WITH head AS (UPDATE raw_heads SET rev = rev + 1 WHERE id = $1 RETURNING rev)
    INSERT INTO raw_entries SELECT $1, rev, $2 FROM head
"""


class Raw(Protocol):
    """Each call is one statement, or one transaction, that waits for the disk where it writes."""

    async def claim(self, queue: str, limit: int) -> int: ...

    async def append(self) -> None: ...

    async def read(self, length: int) -> int: ...

    async def prepare(self, work: int, lengths: Sequence[int]) -> None:
        """Rows to claim, and threads of these lengths to read."""

    async def close(self) -> None: ...


def thread_of(length: int) -> str:
    return f"thread-{length}"


class RawPostgres:
    """On a connection of its own, in the same database."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        self._connection = connection

    @classmethod
    async def open(cls, url: str) -> RawPostgres:
        connection = await asyncpg.connect(url)
        for statement in _TABLES:
            await connection.execute(statement)
        return cls(connection)

    async def claim(self, queue: str, limit: int) -> int:
        sql = _CLAIM.format(queue="$1", limit="$2", skip_locked="FOR UPDATE SKIP LOCKED")
        return len(await self._connection.fetch(sql, queue, limit))

    async def append(self) -> None:
        await self._connection.execute(_APPEND, HOT, BODY)

    async def read(self, length: int) -> int:
        sql = "SELECT rev, data FROM raw_entries WHERE thread = $1 ORDER BY rev"
        return len(await self._connection.fetch(sql, thread_of(length)))

    async def prepare(self, work: int, lengths: Sequence[int]) -> None:
        await self._connection.execute("TRUNCATE raw_work")
        sql = "INSERT INTO raw_work SELECT n, $2::text FROM generate_series(1, $1::integer) n"
        await self._connection.execute(sql, work, QUEUE)
        for length in lengths:
            sql = """
                INSERT INTO raw_entries SELECT $1::text, n, $2::text FROM generate_series(1, $3::integer) n
                ON CONFLICT DO NOTHING
            """
            await self._connection.execute(sql, thread_of(length), BODY, length)
        await self._connection.execute("ANALYZE raw_work, raw_entries")

    async def close(self) -> None:
        await self._connection.close()


class RawSqlite:
    """On a file beside ours, so that neither waits for the other's lock. A thread does the work, as in the store."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")
        for statement in _TABLES:
            self._connection.execute(statement)

    async def claim(self, queue: str, limit: int) -> int:
        sql = _CLAIM.format(queue="?", limit="?", skip_locked="")
        return len(await self._run((sql, (queue, limit))))

    async def append(self) -> None:
        await self._run(
            ("UPDATE raw_heads SET rev = rev + 1 WHERE id = ?", (HOT,)),
            ("INSERT INTO raw_entries SELECT id, rev, ? FROM raw_heads WHERE id = ?", (BODY, HOT)),
        )

    async def read(self, length: int) -> int:
        sql = "SELECT rev, data FROM raw_entries WHERE thread = ? ORDER BY rev"
        return len(await asyncio.to_thread(lambda: self._connection.execute(sql, (thread_of(length),)).fetchall()))

    async def prepare(self, work: int, lengths: Sequence[int]) -> None:
        series = "WITH RECURSIVE s (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < ?)"
        entries = f"INSERT OR IGNORE INTO raw_entries {series} SELECT ?, n, ? FROM s"
        await self._run(
            ("DELETE FROM raw_work", ()),
            (f"INSERT INTO raw_work {series} SELECT n, ?, NULL FROM s", (work, QUEUE)),
            *((entries, (length, thread_of(length), BODY)) for length in lengths),
        )

    async def close(self) -> None:
        self._connection.close()

    async def _run(self, *statements: tuple[str, Sequence[Any]]) -> list[Any]:
        return await asyncio.to_thread(self._commit, statements)

    def _commit(self, statements: Sequence[tuple[str, Sequence[Any]]]) -> list[Any]:
        self._connection.execute("BEGIN IMMEDIATE")
        rows: list[Any] = []
        for sql, values in statements:
            rows = self._connection.execute(sql, values).fetchall()
        self._connection.execute("COMMIT")
        return rows
