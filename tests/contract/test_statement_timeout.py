"""The statement timeout: who says it, and what becomes of a statement that is cut."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from holdfast import DatabaseError, Holdfast, InvalidValue
from holdfast.store import migrate
from holdfast.store.committer import patiently
from holdfast.store.migrate import Migration
from holdfast.store.postgres import Postgres
from holdfast.store.sqlite import SQLite
from holdfast.store.sqlite_limits import STEPS
from holdfast.store.timeouts import STATEMENT_TIMEOUT_MS, VARIABLE, environment_findings, statement_timeout_ms
from holdfast.store.types import Busy
from tests.conftest import IN_PROCESS, Opener, opening
from tests.contract.builders import assert_sound, create, entries
from tests.worker.places import until

LIMIT_MS = 300
MANY = 3_000
SLOW = "SELECT count(*) FROM {s}many a, {s}many b, {s}many c"
"""Nine digits of rows: no machine is through with it in time."""


@pytest.fixture(params=IN_PROCESS)
def configuration(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def another(database_url: str, schema: str) -> AsyncIterator[Opener]:
    async with opening(database_url, schema=schema) as opener:
        yield opener


@pytest.fixture
async def hurried(another: Opener) -> Holdfast:
    """A runtime whose statements have little time, beside a table that takes long to go through."""
    holdfast = await another(statement_timeout_ms=LIMIT_MS)
    numbers = ", ".join(f"({number})" for number in range(MANY))
    await holdfast._store.execute(("CREATE TABLE {s}many (n integer)", ()))
    await holdfast._store.execute((f"INSERT INTO {{s}}many (n) VALUES {numbers}", ()))
    return holdfast


def text(hf: Holdfast, sql: str) -> str:
    return hf._store.qualified(sql)


async def limits(hf: Holdfast) -> set[int]:
    """What the connections of each purpose say, in milliseconds."""
    database = hf._store._database
    if isinstance(database, SQLite):
        return {round(database._statement_timeout_s * 1_000)}
    assert isinstance(database, Postgres)
    lanes = database._opened()
    found: set[int] = set()
    for lane in (lanes.commits, lanes.exact, lanes.claims, lanes.beats, lanes.outbox, lanes.reads, lanes.hints):
        sql = "SELECT setting FROM pg_settings WHERE name = 'statement_timeout'"
        found.add(int(await lane.run(lambda connection: connection.fetchval(sql), lost=Busy)))  # noqa: B023
    return found


@pytest.mark.clause("XB-12")
@pytest.mark.parametrize(
    ("given", "said", "wanted"),
    [
        (None, None, STATEMENT_TIMEOUT_MS),
        (None, "2500", 2_500),
        (700, "2500", 700),
        (700, "soon", 700),
        *((None, bad, STATEMENT_TIMEOUT_MS) for bad in ("soon", "", "0", "-1", "2.5", "15s", "٣", "9" * 40)),
    ],
)
async def test_the_parameter_wins_over_the_environment_and_nonsense_there_is_ignored(
    another: Opener, monkeypatch: pytest.MonkeyPatch, given: int | None, said: str | None, wanted: int
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    if said is not None:
        monkeypatch.setenv(VARIABLE, said)

    hf = await another(statement_timeout_ms=given)

    assert await limits(hf) == {wanted}


@pytest.mark.clause("XB-12")
@pytest.mark.parametrize("given", [0, -1, 1.5, True, "100", 3_600_001])
def test_a_parameter_that_is_no_limit_is_refused(given: Any) -> None:
    with pytest.raises(InvalidValue, match="statement_timeout_ms"):
        Holdfast(":memory:", statement_timeout_ms=given)


@pytest.mark.clause("XB-12")
def test_what_is_ignored_is_said(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert statement_timeout_ms(None, {VARIABLE: "soon"}) == STATEMENT_TIMEOUT_MS

    assert [record.getMessage() for record in caplog.records if "'soon'" in record.getMessage()] != []
    assert [each.state for each in environment_findings({VARIABLE: "soon"})] == ["warning"]
    assert [each.state for each in environment_findings({VARIABLE: "200"})] == ["ok"]
    assert environment_findings({}) == []


@pytest.mark.clause("XB-12")
async def test_a_question_that_takes_too_long_is_cut_and_harms_nobody(hurried: Holdfast) -> None:
    database = hurried._store._database

    with pytest.raises(Busy) as busy:
        await database.fetch(text(hurried, SLOW))
    with pytest.raises(DatabaseError) as caught:
        await patiently(lambda: database.fetch_snapshot([(text(hurried, SLOW), ())]), patience_s=0.1)

    assert busy.value.timed_out
    assert caught.value.code == "database_timeout"
    assert await hurried._store.fetch("SELECT count(*) FROM {s}many") == [(MANY,)]


@pytest.mark.clause("XB-12")
async def test_a_write_that_is_cut_leaves_nothing_behind(hurried: Holdfast) -> None:
    database = hurried._store._database
    note = (text(hurried, "INSERT INTO {s}threads (thread, rev, at) VALUES ($1, 1, 1)"), ("notes",))
    remove = text(hurried, f"DELETE FROM {{s}}many WHERE n = ({SLOW})")
    heads = "SELECT thread FROM {s}threads"

    with pytest.raises(Busy) as busy:
        await database.execute([note, (remove, ())])
    left = await hurried._store.fetch(heads)
    await database.execute([note])

    assert busy.value.timed_out
    assert left == []
    assert await hurried._store.fetch(heads) == [("notes",)]


async def test_what_is_written_beside_it_is_not_cut(hurried: Holdfast) -> None:
    database = hurried._store._database
    put = text(hurried, "INSERT INTO {s}threads (thread, rev, at) VALUES ($1, 1, 1)")
    slow = [(text(hurried, f"DELETE FROM {{s}}many WHERE n = ({SLOW})"), ())]

    jobs = [database.execute(slow if place == 3 else [(put, (f"t{place}",))]) for place in range(8)]
    answers = await asyncio.gather(*jobs, return_exceptions=True)

    assert [type(answer).__name__ for answer in answers] == ["NoneType"] * 3 + ["Busy"] + ["NoneType"] * 4
    assert await hurried._store.fetch("SELECT count(*) FROM {s}threads") == [(7,)]


async def hold_up(hf: Holdfast) -> list[tuple[str, tuple[()]]]:
    """Make every new entry of the journal take too long; answers what puts it right."""
    if isinstance(hf._store._database, SQLite):
        await hf._store.execute((f"CREATE TRIGGER slow BEFORE INSERT ON journal BEGIN {SLOW}; END", ()))
        return [("DROP TRIGGER slow", ())]
    body = f"BEGIN PERFORM pg_sleep({LIMIT_MS / 100}); RETURN NEW; END"
    await hf._store.execute(
        (f"CREATE FUNCTION {{s}}slow() RETURNS trigger LANGUAGE plpgsql AS '{body}'", ()),
        ("CREATE TRIGGER slow BEFORE INSERT ON {s}journal FOR EACH ROW EXECUTE FUNCTION {s}slow()", ()),
    )
    return [("DROP TRIGGER slow ON {s}journal", ())]


@pytest.mark.clause("XB-12")
async def test_a_commit_that_is_cut_is_tried_again_and_happens_once(
    hurried: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = await create(hurried, input=None)
    before = await entries(hurried, run.run_id)
    cut: list[Busy] = []
    write = hurried._store._database.write

    async def noted(*args: Any) -> Any:
        try:
            return await write(*args)
        except Busy as error:
            cut.append(error)
            raise

    monkeypatch.setattr(hurried._store._database, "write", noted)
    repair = await hold_up(hurried)

    signalling = asyncio.create_task(hurried.signal(run.run_id, "hello"))
    await until(lambda: len(cut) > 1)
    meanwhile = await entries(hurried, run.run_id)
    await hurried._store.execute(*repair)
    await signalling

    assert all(error.timed_out for error in cut)
    assert meanwhile == before
    kinds = [entry.kind for entry in (await entries(hurried, run.run_id))[len(before) :]]
    assert kinds.count("signal_received") == 1
    await assert_sound(hurried)


async def test_a_migration_may_take_as_long_as_it_does(
    configuration: str, another: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    counting = f"WITH RECURSIVE n (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n WHERE x < {STEPS * 60})"
    sql = (
        f"SELECT pg_sleep({2 * LIMIT_MS / 1_000});"
        if configuration == "postgres"
        else f"{counting} SELECT max(x) FROM n;"
    )
    known = migrate.all_migrations
    monkeypatch.setattr(migrate, "all_migrations", lambda dialect: (*known(dialect), Migration(9_999, "slow", sql)))

    since = time.monotonic()
    hf = await another(statement_timeout_ms=LIMIT_MS)

    assert time.monotonic() - since > LIMIT_MS / 1_000
    assert await limits(hf) == {LIMIT_MS}


async def test_a_pooler_is_not_told_and_says_so(
    postgres_url: str, schema: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        async with opening(f"{postgres_url}&pooler=transaction", schema=schema) as another:
            hf = await another(statement_timeout_ms=700)
            found = await hf._store.fetch("SELECT current_setting('statement_timeout')")

    assert found == [("0",)]
    assert "ALTER ROLE" in caplog.text
