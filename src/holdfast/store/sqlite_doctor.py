"""What can be wrong with a SQLite file and the place it lives in."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from holdfast.errors import DatabaseError
from holdfast.store.findings import Finding, State, schema_finding
from holdfast.store.sqlite import MEMORY, OLDEST
from holdfast.store.sqlite_files import check_place, filesystem

WAL_BYTES_MAX = 64 << 20
FREE_BYTES_LOW = 1 << 30
FREE_BYTES_MIN = 100 << 20


async def examine(path: str) -> list[Finding]:
    """The library, the place, the file. A file that is not there yet is no problem: opening makes it."""
    return await asyncio.to_thread(_examine, path)


def look_at_schema(path: str) -> Finding:
    """How the schema stands. Raises `DatabaseError` unless there is a file that can be read."""
    if path == MEMORY:
        raise DatabaseError(
            "a database in memory ends with this command; name a file or a Postgres", code="unknown_database"
        )
    check_place(Path(path))
    if not os.path.exists(path):
        raise DatabaseError(
            f"there is no database {path}; `holdfast migrate` makes one, --db names another", code="database_missing"
        )
    try:
        with _reading(Path(path)) as connection:
            return _schema(connection)
    except sqlite3.Error as error:
        raise DatabaseError(f"{path} cannot be opened: {error}", code="database_unusable") from error


def _examine(path: str) -> list[Finding]:
    if path == MEMORY:
        note = "everything in it ends with the process; name a file for anything that must last"
        return [_library(), Finding(name="place", state="warning", found="in memory", advice=note)]
    file = Path(path)
    found = [_library(), _place(file)]
    if found[-1].state == "problem":
        return found
    found += [_disk(file), _wal(file)]
    if not file.exists():
        return [
            *found,
            Finding(name="file", state="ok", found=f"{path} does not exist yet; `holdfast migrate` makes it"),
        ]
    return [*found, *_file(file)]


def _library() -> Finding:
    version = sqlite3.sqlite_version
    if sqlite3.sqlite_version_info >= OLDEST:
        return Finding(name="version", state="ok", found=f"SQLite {version}")
    return Finding(
        name="version",
        state="problem",
        found=f"SQLite {version} is too old",
        advice="use a Python whose sqlite3 module has SQLite 3.37 or newer",
    )


def _place(file: Path) -> Finding:
    kind = filesystem(file.parent) or "unknown filesystem"
    try:
        check_place(file)
    except DatabaseError as error:
        return Finding(name="place", state="problem", found=str(error), advice="choose another place with --db")
    return Finding(name="place", state="ok", found=f"{file.parent.resolve()} ({kind})")


def _disk(file: Path) -> Finding:
    free = shutil.disk_usage(file.parent).free
    if free >= FREE_BYTES_LOW:
        return Finding(name="free disk", state="ok", found=size(free))
    state: State = "problem" if free < FREE_BYTES_MIN else "warning"
    advice = "make room: when the disk is full, nothing more is accepted"
    return Finding(name="free disk", state=state, found=size(free), advice=advice)


def _wal(file: Path) -> Finding:
    wal = Path(f"{file}-wal")
    length = wal.stat().st_size if wal.exists() else 0
    if length <= WAL_BYTES_MAX:
        return Finding(name="WAL size", state="ok", found=size(length))
    return Finding(
        name="WAL size",
        state="warning",
        found=f"{size(length)}: someone reads for so long that the log cannot be emptied",
        advice="find and end the long reader (a shell, a backup, a debugger), then let Holdfast write once",
    )


def _file(file: Path) -> list[Finding]:
    """What the file says of itself, read without changing anything."""
    if file.stat().st_size == 0:
        return [Finding(name="file", state="ok", found="empty; `holdfast migrate` fills it")]
    try:
        with _reading(file) as connection:
            return [_journal_mode(file), _synchronous(), _schema(connection)]
    except sqlite3.Error as error:
        advice = "restore a backup, or name another file with --db"
        return [Finding(name="file", state="problem", found=f"{file} cannot be read: {error}", advice=advice)]


@contextmanager
def _reading(file: Path) -> Iterator[sqlite3.Connection]:
    # Without a log nobody has the file open; then even the files that SQLite puts beside it can be spared.
    mode = "mode=ro" if os.path.exists(f"{file}-wal") else "immutable=1"
    connection = sqlite3.connect(f"file:{quote(os.fspath(file.resolve()))}?{mode}", uri=True, timeout=2.0)
    try:
        yield connection
    finally:
        connection.close()


def _journal_mode(file: Path) -> Finding:
    # From the header, where SQLite keeps it: a connection that may not write anything does not know.
    with file.open("rb") as opened:
        is_wal = opened.read(20)[18:] == b"\x02\x02"
    if is_wal:
        return Finding(name="journal mode", state="ok", found="wal")
    advice = "close whoever else has the file open; Holdfast turns WAL on when it opens it"
    return Finding(name="journal mode", state="warning", found="a rollback journal, not wal", advice=advice)


def _synchronous() -> Finding:
    # Not a property of the file: each connection chooses, and ours choose FULL.
    return Finding(name="synchronous", state="ok", found="FULL, set by Holdfast on every connection")


def _schema(connection: sqlite3.Connection) -> Finding:
    named = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'holdfast_migrations'").fetchone()
    rows = connection.execute("SELECT version FROM holdfast_migrations").fetchall() if named else []
    return schema_finding("sqlite", {row[0] for row in rows})


def size(count: int) -> str:
    """A number of bytes as people say it."""
    for unit, one in (("GB", 1 << 30), ("MB", 1 << 20), ("kB", 1 << 10)):
        if count >= one:
            return f"{count / one:.1f} {unit}"
    return f"{count} bytes"
