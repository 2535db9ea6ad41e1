"""Schemas on the tests' Postgres. To make one takes longer than most tests do with it, so they are handed on, empty."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg

from holdfast import Holdfast

USES_MAX = 50
"""A schema that was used this often has gathered what emptied tables leave behind."""
CARETAKER = "holdfast tests: schemas"
"""Who looks after them, for tests that count sessions."""

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
    """Migrated schemas without a row, each lent to one test at a time.

    They are looked after over one session that is kept, in a loop of its own: a new session would have to learn the
    catalogs anew for each test. Call it where no loop runs.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._loop = asyncio.new_event_loop()
        self._connection: asyncpg.Connection | None = None
        self._clean: list[str] = []
        self._uses: dict[str, int] = {}
        self._forms: dict[str, tuple[str, list[int]]] = {}

    def take(self) -> str:
        return self._clean.pop() if self._clean else self._loop.run_until_complete(self._made())

    def give_back(self, name: str) -> None:
        """Empty it for the next test; one whose form was changed is thrown away."""
        self._uses[name] += 1
        self._loop.run_until_complete(self._emptied(name))

    def close(self) -> None:
        if self._connection is not None:
            # No farewell, since the other side may be gone already.
            self._connection.terminate()
            self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()

    async def _made(self) -> str:
        name = new_name()
        async with Holdfast(self._url, schema=name):
            pass
        self._forms[name] = await _form(await self._session(), name)
        self._uses[name] = 0
        return name

    async def _emptied(self, name: str) -> None:
        session = await self._session()
        if self._uses[name] < USES_MAX and await self._is_as_made(session, name):
            await _empty(session, name)
            self._clean.append(name)
        else:
            await session.execute(_DROP.format(name))

    async def _is_as_made(self, session: asyncpg.Connection, name: str) -> bool:
        try:
            return await _form(session, name) == self._forms[name]
        except (asyncpg.InvalidSchemaNameError, asyncpg.UndefinedTableError):
            return False

    async def _session(self) -> asyncpg.Connection:
        """The one that is kept, or another: there are tests that end every session they see."""
        if self._connection is not None:
            try:
                await self._connection.execute("SELECT 1")
                return self._connection
            except (asyncpg.PostgresConnectionError, asyncpg.InterfaceError, asyncpg.AdminShutdownError, OSError):
                self._connection.terminate()
        self._connection = await asyncpg.connect(self._url, server_settings={"application_name": CARETAKER})
        return self._connection


async def _form(connection: asyncpg.Connection, name: str) -> tuple[str, list[int]]:
    return await connection.fetchval(_FORM, name), await connection.fetchval(_MIGRATED.format(name))


async def _empty(connection: asyncpg.Connection, name: str) -> None:
    found = await connection.fetch(_HOLDERS, name)
    deletes = "; ".join(f'DELETE FROM "{name}"."{each}"' for each, kind in found if kind == "r")
    # Not by ALTER SEQUENCE, which would change the form.
    restarts = "; ".join(f'SELECT setval(\'"{name}"."{each}"\', 1, false)' for each, kind in found if kind == "S")
    # Nothing refers to anything while all of it goes.
    await connection.execute(f"SET session_replication_role = replica; {deletes}; {restarts}")
