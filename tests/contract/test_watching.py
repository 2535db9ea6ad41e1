"""Runs are told of to other processes only while somebody there watches runs; what makes work due always is."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import Any

import pytest

from holdfast import Done, Holdfast, ambient
from holdfast.store import hints, watchers
from holdfast.store.hints import EVERYTHING
from holdfast.store.watchers import ANSWER_S, ASKING, LATE_S, SAY_S, WATCHED_S, WATCHING, Watchers
from tests.conftest import Opener, opening
from tests.contract.builders import create
from tests.worker.places import clog, until

LONG_S = 60.0
"""Longer than anybody here waits: who waits for this moment to end fails."""
SOON_S = 20.0

on_postgres = pytest.mark.parametrize("configuration", ["postgres"])
"""Where processes tell each other what is new. A file says by itself that somebody has written to it."""


class Clock:
    """What `ambient.monotonic` says while a test moves it."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def monotonic(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(ambient, "monotonic", clock)
    return clock


class TestWhatIsKnown:
    def test_until_anything_is_heard_everybody_may_watch(self, monotonic: Clock) -> None:
        known = Watchers()
        monotonic.now += 1e9

        assert known.wanted(["run:a", "queue:q"]) == {"run:a", "queue:q"}

    def test_where_nobody_answers_nobody_watches(self, monotonic: Clock) -> None:
        known = Watchers()

        assert known.unknown(), "they must be asked"
        assert known.wanted(["run:a"]) == {"run:a"}, "an answer may be on its way"
        monotonic.now += ANSWER_S
        assert known.wanted(["run:a", "session:s", "queue:q", "outbox", "schedules", "mine"]) == {
            "queue:q",
            "outbox",
            "schedules",
            "mine",
        }

    def test_once_a_moment_is_often_enough_to_ask(self, monotonic: Clock) -> None:
        known = Watchers()

        asked = [known.unknown(), known.unknown()]
        monotonic.now += ANSWER_S
        asked.append(known.unknown())

        assert asked == [True, False, True]

    def test_who_watches_does_so_until_nothing_was_heard_of_it_for_long(self, monotonic: Clock) -> None:
        known = Watchers()
        known.unknown()
        monotonic.now += ANSWER_S

        known.heard()
        monotonic.now += WATCHED_S - 1
        assert known.are_there
        assert not known.unknown(), "it is known who watches"
        assert known.are_there
        monotonic.now += ANSWER_S
        assert not known.are_there

    def test_one_word_may_be_lost(self) -> None:
        assert WATCHED_S > 2 * SAY_S

    def test_to_have_missed_something_forgets_nobody(self, monotonic: Clock) -> None:
        known = Watchers()
        known.unknown()
        known.heard()

        known.unknown()
        monotonic.now += WATCHED_S - 1

        assert known.are_there

    @pytest.mark.parametrize(("late_s", "is_missed"), [(0.0, True), (LATE_S - 0.1, True), (LATE_S, False)])
    def test_who_begins_to_watch_may_have_missed_what_was_just_kept_back(
        self, monotonic: Clock, late_s: float, is_missed: bool
    ) -> None:
        known = Watchers()
        known.unknown()
        monotonic.now += ANSWER_S
        known.wanted(["run:a"])
        monotonic.now += late_s

        assert known.heard() is is_missed
        assert not known.heard(), "from now on it is told"

    def test_where_nothing_was_kept_back_nothing_is_missed(self, monotonic: Clock) -> None:
        known = Watchers()
        known.unknown()
        monotonic.now += ANSWER_S
        known.wanted(["queue:q"])

        assert not known.heard()


class Sent:
    """What a process tells others."""

    def __init__(self, hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
        self.topics: list[str] = []
        self._database = hf._store.hints._database
        self._send, self._write = self._database.send_hint, self._database.write
        monkeypatch.setattr(self._database, "send_hint", self.send)
        monkeypatch.setattr(self._database, "write", self.write)

    async def send(self, topics: Sequence[str]) -> None:
        self.topics += topics
        await self._send(topics)

    async def write(self, members: Any, commit_id: int, news: Sequence[str] = ()) -> Any:
        self.topics += news
        return await self._write(members, commit_id, news)

    @property
    def runs(self) -> list[str]:
        return [topic for topic in self.topics if topic.startswith(("run:", "session:"))]


def knows_nobody(hf: Holdfast) -> None:
    """As it is some time after it has asked who watches, and heard nothing."""
    hf._store.hints._watchers._until = -math.inf


async def echo(given: Any, ctx: Any) -> Done:
    return Done(given)


@pytest.fixture
async def open_hf(database_url: str, schema: str) -> Any:
    async with opening(database_url, schema=schema) as open_one:

        async def open_and_ask() -> Holdfast:
            hf = await open_one()
            # Its first question is no part of what a test looks at.
            await until(lambda: hf._store.hints._sender is None)
            return hf

        yield open_and_ask


@pytest.mark.clause("W-02")
@on_postgres
async def test_nobody_is_told_of_runs_that_nobody_watches(open_hf: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    hf, _ = await open_hf(), await open_hf()
    hf.register(clog("chat", echo))
    sent = Sent(hf, monkeypatch)
    knows_nobody(hf)

    await asyncio.gather(*(create(hf) for _ in range(3)))
    await create(hf)
    await hf.advance()
    await hf._store.hints.stop()

    assert sent.runs == []
    assert "queue:default" in sent.topics, "work is told of, whoever watches"


@on_postgres
async def test_after_a_moment_without_an_answer_nobody_is_told(
    open_hf: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchers, "ANSWER_S", 0.2)
    hf, _ = await open_hf(), await open_hf()
    sent = Sent(hf, monkeypatch)

    await asyncio.sleep(0.3)
    await create(hf)

    assert sent.runs == []


@pytest.mark.clause("W-02")
@on_postgres
@pytest.mark.parametrize("seconds", [0.0, 2.0])
async def test_whoever_waits_for_a_run_hears_of_its_end(
    open_hf: Opener, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    """Also if it begins to wait while the run is just being worked on by somebody who knew of nobody."""
    monkeypatch.setattr("holdfast.runtime.questions.POLL_S", LONG_S)
    working, waiting = await open_hf(), await open_hf()
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def slow(given: Any, ctx: Any) -> Done:
        begun.set()
        await may_end.wait()
        return Done(given)

    working.register(clog("chat", slow))
    run = await create(working)
    knows_nobody(working)
    advancing = asyncio.create_task(working.advance())
    await begun.wait()

    result = asyncio.create_task(waiting.result(run.run_id, timeout=SOON_S))
    await asyncio.sleep(seconds)
    may_end.set()

    assert await result == "hello"
    await advancing


@on_postgres
async def test_what_was_kept_back_a_moment_ago_is_made_up_for(open_hf: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    working, waiting = await open_hf(), await open_hf()
    knows_nobody(working)
    # What it says first is held up until it is too late for the run.
    sends, may_send = waiting._store.hints._database.send_hint, asyncio.Event()

    async def late(topics: Sequence[str]) -> None:
        await may_send.wait()
        await sends(topics)

    monkeypatch.setattr(waiting._store.hints._database, "send_hint", late)
    listener = waiting._store.listen("run:a")
    await create(working, run_id="a")
    assert not await listener.wait(0.2)

    may_send.set()

    assert await listener.wait(SOON_S)
    assert listener.news() == {EVERYTHING}


@on_postgres
async def test_who_begins_to_watch_during_a_commit_is_told_of_it(
    open_hf: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its news was chosen before; some of it travelled with the commit, and the rest is for whoever came since."""
    hf = await open_hf()
    sent = Sent(hf, monkeypatch)
    knows_nobody(hf)
    write = hf._store.hints._database.write

    async def slow(members: Any, commit_id: int, news: Sequence[str] = ()) -> Any:
        hf._store.hints._received([WATCHING])
        return await write(members, commit_id, news)

    monkeypatch.setattr(hf._store.hints._database, "write", slow)
    await create(hf, run_id="a")
    await hf._store.hints.stop()

    assert {"run:a", "session:s1"} <= set(sent.topics)
    assert sent.topics.count("queue:default") == 1


@on_postgres
async def test_whoever_comes_later_is_answered_by_those_who_watch(
    open_hf: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchers, "ANSWER_S", 0.3)
    watching = await open_hf()
    listener = watching._store.listen("run:a")
    late = await open_hf()

    await asyncio.sleep(0.5)
    listener.news()
    await create(late, run_id="a")
    await until(lambda: "run:a" in listener.news())


@on_postgres
async def test_it_is_said_again_for_as_long_as_somebody_watches(
    open_hf: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hints, "SAY_S", 0.1)
    hf = await open_hf()
    sent = Sent(hf, monkeypatch)

    listener, other = hf._store.listen("run:a"), hf._store.listen("session:s")
    await until(lambda: sent.topics.count(WATCHING) >= 3)
    other.close()
    said = len(sent.topics)
    await until(lambda: len(sent.topics) > said)
    listener.close()
    await asyncio.sleep(0.2)
    said = len(sent.topics)
    await asyncio.sleep(0.3)

    assert len(sent.topics) == said
    assert set(sent.topics) == {WATCHING}


@on_postgres
async def test_many_who_watch_in_one_process_say_it_once(open_hf: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    hf = await open_hf()
    sent = Sent(hf, monkeypatch)

    for number in range(50):
        hf._store.listen(f"run:{number}").close()
        await asyncio.sleep(0)
    await hf._store.hints.stop()

    assert sent.topics == [WATCHING]


@on_postgres
async def test_who_only_waits_for_work_says_nothing(open_hf: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    hf = await open_hf()
    sent = Sent(hf, monkeypatch)

    listener = hf._store.listen("queue:default", "schedules", "outbox")
    await asyncio.sleep(0.1)
    assert sent.topics == []
    listener.retune(["queue:default", "run:a"])
    await until(lambda: sent.topics == [WATCHING])


@on_postgres
async def test_whoever_lost_its_connection_asks_again_and_tells_meanwhile(
    open_hf: Opener, monkeypatch: pytest.MonkeyPatch, stranger: Any, schema: str
) -> None:
    hf = await open_hf()
    sent = Sent(hf, monkeypatch)
    knows_nobody(hf)
    listening = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query = $1"

    await stranger.fetch(listening, f'LISTEN "holdfast:{schema}"')
    await until(lambda: hf._store.hints._watchers.are_there)
    await create(hf, run_id="a")
    await until(lambda: {ASKING, "run:a"} <= set(sent.topics))


@on_postgres
async def test_what_processes_say_to_each_other_is_no_news(open_hf: Opener) -> None:
    hf = await open_hf()
    everything, work = hf._store.listen(), hf._store.listen("queue:default")
    everything.news()

    hf._store.hints._received([ASKING])
    hf._store.hints._received([WATCHING])
    hf._store.hints._received([WATCHING, "queue:default"])

    assert everything.news() == {"queue:default"}
    assert work.news() == {"queue:default"}


@on_postgres
async def test_whoever_cannot_hear_tells_everything(database_url: str, schema: str, monkeypatch: Any) -> None:
    """Through a pooler nobody is heard, so nobody knows who watches."""
    separator = "&" if "?" in database_url else "?"
    async with Holdfast(f"{database_url}{separator}pooler=transaction", schema=schema) as hf:
        sent = Sent(hf, monkeypatch)
        await create(hf, run_id="a")
        await hf._store.hints.stop()

    assert "run:a" in sent.runs


@on_postgres
async def test_once_it_is_closed_it_says_nothing_more(open_hf: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    hf = await open_hf()
    hf._store.listen("run:a")
    await until(lambda: hf._store.hints._sender is None)
    sent = Sent(hf, monkeypatch)

    await hf._store.hints.stop()
    knows_nobody(hf)
    hf._store.hints._received(())
    hf._store.hints._received([ASKING])
    hf._store.hints._say()
    hf._store.listen("run:b")
    await asyncio.sleep(0)

    assert sent.topics == []


@on_postgres
async def test_a_listener_of_another_thread_is_spoken_for_here(
    open_hf: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    hf = await open_hf()
    sent = Sent(hf, monkeypatch)

    async def listen() -> None:
        hf._store.listen("run:a")

    await asyncio.to_thread(asyncio.run, listen())
    await until(lambda: sent.topics == [WATCHING])
