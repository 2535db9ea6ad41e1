"""What a finished run leaves on disk: bytes for each table and index."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg

from benchmarks.costs.history import SCHEMA, fill, sample
from benchmarks.places import Place
from holdfast import Clog, Context, Done, Holdfast

NOOP = "noop"
SESSION = "costs"
FILE = "the whole file"
_RELATIONS = """
    SELECT c.relname, CASE c.relkind WHEN 'i' THEN 'index' ELSE 'table' END, pg_relation_size(c.oid)
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = $1 AND c.relkind IN ('r', 'i') AND pg_relation_size(c.oid) > $2
    ORDER BY 3 DESC
"""


@dataclass(frozen=True)
class Sized:
    """Bytes for each run."""

    database: str
    relation: str
    sort: str
    runs: int
    bytes_each: float


async def measure(database: str, place: Place, runs: int) -> list[Sized]:
    """After that many no-op runs: three entries, one tick, one row."""
    noop = Clog(NOOP)

    @noop.on_advance
    async def nothing(input: Any, ctx: Context) -> Done:
        return Done(input)

    async with Holdfast(place.url) as hf:
        hf.register(noop)
        run = await hf.create_run(session_id=SESSION, clog_id=NOOP, input=1)
        await hf.advance()
        await fill(place.url, await sample(hf, run.run_id), range(1, runs + 1))
    if not place.url.startswith("postgres"):
        size = await asyncio.to_thread(lambda: Path(place.url).stat().st_size)
        return [Sized(database, FILE, "tables and indexes", runs, size / runs)]
    connection = await asyncpg.connect(place.url)
    try:
        # Less than a byte for each run is no growth.
        rows = await connection.fetch(_RELATIONS, SCHEMA, runs)
    finally:
        await connection.close()
    return [Sized(database, name, sort, runs, size / runs) for name, sort, size in rows]
