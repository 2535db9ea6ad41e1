"""Finished runs by the hundred thousand: a few real ones, copied inside the database under other ids."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

import asyncpg

REAL = 1_000
HEX = 8


async def copy(url: str, tables: Mapping[str, Sequence[str]], times: int, made_anew: Sequence[str] = ()) -> None:
    """Copy every row that many times. In these columns the first digits of an id become the number of the copy.

    Ids begin with their time, so copies come before all that is made later, as old runs do. Columns that are
    `made_anew` keep their defaults.
    """
    connection = await asyncpg.connect(url)
    try:
        for table, ids in tables.items():
            await _copy(connection, table, ids, times, made_anew)
        await connection.execute("VACUUM ANALYZE")
    finally:
        await connection.close()


async def _copy(
    connection: asyncpg.Connection, table: str, ids: Sequence[str], times: int, made_anew: Sequence[str]
) -> None:
    sql = """
        SELECT attname FROM pg_attribute
        WHERE attrelid = $1::regclass AND attnum > 0 AND NOT attisdropped AND attgenerated = '' ORDER BY attnum
    """
    columns = [row[0] for row in await connection.fetch(sql, table) if row[0] not in made_anew]
    copied = ", ".join(_renamed(column) if column in ids else column for column in columns)
    async with _packed(connection, table):
        await connection.execute(
            f"INSERT INTO {table} ({', '.join(columns)}) SELECT {copied} FROM {table}, generate_series(1, {times}) k"
        )


@asynccontextmanager
async def _packed(connection: asyncpg.Connection, table: str) -> AsyncIterator[None]:
    """Rows that are over have used the room that was left for their changes. Copied with that room, they would lie on
    pages with gaps that no table has which grew row by row, and the next new row would go into the oldest of them."""
    sql = """
        SELECT option_value FROM pg_class, pg_options_to_table(reloptions)
        WHERE pg_class.oid = $1::regclass AND option_name = 'fillfactor'
    """
    room = await connection.fetchval(sql, table)
    if room is None:
        yield
        return
    await connection.execute(f"ALTER TABLE {table} SET (fillfactor = 100)")
    yield
    await connection.execute(f"ALTER TABLE {table} SET (fillfactor = {room})")


def _renamed(column: str) -> str:
    """`run:` stays before an id that has it."""
    number = f"lpad(to_hex(k), {HEX}, '0')"
    return f"regexp_replace({column}, '^(run:)?.{{{HEX}}}', '\\1' || {number})"
