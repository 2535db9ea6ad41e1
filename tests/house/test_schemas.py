"""Schemas that tests hand on: the next one finds it as if it were new, or finds another."""

from __future__ import annotations

import pytest

from holdfast import Holdfast
from tests.schemas import USES_MAX, Schemas, connected


async def test_the_next_test_finds_no_row_and_the_first_position(postgres_url: str) -> None:
    schemas = Schemas()
    name = await schemas.take(postgres_url)
    async with Holdfast(postgres_url, schema=name) as hf:
        await hf.create_run(session_id="s", clog_id="c", input=1)

    await schemas.give_back(postgres_url, name)

    assert await schemas.take(postgres_url) == name
    async with Holdfast(postgres_url, schema=name) as hf:
        assert await hf.journal.read("catalog") == []
        assert (await hf.list_runs()).items == []
        run = await hf.create_run(session_id="s", clog_id="c", input=1)
        (first,) = await hf.journal.read(f"run:{run.run_id}")
        assert first.position == 1
    await schemas.give_back(postgres_url, name)
    assert await schemas.take(postgres_url) == name


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
async def test_one_whose_form_was_changed_is_thrown_away(postgres_url: str, change: str) -> None:
    schemas = Schemas()
    name = await schemas.take(postgres_url)
    async with connected(postgres_url) as connection:
        await connection.execute(change.replace("{}", name))

    await schemas.give_back(postgres_url, name)

    assert await schemas.take(postgres_url) != name
    async with connected(postgres_url) as connection:
        assert not await connection.fetchval("SELECT count(*) FROM pg_namespace WHERE nspname = $1", name)


async def test_one_that_was_used_often_is_thrown_away(postgres_url: str) -> None:
    schemas = Schemas()
    name = await schemas.take(postgres_url)
    for _ in range(USES_MAX - 1):
        await schemas.give_back(postgres_url, name)
        assert await schemas.take(postgres_url) == name

    await schemas.give_back(postgres_url, name)

    assert await schemas.take(postgres_url) != name
