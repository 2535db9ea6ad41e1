"""Workers as processes: told to stop, killed at each place where it could matter, killed by their own handlers."""

from __future__ import annotations

import asyncio
import signal
import time
from typing import Any

import pytest

from holdfast import Holdfast, RunInfo
from tests.worker.judgement import anomalies, diary, kept, writes_of_the_dead
from tests.worker.nursery import Nursery
from tests.worker.places import LEASE_MS, Place, bodies, ended, stored, until

PLACES = ("after claim", "after write", "after event", "before commit")


def start(nursery: Nursery, place: Place, **options: Any) -> int:
    given = {"lease_ms": LEASE_MS, "concurrency": 8, "drain_s": 20, **options}
    return nursery.start("worker", **place._asdict(), **given)


def begun(place: Place) -> list[str]:
    return [line.run_id for line in diary(place) if line.what == "began"]


class TestTerminated:
    async def test_it_lets_its_ticks_end_and_exits_cleanly(self, hf: Holdfast, place: Place, nursery: Nursery) -> None:
        run = await hf.create_run(session_id="s", clog_id="sleepy", input=1.5)
        worker = start(nursery, place)
        await until(lambda: begun(place))
        await hf.create_run(session_id="s", clog_id="sleepy", input=0, queue="other")

        nursery.send(worker, signal.SIGTERM)

        assert await asyncio.to_thread(nursery.wait, worker) == 0
        ended_run = await hf.get_run(run.run_id)
        assert ended_run is not None
        assert (ended_run.status, ended_run.output) == ("done", 1)

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    async def test_after_its_time_it_gives_back_what_is_left(
        self, hf: Holdfast, place: Place, nursery: Nursery, number: signal.Signals
    ) -> None:
        run = await hf.create_run(session_id="s", clog_id="sleepy", input=60)
        worker = start(nursery, place, drain_s=1)
        await until(lambda: begun(place))

        nursery.send(worker, number)

        since = time.monotonic()
        assert await asyncio.to_thread(nursery.wait, worker, 15) == 0
        assert 0.8 < time.monotonic() - since < 10
        await self._is_claimable(hf, run.run_id)

    async def test_told_twice_it_exits_at_once(self, hf: Holdfast, place: Place, nursery: Nursery) -> None:
        run = await hf.create_run(session_id="s", clog_id="sleepy", input=60)
        worker = start(nursery, place, drain_s=120)
        await until(lambda: begun(place))

        nursery.send(worker, signal.SIGTERM)
        await asyncio.sleep(0.5)
        nursery.send(worker, signal.SIGTERM)

        assert await asyncio.to_thread(nursery.wait, worker, 15) == 0
        await self._is_claimable(hf, run.run_id)

    async def test_a_handler_that_will_not_stop_does_not_keep_its_process(
        self, hf: Holdfast, place: Place, nursery: Nursery
    ) -> None:
        run = await hf.create_run(session_id="s", clog_id="stubborn", input=1)
        worker = start(nursery, place, drain_s=0.5)
        await until(lambda: begun(place))

        nursery.send(worker, signal.SIGTERM)

        assert await asyncio.to_thread(nursery.wait, worker, 15) == 0
        await self._is_claimable(hf, run.run_id)

    async def _is_claimable(self, hf: Holdfast, run_id: str) -> None:
        found = await hf.get_run(run_id)
        assert found is not None
        assert (found.status, found.deliveries, found.locked_by) == ("pending", 0, None)
        assert [body["reason"] for body in await bodies(hf, run_id, "tick_abandoned")] == ["released"]
        (claim,) = await hf.claim_next()
        assert claim.run_id == run_id


@pytest.mark.clause("O-33", "H-O1", "W-22", "W-51", "S-35", "H-O12")
class TestKilled:
    @pytest.mark.parametrize("where", PLACES)
    async def test_the_run_ends_right_wherever_its_worker_died(
        self, hf: Holdfast, place: Place, nursery: Nursery, where: str
    ) -> None:
        run = await hf.create_run(session_id="s", clog_id="fragile", input=where)
        first = start(nursery, place)
        assert await asyncio.to_thread(nursery.wait, first) == -signal.SIGKILL
        crashed = await hf.get_run(run.run_id)
        assert crashed is not None
        assert crashed.status == "active"
        assert await stored(hf, run.run_id) == []

        start(nursery, place)
        assert await ended(hf, run.run_id) == ["done"]

        finished = await hf.get_run(run.run_id)
        assert finished is not None
        assert finished.output == {"deliveries": 2}
        assert await stored(hf, run.run_id) == ["1"]
        assert len(await hf._store.fetch("SELECT 1 FROM {s}outbox")) == 1
        events = [event async for event in hf.events(run.run_id)]
        assert [event.type for event in kept(events)].count("half") == 1
        assert [event.type for event in events].count("done") == 1
        assert [body["reason"] for body in await bodies(hf, run.run_id, "tick_abandoned")] == ["expired"]
        assert (await hf.fsck()).problems == ()

    @pytest.mark.clause("W-23")
    async def test_a_run_that_kills_its_worker_is_given_up_and_its_neighbours_are_not(
        self, hf: Holdfast, place: Place, nursery: Nursery
    ) -> None:
        run = await hf.create_run(session_id="s", clog_id="deadly", input=1, max_deliveries=3)
        for _ in range(3):
            worker = start(nursery, place)
            assert await asyncio.to_thread(nursery.wait, worker) == -signal.SIGKILL
        neighbour = await hf.create_run(session_id="s", clog_id="sleepy", input=0)
        start(nursery, place)

        assert await ended(hf, run.run_id, neighbour.run_id) == ["failed", "done"]

        failed = await hf.get_run(run.run_id)
        assert failed is not None
        assert failed.error_kind == "worker_lost"
        assert [line.number for line in diary(place) if line.run_id == run.run_id] == ["1", "2", "3"]
        assert (await hf.fsck()).problems == ()


@pytest.mark.clause("H-O12", "W-23")
@pytest.mark.parametrize("max_deliveries", [5, 2])
async def test_a_run_that_kills_its_worker_takes_none_of_those_beside_it_along(
    hf: Holdfast, place: Place, nursery: Nursery, max_deliveries: int
) -> None:
    """All are claimed by one call and lost together, so their leases end together, and they meet again."""
    limit = {"session_id": "s", "max_deliveries": max_deliveries}
    beside = [{"clog_id": "sleepy", "input": 0.2, **limit} for _ in range(12)]
    made = await hf.create_runs([*beside[:6], {"clog_id": "deadly", "input": 1, **limit}, *beside[6:]])
    poison = made[6].run_id
    others = [run.run_id for run in made if run.run_id != poison]

    deaths = 0
    worker = start(nursery, place, concurrency=32)
    deadline = time.monotonic() + 90
    while any(run.status not in ("done", "failed") for run in await look(hf, [poison, *others])):
        assert time.monotonic() < deadline, "the runs did not end"
        if nursery.ended(worker) is not None:
            deaths += 1
            worker = start(nursery, place, concurrency=32)
        await asyncio.sleep(0.1)

    assert [run.status for run in await look(hf, [poison])] == ["failed"]
    assert [run.status for run in await look(hf, others)] == ["done"] * len(others)
    assert deaths == max_deliveries
    assert (await hf.fsck()).problems == ()


async def look(hf: Holdfast, run_ids: list[str]) -> list[RunInfo]:
    return [run for run_id in run_ids if (run := await hf.get_run(run_id))]


async def freeze(hf: Holdfast, nursery: Nursery, pid: int) -> None:
    """Stop it where it does not hold SQLite's one write lock: there nobody could go on without it."""
    while True:
        nursery.send(pid, signal.SIGSTOP)
        try:
            await asyncio.wait_for(hf.journal.append("notes", [{"kind": "note", "data": {}}]), 1)
            return
        except TimeoutError:
            nursery.send(pid, signal.SIGCONT)
            await asyncio.sleep(0.05)


@pytest.mark.clause("H-O5", "H-O10", "O-33", "S-37")
async def test_a_worker_that_slept_through_its_lease_is_refused_and_recorded(
    hf: Holdfast, place: Place, nursery: Nursery
) -> None:
    given = {"number": 0, "count": 1, "seconds": 2.0}
    run = await hf.create_run(session_id="s", clog_id="chores", input=given)
    zombie = start(nursery, place, deaf=True)
    await until(lambda: begun(place))
    await freeze(hf, nursery, zombie)
    start(nursery, place)
    assert await ended(hf, run.run_id) == ["done"]
    (abandoned,) = await bodies(hf, run.run_id, "tick_abandoned")

    nursery.send(zombie, signal.SIGCONT)
    await until(lambda: [line for line in diary(place) if line.what == "refused"])

    assert await anomalies(hf, [run.run_id]) == {(abandoned["tick_id"], "terminal_run"): 1}
    assert await writes_of_the_dead(hf, run.run_id) == []
    assert await stored(hf, run.run_id) == ["1"]
    assert (await hf.fsck()).problems == ()
