"""Schemas on the tests' Postgres. To make one takes longer than most tests do with it, so they are handed on, empty."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg

from holdfast import Holdfast

USES_MAX = 50
"""A schema that was used this often has gathered what emptied tables leave behind."""

# Whatever is defined there is a row of a catalog, and to change it writes that row anew; vacuuming does not.
_FORM = """
    WITH tables AS (SELECT oid, xmin FROM pg_class WHERE relnamespace = $1::text::regnamespace),
    parts AS (
        SELECT oid, xmin FROM tables
        UNION ALL SELECT attrelid, a.xmin FROM pg_attribute a JOIN tables ON tables.oid = attrelid
        UNION ALL SELECT indexrelid, i.xmin FROM pg_index i JOIN tables ON tables.oid = indexrelid
        UNION ALL SELECT t.oid, t.xmin FROM pg_trigger t JOIN tables ON tables.oid = tgrelid
        UNION ALL SELECT oid, xmin FROM pg_constraint WHERE connamespace = $1::text::regnamespace
        UNION ALL SELECT oid, xmin FROM pg_proc WHERE pronamespace = $1::text::regnamespace
    )
    SELECT count(*) || ' ' || sum(oid::bigint) || ' ' || sum(xmin::text::bigint) FROM parts
"""
_MIGRATED = 'SELECT array_agg(version ORDER BY version) FROM "{}".migrations'
_HOLDERS = """
    SELECT relname, relkind::text FROM pg_class
    WHERE relnamespace = $1::text::regnamespace AND relkind IN ('r', 'S') AND relname <> 'migrations'
"""
_DROP = 'DROP SCHEMA IF EXISTS "{}" CASCADE'


def new_name() -> str:
    return f"t{os.getpid()}_{os.urandom(4).hex()}"


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(url)
    try:
        yield connection
    finally:
        await connection.close()


async def drop(url: str, name: str) -> None:
    async with connected(url) as connection:
        await connection.execute(_DROP.format(name))


class Schemas:
    """Migrated schemas without a row, each lent to one test at a time."""

    def __init__(self) -> None:
        self._clean: list[str] = []
        self._uses: dict[str, int] = {}
        self._forms: dict[str, tuple[str, list[int]]] = {}

    async def take(self, url: str) -> str:
        if self._clean:
            return self._clean.pop()
        name = new_name()
        async with Holdfast(url, schema=name):
            pass
        async with connected(url) as connection:
            self._forms[name] = await _form(connection, name)
        self._uses[name] = 0
        return name

    async def give_back(self, url: str, name: str) -> None:
        """Empty it for the next test; one whose form was changed is thrown away."""
        self._uses[name] += 1
        async with connected(url) as connection:
            if self._uses[name] < USES_MAX and await self._is_as_made(connection, name):
                await _empty(connection, name)
                self._clean.append(name)
            else:
                await connection.execute(_DROP.format(name))

    async def _is_as_made(self, connection: asyncpg.Connection, name: str) -> bool:
        try:
            return await _form(connection, name) == self._forms[name]
        except (asyncpg.InvalidSchemaNameError, asyncpg.UndefinedTableError):
            return False


async def _form(connection: asyncpg.Connection, name: str) -> tuple[str, list[int]]:
    return await connection.fetchval(_FORM, name), await connection.fetchval(_MIGRATED.format(name))


async def _empty(connection: asyncpg.Connection, name: str) -> None:
    found = await connection.fetch(_HOLDERS, name)
    deletes = "; ".join(f'DELETE FROM "{name}"."{each}"' for each, kind in found if kind == "r")
    # Not by ALTER SEQUENCE, which would change the form.
    restarts = "; ".join(f'SELECT setval(\'"{name}"."{each}"\', 1, false)' for each, kind in found if kind == "S")
    # Nothing refers to anything while all of it goes.
    await connection.execute(f"SET session_replication_role = replica; {deletes}; {restarts}")
