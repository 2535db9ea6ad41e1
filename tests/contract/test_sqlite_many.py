"""SQLite's statements for many rows: a step for many, by index, and nothing lost between the sizes."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from holdfast import Clog, Context, Done, Holdfast
from holdfast.store import sqlite_claims, sqlite_members
from holdfast.store.sqlite import SQLite
from holdfast.store.sqlite_many import SIZES, Many, answer
from holdfast.store.tables import INDEXES

STATEMENTS: dict[str, Many] = {
    f"{module.__name__.rpartition('.')[2]}.{name}": each
    for module in (sqlite_members, sqlite_claims)
    for name, each in vars(module).items()
    if isinstance(each, Many)
}
STATEMENTS |= {f"put {name}": each for name, each in sqlite_members._PUTS.items()}
STATEMENTS |= {f"drop {name}": each for name, each in sqlite_members._DROPS.items()}
TABLES = {*INDEXES, "runs", "journal", "sessions"}


@pytest.fixture
async def connection(tmp_path: Path) -> AsyncIterator[sqlite3.Connection]:
    path = tmp_path / "holdfast.db"
    async with Holdfast(str(path)):
        pass
    with closing(sqlite3.connect(path)) as connection:
        yield connection


@pytest.mark.parametrize("name", STATEMENTS)
@pytest.mark.parametrize("size", [1, max(SIZES)])
async def test_no_table_is_read_from_end_to_end(connection: sqlite3.Connection, name: str, size: int) -> None:
    text = STATEMENTS[name]._texts[size]
    plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {text}", (None,) * text.count("?"))]

    scanned = {step.split()[1] for step in plan if step.startswith("SCAN")}
    assert not scanned & (TABLES | {"t", "r", "w", "j"}), plan


@pytest.mark.parametrize("count", [0, 1, 2, 3, 63, 64, 65, 127, 200])
def test_rows_of_any_number_are_all_written_and_found_in_order(count: int) -> None:
    rows = [(number, f"name {number}") for number in range(count)]
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("CREATE TABLE things (number integer, name text)")
        sqlite_members.insert("things", ("number", "name")).run(connection, rows)
        found = answer(connection, "SELECT json_group_array(json_array(number, name)) FROM things", ())
        asked = Many("WITH n (number) AS (VALUES ", 1, ") SELECT json_group_array(number) FROM n")

        assert [tuple(row) for row in found] == rows
        assert asked.read(connection, [row[:1] for row in rows]) == [number for number, _ in rows]


async def test_a_batch_takes_as_many_statements_as_a_few_rows(tmp_path: Path) -> None:
    texts: list[str] = []
    async with Holdfast(str(tmp_path / "holdfast.db")) as hf:
        database = hf._store._database
        assert isinstance(database, SQLite)
        connection = database._opened()._connection
        assert connection is not None
        connection.set_trace_callback(texts.append)
        counts = []
        for size in (16, 64):
            texts.clear()
            await hf.create_runs([{"session_id": "s", "clog_id": "c", "input": 1}] * size)
            counts.append(len(texts))

    assert counts[0] == counts[1] < 16


async def test_a_first_entry_that_is_no_text_costs_its_neighbours_nothing(tmp_path: Path) -> None:
    path = str(tmp_path / "holdfast.db")
    async with Holdfast(path) as hf:
        clog = Clog("noop")
        clog.on_advance(nothing)
        hf.register(clog)
        harmed, sound = await hf.create_runs([{"session_id": "s", "clog_id": "noop", "input": 1}] * 2)
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute(
                "UPDATE journal SET data = CAST(x'ff' AS text) WHERE thread = ?", (f"run:{harmed.run_id}",)
            )
        worker = hf.worker()
        working = asyncio.create_task(worker.run())
        ended = await hf.result(sound.run_id, timeout=20)
        worker.stop()
        await working

    assert ended == 1


async def nothing(input: int, ctx: Context) -> Done:
    return Done(input)
