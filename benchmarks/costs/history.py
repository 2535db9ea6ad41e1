"""Finished runs by the hundred thousand, as a worker leaves them: one real run, written again under other ids."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from itertools import islice
from typing import Any, NamedTuple

import asyncpg

from holdfast import Holdfast
from holdfast.protocol.values import digest

SCHEMA = "holdfast"
TABLES = ("runs", "ticks", "journal")
HEX = 8
PAGE = 50_000
MADE_ANEW = ("position",)

Row = tuple[Any, ...]


class Sample(NamedTuple):
    """Everything that one finished run has left behind, by table."""

    run_id: str
    tick_id: str
    columns: Mapping[str, tuple[str, ...]]
    rows: Mapping[str, Sequence[Row]]


async def sample(hf: Holdfast, run_id: str) -> Sample:
    """The rows of a run that had one tick and is over."""
    columns: dict[str, tuple[str, ...]] = {}
    rows: dict[str, Sequence[Row]] = {}
    wanted = {"runs": "run_id = $1", "ticks": "run_id = $1", "journal": "thread = 'run:' || $1 ORDER BY rev"}
    for table, which in wanted.items():
        columns[table] = await _columns(hf, table)
        names = ", ".join(columns[table])
        rows[table] = await hf._store.fetch(f"SELECT {names} FROM {{s}}{table} WHERE {which}", run_id)
    tick_id = rows["ticks"][0][columns["ticks"].index("tick_id")]
    return Sample(run_id, tick_id, columns, rows)


async def _columns(hf: Holdfast, table: str) -> tuple[str, ...]:
    if hf._store.qualified("{s}"):
        sql = """
            SELECT attname::text FROM pg_attribute
            WHERE attrelid = $1::text::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum
        """
        found = await hf._store.fetch(sql, hf._store.qualified(f"{{s}}{table}"))
    else:
        found = await hf._store.fetch("SELECT name FROM pragma_table_info($1)", table)
    return tuple(name for (name,) in found if name not in MADE_ANEW)


def copy_id(number: int, given: str) -> str:
    """Ids begin with their time, so copies come before all that is made later, as old runs do."""
    return f"{number:0{HEX}x}{given[HEX:]}"


def copies(of: Sample, table: str, numbers: range) -> Iterator[Row]:
    """The rows of the table for each copy; entries are proved by digests of their own."""
    columns = of.columns[table]
    for number in numbers:
        names = {of.run_id: copy_id(number, of.run_id), of.tick_id: copy_id(number, of.tick_id)}
        for row in of.rows[table]:
            values = {column: _renamed(value, names) for column, value in zip(columns, row, strict=True)}
            if table == "journal":
                values["digest"] = digest(values["kind"], values["data"])
            yield tuple(values.values())


def _renamed(value: Any, names: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        for name, other in names.items():
            value = value.replace(name, other)
    return value


async def fill(url: str, of: Sample, numbers: range, *, schema: str = SCHEMA) -> None:
    """Write the copies, and do what the server would have done by the time so many have gathered."""
    if url.startswith("postgres"):
        await _fill_postgres(url, of, numbers, schema)
    else:
        await asyncio.to_thread(_fill_sqlite, url, of, numbers)


async def _fill_postgres(url: str, of: Sample, numbers: range, schema: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        for table in TABLES:
            rows = copies(of, table, numbers)
            while page := list(islice(rows, PAGE)):
                await connection.copy_records_to_table(
                    table, records=page, columns=of.columns[table], schema_name=schema
                )
        await connection.execute("VACUUM ANALYZE")
    finally:
        await connection.close()


def _fill_sqlite(path: str, of: Sample, numbers: range) -> None:
    with closing(sqlite3.connect(path, timeout=30, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        for table in TABLES:
            columns = of.columns[table]
            places = ", ".join("?" * len(columns))
            sql = f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({places})"
            connection.executemany(sql, copies(of, table, numbers))
        connection.execute("COMMIT")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.execute("PRAGMA optimize")
