"""Schemas that tests hand on: the next one finds it as if it were new, or finds another."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from holdfast import Holdfast
from tests.schemas import USES_MAX, Schemas, connected


@pytest.fixture
def schemas(postgres_url: str) -> Iterator[Schemas]:
    kept = Schemas(postgres_url)
    yield kept
    kept.close()


async def test_the_next_test_finds_no_row_and_the_first_position(schemas: Schemas, postgres_url: str) -> None:
    name = await asyncio.to_thread(schemas.take)
    async with Holdfast(postgres_url, schema=name) as hf:
        await hf.create_run(session_id="s", clog_id="c", input=1)

    await asyncio.to_thread(schemas.give_back, name)

    assert await asyncio.to_thread(schemas.take) == name
    async with Holdfast(postgres_url, schema=name) as hf:
        assert await hf.journal.read("catalog") == []
        assert (await hf.list_runs()).items == []
        run = await hf.create_run(session_id="s", clog_id="c", input=1)
        (first,) = await hf.journal.read(f"run:{run.run_id}")
        assert first.position == 1
    await asyncio.to_thread(schemas.give_back, name)
    assert await asyncio.to_thread(schemas.take) == name


@pytest.mark.parametrize(
    "change",
    [
        'ALTER TABLE "{}".runs ADD COLUMN more text',
        'DROP INDEX "{}".runs_by_age',
        'ALTER TABLE "{}".work SET (fillfactor = 90)',
        'ALTER TABLE "{}".runs DROP CONSTRAINT runs_session_id_user_id_fkey',
        'INSERT INTO "{}".migrations SELECT 9999, name, applied_at FROM "{}".migrations',
        'DROP TABLE "{}".migrations',
        'DROP SCHEMA "{}" CASCADE',
    ],
)
async def test_one_whose_form_was_changed_is_thrown_away(schemas: Schemas, postgres_url: str, change: str) -> None:
    name = await asyncio.to_thread(schemas.take)
    async with connected(postgres_url) as connection:
        await connection.execute(change.replace("{}", name))

    await asyncio.to_thread(schemas.give_back, name)

    assert await asyncio.to_thread(schemas.take) != name
    async with connected(postgres_url) as connection:
        assert not await connection.fetchval("SELECT count(*) FROM pg_namespace WHERE nspname = $1", name)


def test_one_that_was_used_often_is_thrown_away(schemas: Schemas) -> None:
    name = schemas.take()
    for _ in range(USES_MAX - 1):
        schemas.give_back(name)
        assert schemas.take() == name

    schemas.give_back(name)

    assert schemas.take() != name


async def test_the_session_may_be_ended_by_a_test(schemas: Schemas, postgres_url: str) -> None:
    name = await asyncio.to_thread(schemas.take)
    async with connected(postgres_url) as connection:
        ended = await connection.fetch(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
            " WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
        )
    assert ended

    await asyncio.to_thread(schemas.give_back, name)

    assert await asyncio.to_thread(schemas.take) == name
