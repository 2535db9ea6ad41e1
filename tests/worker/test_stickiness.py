"""Sessions that keep to the worker that served them last: preferred there, left alone elsewhere, for a time."""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from typing import Any

import pytest

from holdfast import Clog, Done, Holdfast
from holdfast.errors import InvalidValue
from holdfast.runtime.claims import Taken
from holdfast.runtime.stickiness import TTL_MIN_S, Stickiness
from tests.conftest import FakeClock, Opener
from tests.worker.nursery import Nursery
from tests.worker.places import Place, bodies, clog, ended, until, working

TTL_S = 60.0


async def rows(holdfast: Holdfast) -> dict[str, str]:
    """Which worker each session keeps to."""
    found = await holdfast._store.fetch("SELECT session_id, owner_id FROM {s}sticky_sessions")
    return {str(session): str(owner) for session, owner in found}


class Hand:
    """A sticky worker's claims, one at a time, on a clock that only the test moves."""

    def __init__(self, holdfast: Holdfast, owner: str) -> None:
        self._hf, self._owner = holdfast, owner
        self._sticky = Stickiness(holdfast._store, owner, TTL_S)

    async def take(self, limit: int = 1, **options: Any) -> list[Taken]:
        taken = await self._hf.take(["default"], owner=self._owner, limit=limit, sticky=True, **options)
        if taken:
            await self._sticky.keep([item.claim.run_id for item in taken])
        return taken

    async def sessions(self, limit: int = 1) -> list[str]:
        """The sessions it is given work of; the work is done at once."""
        found = []
        for item in await self.take(limit):
            await self._hf.complete(item.claim, Done())
            found.append(item.state.session_id)
        return found

    async def let_go(self) -> None:
        await self._sticky.let_go()


@pytest.fixture
async def timed(database_url: str, schema: str, clock: FakeClock) -> Any:
    async with Holdfast(database_url, schema=schema, clock=clock) as holdfast:
        yield holdfast


async def ask(holdfast: Holdfast, *sessions: str, **options: Any) -> list[str]:
    found = []
    for session in sessions:
        run = await holdfast.create_run(session_id=session, **{"clog_id": "chat", "input": 1, **options})
        found.append(run.run_id)
    return found


@pytest.mark.clause("WB-13")
async def test_own_sessions_come_first_and_those_of_others_not_at_all(timed: Holdfast, clock: FakeClock) -> None:
    ada, bob = Hand(timed, "ada"), Hand(timed, "bob")
    await ask(timed, "s1", "s2")
    assert await ada.sessions() == ["s1"]
    assert await bob.sessions() == ["s2"]

    clock.advance(1)
    await ask(timed, "s1")
    clock.advance(1)
    await ask(timed, "s3")
    clock.advance(1)
    await ask(timed, "s2", "s1")

    # The oldest is ada's, the next is nobody's, and bob's own is younger than both.
    assert await bob.sessions() == ["s2"]
    assert await bob.sessions() == ["s3"]
    assert await bob.sessions() == []
    assert await ada.sessions(limit=5) == ["s1", "s1"]
    assert await rows(timed) == {"s1": "ada", "s2": "bob", "s3": "bob"}


@pytest.mark.clause("WB-13")
async def test_a_session_is_anybodys_once_its_time_is_over(timed: Holdfast, clock: FakeClock) -> None:
    ada, bob = Hand(timed, "ada"), Hand(timed, "bob")
    await ask(timed, "s")
    assert await ada.sessions() == ["s"]
    await ask(timed, "s")

    clock.advance(TTL_S - 1)
    assert await bob.sessions() == []
    clock.advance(1)
    assert await bob.sessions() == ["s"]

    await ask(timed, "s")
    assert await ada.sessions() == []
    assert await rows(timed) == {"s": "bob"}


@pytest.mark.clause("WB-13")
async def test_every_claim_starts_the_time_anew_and_letting_go_ends_it(timed: Holdfast, clock: FakeClock) -> None:
    ada, bob = Hand(timed, "ada"), Hand(timed, "bob")
    for _ in range(3):
        await ask(timed, "s")
        assert await ada.sessions() == ["s"]
        clock.advance(TTL_S - 1)
    await ask(timed, "s")
    assert await bob.sessions() == []

    await ada.let_go()

    assert await bob.sessions() == ["s"]


@pytest.mark.clause("WB-13")
async def test_priority_goes_before_preference(timed: Holdfast, clock: FakeClock) -> None:
    ada = Hand(timed, "ada")
    await ask(timed, "mine")
    assert await ada.sessions() == ["mine"]
    await ask(timed, "mine", priority=0)
    clock.advance(1)
    await ask(timed, "new", priority=5)

    assert await ada.sessions() == ["new"]
    assert await ada.sessions() == ["mine"]


@pytest.mark.clause("WB-13")
async def test_a_lost_claim_of_another_is_left_to_them_until_their_time_is_over(
    timed: Holdfast, clock: FakeClock
) -> None:
    ada, bob = Hand(timed, "ada"), Hand(timed, "bob")
    await ask(timed, "s")
    (lost,) = await ada.take(lease_ms=5_000)

    clock.advance(6)
    assert await bob.take() == []
    clock.advance(TTL_S)
    (taken,) = await bob.take()

    assert taken.claim.run_id == lost.claim.run_id
    assert taken.claim.claim_id != lost.claim.claim_id
    assert await rows(timed) == {"s": "bob"}


async def test_own_sessions_far_back_in_a_long_queue_are_reached_in_their_turn(
    timed: Holdfast, clock: FakeClock
) -> None:
    ada, bob = Hand(timed, "ada"), Hand(timed, "bob")
    await ask(timed, "theirs")
    assert await bob.sessions() == ["theirs"]
    await ask(timed, "mine")
    assert await ada.sessions() == ["mine"]
    await timed.create_runs([{"session_id": "theirs", "clog_id": "chat", "input": 1} for _ in range(1_050)])
    clock.advance(1)
    await ask(timed, "mine")

    assert await ada.sessions(limit=3) == ["mine"]


async def test_several_runs_of_one_session_are_kept_together(hf: Holdfast, caplog: pytest.LogCaptureFixture) -> None:
    async def handler(given: Any, ctx: Any) -> Done:
        return Done()

    hf.register(clog("chat", handler))
    runs = await ask(hf, *["s"] * 5, "t")
    async with working(hf, sticky_ttl_s=TTL_S) as worker:
        assert set(await ended(hf, *runs)) == {"done"}
        assert await rows(hf) == dict.fromkeys("st", worker.owner_id)

    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.clause("WB-13")
async def test_a_run_created_beside_an_idle_worker_goes_where_its_session_keeps_to(
    open_hf: Opener,
) -> None:
    served: list[str] = []
    houses = {name: await open_hf() for name in ("ada", "bob")}

    def chat(name: str) -> Clog:
        async def handler(given: Any, ctx: Any) -> Done:
            served.append(name)
            return Done()

        return clog("chat", handler)

    for name, house in houses.items():
        house.register(chat(name))
    ada, bob = houses["ada"], houses["bob"]

    async with working(ada, sticky_ttl_s=TTL_S):
        assert await ended(ada, *await ask(ada, "s")) == ["done"]
        async with working(bob, sticky_ttl_s=TTL_S):
            await asyncio.sleep(0.3)
            for _ in range(5):
                assert await ended(bob, *await ask(bob, "s")) == ["done"]

    assert served == ["ada"] * 6


async def test_those_who_are_not_sticky_take_what_is_due(timed: Holdfast) -> None:
    ada = Hand(timed, "ada")
    await ask(timed, "s")
    assert await ada.sessions() == ["s"]
    await ask(timed, "s")

    (claim,) = await timed.claim_next(owner="bob")

    assert claim.run_id
    assert await rows(timed) == {"s": "ada"}


async def test_gc_forgets_what_is_over(timed: Holdfast, clock: FakeClock) -> None:
    ada, bob = Hand(timed, "ada"), Hand(timed, "bob")
    await ask(timed, "old")
    await ada.sessions()
    clock.advance(TTL_S)
    await ask(timed, "new")
    await bob.sessions()

    await timed.as_user("somebody").gc(3_600)
    assert await rows(timed) == {"old": "ada", "new": "bob"}
    await timed.gc(3_600)

    assert await rows(timed) == {"new": "bob"}


@pytest.mark.parametrize("ttl_s", [9.9, 86_401, float("nan"), float("inf"), True, "60"])
async def test_a_time_that_is_too_short_or_too_long_is_refused(hf: Holdfast, ttl_s: Any) -> None:
    with pytest.raises(InvalidValue) as refused:
        hf.worker(sticky_ttl_s=ttl_s)

    assert refused.value.code == "invalid_sticky_ttl"


@pytest.mark.clause("WB-13")
async def test_workers_keep_to_their_sessions_and_leave_them_when_they_stop(open_hf: Opener) -> None:
    served: list[tuple[str, str]] = []
    houses = {name: await open_hf() for name in ("ada", "bob")}

    def chat(name: str) -> Clog:
        async def handler(given: Any, ctx: Any) -> Done:
            served.append((ctx.session_id, name))
            return Done()

        return clog("chat", handler)

    for name, house in houses.items():
        house.register(chat(name))
    hf = houses["ada"]
    sessions = [f"s{number}" for number in range(6)]

    async with working(houses["bob"], sticky_ttl_s=TTL_S):
        async with working(hf, sticky_ttl_s=TTL_S) as worker:
            for _ in range(5):
                assert set(await ended(hf, *await ask(hf, *sessions))) == {"done"}
            by_session = {session: {name for each, name in served if each == session} for session in sessions}
            assert all(len(names) == 1 for names in by_session.values()), by_session
            kept = await rows(hf)
            assert set(kept) == set(sessions)
            assert [owner for owner in kept.values() if owner == worker.owner_id] == [
                owner for session, owner in kept.items() if by_session[session] == {"ada"}
            ]
        # Ada's sessions are bob's at once.
        assert worker.owner_id not in (await rows(hf)).values()
        assert set(await ended(hf, *await ask(hf, *sessions), within_s=5)) == {"done"}
    assert {name for _, name in served[-len(sessions) :]} == {"bob"}
    assert await rows(hf) == {}


@pytest.mark.slow
@pytest.mark.clause("WB-13")
async def test_the_sessions_of_a_worker_that_was_killed_are_anybodys_after_their_time(
    hf: Holdfast, place: Place, nursery: Nursery
) -> None:
    given = {**place._asdict(), "lease_ms": 1_000, "concurrency": 8, "drain_s": 5, "sticky_ttl_s": TTL_MIN_S}
    victim = nursery.start("worker", **given)
    (run_id,) = await ask(hf, "s", clog_id="sleepy", input=60)
    began: dict[str, str] = await until(lambda: rows(hf))
    since = time.monotonic()

    async def moved() -> bool:
        return (await rows(hf))["s"] != began["s"]

    nursery.kill(victim)
    (other_id,) = await ask(hf, "other", clog_id="sleepy", input=0)
    heir = nursery.start("worker", **given)

    assert await ended(hf, other_id) == ["done"]
    taken = await until(lambda: bodies(hf, run_id, "tick_abandoned"))
    assert len(taken) == 1
    assert time.monotonic() - since >= TTL_MIN_S - 1
    # The claim comes first, and the preference right after it.
    await until(moved)
    nursery.kill(heir)


@pytest.mark.slow
@pytest.mark.clause("WB-13")
async def test_a_fleet_of_processes_ends_everything_although_one_is_killed(
    hf: Holdfast, place: Place, nursery: Nursery
) -> None:
    given = {**place._asdict(), "lease_ms": 2_000, "concurrency": 16, "drain_s": 5, "sticky_ttl_s": TTL_MIN_S}
    fleet = [nursery.start("worker", **given) for _ in range(3)]
    runs: list[str] = []
    for turn in range(6):
        wanted = [{"session_id": f"s{number % 60}", "clog_id": "sleepy", "input": 0} for number in range(180)]
        runs += [run.run_id for run in await hf.create_runs(wanted)]
        await asyncio.sleep(0.4)
        if turn == 3:
            nursery.kill(fleet.pop())
            fleet.append(nursery.start("worker", **given))

    assert set(await ended(hf, *runs, within_s=60)) == {"done"}
    assert (await hf.fsck()).ok
    for worker in fleet:
        nursery.send(worker, signal.SIGTERM)
        assert nursery.wait(worker) == 0
    # What is left is the killed one's, and over.
    now = await hf._store.now()
    assert await hf._store.fetch("SELECT session_id FROM {s}sticky_sessions WHERE expires_at > $1", now) == []


@pytest.mark.clause("WB-13")
async def test_a_worker_that_is_not_sticky_writes_nothing(hf: Holdfast) -> None:
    async def handler(given: Any, ctx: Any) -> Done:
        return Done()

    hf.register(clog("chat", handler))
    async with working(hf):
        assert await ended(hf, *await ask(hf, "s")) == ["done"]

    assert await rows(hf) == {}
