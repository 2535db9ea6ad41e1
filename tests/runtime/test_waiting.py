"""Waiting for a result: a run that was just created here is looked at when there is news of it, and never too late."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import Done, Holdfast
from holdfast.errors import NotFound, RunCancelled
from holdfast.store import newborn
from tests.contract.faulty import with_faults
from tests.worker.places import clog

LONG_S = 60.0
"""Longer than anybody here waits: who waits for this moment to end fails."""
SOON_S = 20.0
in_words = pytest.mark.parametrize("configuration", ["memory", "postgres"])
"""Where news says what it is about. A file says only that somebody has written to it."""


async def echo(given: Any, ctx: Any) -> Done:
    return Done(given)


@pytest.fixture
def hf(hf: Holdfast) -> Holdfast:
    hf.register(clog("echo", echo))
    return hf


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(newborn, "QUIET_S", LONG_S)


@in_words
@pytest.mark.usefixtures("quiet")
async def test_a_new_run_is_looked_at_once_when_it_has_ended(hf: Holdfast) -> None:
    run = await hf.create_run(session_id="s", clog_id="echo", input=1)
    calls = with_faults(hf).calls
    waiting = asyncio.create_task(hf.result(run.run_id, timeout=SOON_S))
    await asyncio.sleep(0.1)
    assert calls["fetch_by_key"] == 0

    await hf.advance()

    assert await waiting == 1
    assert calls["fetch_by_key"] == 1


@pytest.mark.usefixtures("quiet")
async def test_whoever_asks_after_the_news_is_answered_at_once(hf: Holdfast) -> None:
    run = await hf.create_run(session_id="s", clog_id="echo", input=1)
    await hf.advance()

    assert await hf.result(run.run_id, timeout=SOON_S) == 1


@pytest.mark.usefixtures("quiet")
async def test_of_somebody_elses_new_run_nothing_is_waited_for(hf: Holdfast) -> None:
    run = await hf.as_user("alice").create_run(session_id="s", clog_id="echo", input=1)

    with pytest.raises(NotFound):
        await hf.as_user("bob").result(run.run_id, timeout=SOON_S)
    await hf.advance()
    assert await hf.as_user("alice").result(run.run_id, timeout=SOON_S) == 1


@pytest.mark.usefixtures("quiet")
async def test_a_run_that_ends_in_the_commit_that_creates_it_is_not_new(hf: Holdfast) -> None:
    await asyncio.gather(
        hf.create_run(run_id="brief", session_id="s", clog_id="echo", input=1), hf.cancel("brief", "not at all")
    )
    sql = "SELECT count(DISTINCT commit_id) FROM {s}journal WHERE thread = $1"
    assert (await hf.journal.store.fetch(sql, "run:brief"))[0][0] == 1

    with pytest.raises(RunCancelled):
        await hf.result("brief", timeout=SOON_S)


async def test_news_that_is_lost_costs_a_moment(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    run = await hf.create_run(session_id="s", clog_id="echo", input=1)
    waiting = asyncio.create_task(hf.result(run.run_id, timeout=SOON_S))
    await asyncio.sleep(0)
    monkeypatch.setattr(hf.journal.store.hints, "_tell", lambda topics: None)

    await hf.advance()

    assert await waiting == 1


@in_words
@pytest.mark.usefixtures("quiet")
async def test_news_of_everything_is_news_of_a_new_run(hf: Holdfast) -> None:
    run = await hf.create_run(session_id="s", clog_id="echo", input=1)
    waiting = hf.journal.store.hints.newborn.quiet_s(f"run:{run.run_id}", None)
    assert 0 < waiting <= LONG_S

    hf.journal.store.hints._received(())

    assert hf.journal.store.hints.newborn.quiet_s(f"run:{run.run_id}", None) == 0


@in_words
@pytest.mark.usefixtures("quiet")
async def test_only_the_youngest_are_remembered(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(newborn, "NEWBORN_MAX", 2)
    made = [(await hf.create_run(session_id="s", clog_id="echo", input=1)).run_id for _ in range(3)]

    waits = [hf.journal.store.hints.newborn.quiet_s(f"run:{run_id}", None) > 0 for run_id in made]

    assert waits == [False, True, True]
    await hf.advance()


async def test_a_moment_later_a_run_is_new_no_more(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(newborn, "QUIET_S", 0.0)
    run = await hf.create_run(session_id="s", clog_id="echo", input=1)

    assert hf.journal.store.hints.newborn.quiet_s(f"run:{run.run_id}", None) == 0
    await hf.advance()
