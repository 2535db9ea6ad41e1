"""SQLite: one writer thread, short readers, `synchronous=FULL`, and the hot statements in SQLite's own best way."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from holdfast import ambient
from holdfast.errors import DatabaseError
from holdfast.store import migrate, recorder, slices
from holdfast.store.database import LockedPlan, OnHint, RecordPlan
from holdfast.store.sqlite_claims import claim, heartbeat
from holdfast.store.sqlite_files import Turnstile, check_place
from holdfast.store.sqlite_limits import LimitedConnection, unlimited
from holdfast.store.sqlite_members import append, write_members
from holdfast.store.sqlite_writer import Writer, WriterHere, WriterThread, mapped
from holdfast.store.timeouts import STATEMENT_TIMEOUT_MS
from holdfast.store.types import (
    Append,
    Beat,
    Beaten,
    Busy,
    Change,
    Claimed,
    ClaimRequest,
    FactKey,
    Mark,
    Member,
    Row,
    Slice,
    SliceRequest,
    Statement,
    Written,
)

T = TypeVar("T")
MEMORY = ":memory:"
BUSY_TIMEOUT_S = 5.0
PROBE_S = 0.05
OLDEST = (3, 37, 0)


class SQLite:
    """A database in one file, shared by the processes of one host; or in memory, for one process."""

    prefix = ""
    is_apart = False

    def __init__(
        self,
        path: str,
        clock: Callable[[], int] | None,
        *,
        busy_timeout_s: float = BUSY_TIMEOUT_S,
        statement_timeout_ms: int = STATEMENT_TIMEOUT_MS,
    ) -> None:
        self._path = path
        self._in_memory = path == MEMORY
        self._clock = clock or ambient.wall_us
        self._statement_timeout_s = statement_timeout_ms / 1_000
        self._busy_timeout_s = min(busy_timeout_s, self._statement_timeout_s)
        self._inode: tuple[int, int] | None = None
        self._turnstile: Turnstile | None = None
        self._writer: Writer | None = None
        self._readers: ThreadPoolExecutor | None = None
        self._idle_readers: list[sqlite3.Connection] = []
        self._probe: asyncio.Task[None] | None = None

    def beside(self) -> SQLite:
        return _Beside(self)

    async def open(self) -> None:
        if sqlite3.sqlite_version_info < OLDEST:
            raise DatabaseError(
                f"SQLite {sqlite3.sqlite_version} is too old; Holdfast needs 3.37 or newer", code="database_unusable"
            )
        if not self._in_memory:
            check_place(Path(self._path))
            self._turnstile = Turnstile(Path(self._path), timeout_s=self._busy_timeout_s)
            self._readers = ThreadPoolExecutor(2, thread_name_prefix="holdfast-sqlite-reader")
        kind = WriterHere if self._in_memory else WriterThread
        writer = kind(self._connect, self._clock, self._turnstile, self._check_file)
        try:
            await asyncio.to_thread(writer.start)
        except sqlite3.Error as error:
            await self.close()
            found = mapped(error)
            if isinstance(found, Busy):
                # Another process is just making the file what it should be.
                raise found from error
            raise DatabaseError(f"{self._path} cannot be opened: {error}", code="database_unusable") from error
        self._writer = writer

    async def close(self) -> None:
        """Let go of everything. What is asked afterwards is refused; closing again does nothing."""
        probe, self._probe = self._probe, None
        writer, self._writer = self._writer, None
        readers, self._readers = self._readers, None
        turnstile, self._turnstile = self._turnstile, None
        if probe is not None:
            probe.cancel()
            await asyncio.gather(probe, return_exceptions=True)
        if readers is not None:
            readers.shutdown()
            while self._idle_readers:
                self._idle_readers.pop().close()
        if writer is not None:
            await writer.stop()
        if turnstile is not None:
            turnstile.close()
        self._inode = None

    def _connect(self) -> sqlite3.Connection:
        # Only the first one may create the file: a later one, while the file is away, would put an empty one there.
        known = self._inode is not None
        connection = sqlite3.connect(
            f"file:{quote(str(self._path))}?mode=rw" if known else self._path,
            uri=known,
            isolation_level=None,
            check_same_thread=False,
            timeout=self._busy_timeout_s,
            cached_statements=256,
            factory=LimitedConnection,
        )
        connection.row_factory = sqlite3.Row
        try:
            self._prepare(connection)
            connection.limit(self._statement_timeout_s)
        except BaseException:
            connection.close()
            raise
        return connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        if not self._in_memory and mode != "wal":
            raise sqlite3.OperationalError(f"the file cannot use WAL (it answers {mode!r})")
        # FULL, said aloud: NORMAL loses acknowledged commits when the power goes.
        for pragma in ("synchronous = FULL", "foreign_keys = ON", "trusted_schema = OFF"):
            connection.execute(f"PRAGMA {pragma}")
        if not self._in_memory:
            stat = os.stat(self._path)
            self._inode = self._inode or (stat.st_dev, stat.st_ino)

    def _check_file(self) -> None:
        """A file that was moved or replaced under us must not be used: half the truth would be in each."""
        if self._inode is None:
            return
        try:
            stat = os.stat(self._path)
        except FileNotFoundError:
            raise DatabaseError(f"{self._path} was removed while open; restore it and reopen", code="database_replaced")  # noqa: B904
        if (stat.st_dev, stat.st_ino) != self._inode:
            raise DatabaseError(f"{self._path} was replaced while open; close and reopen", code="database_replaced")

    async def migrate(self) -> None:
        def job(connection: sqlite3.Connection, now: int) -> None:
            with unlimited(connection):
                _migrate(connection, now)

        await self._write(job)

    async def now(self) -> int:
        return self._clock()

    async def fetch(self, sql: str, *params: Any) -> list[Row]:
        return await self._read(lambda connection, now: _rows(connection, sql, params))

    async def fetch_by_key(self, sql: str, *params: Any) -> list[Row]:
        return await self.fetch(sql, *params)

    async def fetch_snapshot(self, queries: Sequence[tuple[str, tuple[Any, ...]]]) -> list[list[Row]]:
        return await self._read(
            lambda connection, now: _in_snapshot(
                connection, lambda: [_rows(connection, sql, params) for sql, params in queries]
            )
        )

    async def execute(self, statements: Sequence[tuple[str, tuple[Any, ...]]]) -> None:
        def job(connection: sqlite3.Connection, now: int) -> None:
            for sql, params in statements:
                connection.execute(sql, _numbered(params))

        await self._write(job)

    async def change(self, change: Change, *params: Any) -> list[Row]:
        def job(connection: sqlite3.Connection, now: int) -> list[Row]:
            given = {**_numbered(params), "now": now}
            *before, last = (_stamped(text) for text in change.sqlite)
            for text in before:
                connection.execute(text, given)
            return [tuple(row) for row in connection.execute(last, given)]

        return await self._write(job)

    async def read_slices(self, requests: Sequence[SliceRequest]) -> list[Slice]:
        def job(connection: sqlite3.Connection, now: int) -> list[Slice]:
            return _in_snapshot(connection, lambda: [_read_slice(connection, request, now) for request in requests])

        return await self._read(job)

    async def write(self, members: Sequence[Member], commit_id: int, news: Sequence[str] = ()) -> list[Written]:
        return await self._write(lambda connection, now: write_members(connection, members, now, commit_id))

    async def write_locked(self, request: SliceRequest, plan: LockedPlan, commit_id: int) -> int | None:
        def job(connection: sqlite3.Connection, now: int) -> int | None:
            seen = _read_slice(connection, request, now)
            at = max(now, seen.run["at"]) if seen.run else now
            member = plan(seen, at)
            if member is None or not _is_let_in(connection, member.guard):
                return None
            (written,) = write_members(connection, [member], at, commit_id)
            for sql, params in member.statements if written.at is not None else ():
                connection.execute(sql, _numbered(params))
            return written.at

        return await self._write(job)

    async def append(self, appends: Sequence[Append], commit_id: int) -> list[Written]:
        return await self._write(lambda connection, now: append(connection, appends, now, commit_id))

    async def record(self, keys: Sequence[FactKey], plan: RecordPlan, commit_id: int) -> None:
        def job(connection: sqlite3.Connection, now: int) -> None:
            seen = {key: recorder.split(_rows(connection, *recorder.latest(key, self.prefix))) for key in keys}
            for sql, params in recorder.changes(plan(seen, now), commit_id, self.prefix):
                connection.execute(sql, _numbered(params))

        await self._write(job)

    def locking(self, key: FactKey) -> Sequence[Statement]:
        return []

    async def landed(self, marks: Sequence[Mark], commit_id: int) -> dict[Mark, int]:
        def job(connection: sqlite3.Connection, now: int) -> dict[Mark, int]:
            found = {mark: connection.execute(_LANDED, (*mark, commit_id)).fetchone() for mark in marks}
            return {mark: row["at"] for mark, row in found.items() if row}

        return await self._read(job)

    async def claim(self, request: ClaimRequest, commit_id: int) -> list[Claimed]:
        return await self._write(lambda connection, now: claim(connection, request, now, commit_id))

    async def heartbeat(self, beats: Sequence[Beat], lease_us: int, commit_id: int) -> list[Beaten]:
        def job(connection: sqlite3.Connection, now: int) -> list[Beaten]:
            answers = (heartbeat(connection, beat, lease_us, now, commit_id) for beat in beats)
            return [answer for answer in answers if answer]

        return await self._write(job)

    async def send_hint(self, topics: Sequence[str]) -> None:
        """Other processes see the commit itself, through `data_version`."""

    async def listen(self, on_hint: OnHint) -> None:
        if not self._in_memory:
            self._probe = asyncio.create_task(self._watch(await self._connected(), on_hint))

    async def _watch(self, connection: sqlite3.Connection, on_hint: OnHint) -> None:
        """Ask a cheap question of one connection for ever: has another one committed?"""
        seen = None
        try:
            while True:
                version = connection.execute("PRAGMA data_version").fetchone()[0]
                if seen is not None and version != seen:
                    on_hint(())
                seen = version
                await asyncio.sleep(PROBE_S)
        finally:
            connection.close()

    async def _connected(self) -> sqlite3.Connection:
        """A connection of one's own; one that is ready only after the asker was cancelled is closed at once."""
        connecting = asyncio.ensure_future(asyncio.to_thread(self._connect))
        try:
            return await asyncio.shield(connecting)
        except asyncio.CancelledError:
            (await connecting).close()
            raise

    async def _write(self, job: Callable[[sqlite3.Connection, int], T]) -> T:
        return await self._opened().write(job)

    async def _read(self, job: Callable[[sqlite3.Connection, int], T]) -> T:
        writer = self._opened()
        if self._readers is None:
            return await writer.read(job)
        writer.check_process()
        return await asyncio.get_running_loop().run_in_executor(self._readers, self._read_with, job)

    def _read_with(self, job: Callable[[sqlite3.Connection, int], T]) -> T:
        self._check_file()
        connection = None
        try:
            connection = self._idle_readers.pop() if self._idle_readers else self._connect()
            return job(connection, self._clock())
        except sqlite3.Error as error:
            raise mapped(error) from error
        finally:
            if connection is not None:
                self._idle_readers.append(connection)

    def _opened(self) -> Writer:
        if self._writer is None:
            raise DatabaseError("the database is not open; use `async with` or open() first", code="not_open")
        return self._writer


class _Beside(SQLite):
    """The parts of another, which it neither opens nor closes: the writer answers any event loop of the process."""

    def __init__(self, owner: SQLite) -> None:
        self.__dict__ = owner.__dict__

    async def open(self) -> None:
        self._opened()

    async def close(self) -> None:
        return


def _numbered(params: tuple[Any, ...]) -> dict[str, Any]:
    """Portable texts say $1, $2 …, which SQLite takes as names."""
    return {str(number): value for number, value in enumerate(params, start=1)}


@lru_cache(maxsize=256)
def _stamped(text: str) -> str:
    return text.replace("{s}", "").replace("{now}", ":now")


def _rows(connection: sqlite3.Connection, sql: str, params: tuple[Any, ...]) -> list[Row]:
    try:
        return [tuple(row) for row in connection.execute(sql, _numbered(params))]
    except sqlite3.OperationalError as error:
        if "decode to UTF-8" not in str(error):
            raise
    # A damaged text must not hide the rest: it is read as well as it can be, and its digest tells on it.
    connection.text_factory = lambda raw: raw.decode(errors="replace")
    try:
        return [tuple(row) for row in connection.execute(sql, _numbered(params))]
    finally:
        connection.text_factory = str


def _in_snapshot(connection: sqlite3.Connection, read: Callable[[], T]) -> T:
    connection.execute("BEGIN")
    try:
        return read()
    finally:
        connection.execute("COMMIT")


def _migrate(connection: sqlite3.Connection, now: int) -> None:
    connection.execute(
        "CREATE TABLE IF NOT EXISTS holdfast_migrations (version integer PRIMARY KEY, name text, applied_at integer)"
    )
    applied = {row["version"] for row in connection.execute("SELECT version FROM holdfast_migrations")}
    for migration in migrate.pending("sqlite", applied):
        for statement in _statements(migration.sql):
            connection.execute(statement)
        connection.execute("INSERT INTO holdfast_migrations VALUES (?, ?, ?)", (migration.version, migration.name, now))


def _statements(script: str) -> Iterable[str]:
    # executescript() would commit first; the migration must stand or fall as one.
    text = ""
    for line in script.splitlines(keepends=True):
        text += line
        if sqlite3.complete_statement(text):
            yield text
            text = ""


_RUN = slices.RUN.format(s="")
_AWAITED = "(SELECT value FROM json_each(nullif(:awaited, '')))"
_RUNNABLES = "(SELECT value AS key FROM json_each(nullif(:runnables, '')))"
_PARTS = {name: part.format(s="", awaited=_AWAITED, runnables=_RUNNABLES) for name, part in slices.PARTS.items()}
_WHOLE = {name: part.format(s="") for name, part in slices.WHOLE.items()}
# An id that was used before is known by its first entry, or, where even that is gone, by its tombstone.
_FIRST = """
    SELECT lower(hex(digest)) AS digest FROM journal WHERE thread = 'run:' || :run_id AND rev = 1
    UNION ALL
    SELECT 'gone' FROM tombstones WHERE run_id = :run_id
"""
_LANDED = "SELECT at FROM journal WHERE thread = ? AND rev = ? AND commit_id = ?"


def _read_slice(connection: sqlite3.Connection, request: SliceRequest, now: int) -> Slice:
    params = request._asdict()
    chosen = _WHOLE if request.whole else _PARTS
    run = connection.execute(_RUN, params).fetchone()
    first = connection.execute(_FIRST, params).fetchone()
    parts = {name: [dict(row) for row in connection.execute(part, params)] for name, part in chosen.items()}
    return Slice(now=now, run=dict(run) if run else None, first_digest=first["digest"] if first else None, **parts)


def _is_let_in(connection: sqlite3.Connection, guard: Statement | None) -> bool:
    return guard is None or connection.execute(guard[0].format(s=""), _numbered(guard[1])).rowcount > 0
