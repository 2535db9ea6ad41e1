"""Rows that change have room to change where they are, so that their indexes stay as they are."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from holdfast import Clog, Context, Done, Holdfast

RUNS = 1_000


@pytest.fixture
def configuration() -> str:
    return "postgres"


async def test_the_end_of_a_tick_stays_on_its_page(hf: Holdfast, postgres_url: str, schema: str) -> None:
    clog = Clog("noop")

    @clog.on_advance
    async def nothing(input: int, ctx: Context) -> Done:
        return Done(input)

    hf.register(clog)
    runs = await hf.create_runs([{"session_id": "s", "clog_id": "noop", "input": 1}] * RUNS)
    # Many at once: a page full of ticks begins before the first of them ends.
    worker = hf.worker(concurrency=100)
    working = asyncio.create_task(worker.run())
    await asyncio.gather(*(hf.result(run.run_id) for run in runs))
    worker.stop()
    await working
    # A server's counters come when its sessions are over.
    await hf.close()

    moved = await counted(postgres_url, schema, "ticks", RUNS)
    assert moved["n_tup_hot_upd"] > 0.95 * RUNS
    moved = await counted(postgres_url, schema, "runs", 2 * RUNS)
    assert moved["n_tup_hot_upd"] > 0.8 * moved["n_tup_upd"]


async def counted(url: str, schema: str, table: str, updates: int) -> asyncpg.Record:
    sql = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE schemaname = $1 AND relname = $2"
    connection = await asyncpg.connect(url)
    try:
        for _ in range(200):
            row = await connection.fetchrow(sql, schema, table)
            if row["n_tup_upd"] >= updates:
                return row
            await asyncio.sleep(0.05)
        raise AssertionError(f"{table} was told to have changed {row['n_tup_upd']} times, not {updates}")
    finally:
        await connection.close()
