"""Schedules on real time: on the minute, cheap while nothing is due, and once however many processes die."""

from __future__ import annotations

import asyncio
import random
import signal
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast import Done, Holdfast
from holdfast.moments import from_us, to_us
from tests.conftest import Opener
from tests.worker.idleness import idle_cost
from tests.worker.nursery import Nursery
from tests.worker.places import LEASE_MS, PATIENCE_S, Place, clog, until, working

LATE_S = 1.5
KILLS = 12
MINUTE = timedelta(minutes=1)


async def quick(given: Any, ctx: Any) -> Done:
    return Done()


async def now(hf: Holdfast) -> datetime:
    return from_us(await hf.journal.store.now())


async def missed(hf: Holdfast, name: str, minutes: int) -> datetime:
    """A schedule for every minute that nobody has looked at for a while; its oldest open window."""
    await hf.schedules.put(name, clog_id="sleepy", session_id="s", cron="* * * * *", missed="all", input=0)
    first = (await now(hf)).replace(second=0, microsecond=0) - minutes * MINUTE
    await hf.journal.store.execute(("UPDATE {s}schedules SET next_at = $1 WHERE name = $2", (to_us(first), name)))
    return first


async def started(hf: Holdfast, name: str) -> list[datetime]:
    """The windows for which there is a run, in order."""
    rows = await hf.journal.store.fetch("SELECT run_id FROM {s}runs")
    told = [(await hf.journal.read(f"run:{run_id}", limit=1))[0].data["metadata"]["schedule"] for (run_id,) in rows]
    return sorted(datetime.fromisoformat(each["window"]) for each in told if each["name"] == name)


def minutes(first: datetime, last: datetime | None) -> list[datetime]:
    assert last is not None
    return [first + MINUTE * place for place in range((last - first) // MINUTE + 1)]


async def caught_up(hf: Holdfast, name: str) -> bool:
    found = await hf.schedules.get(name)
    return found is not None and found.next_at is not None and found.next_at > await now(hf)


def start_worker(nursery: Nursery, place: Place) -> int:
    given = {"lease_ms": LEASE_MS, "concurrency": 8, "drain_s": 1.0}
    return nursery.start("worker", **place._asdict(), **given)


async def test_a_window_is_started_on_time_also_one_that_was_just_put(open_hf: Opener) -> None:
    hf, other = await open_hf(), await open_hf()
    hf.register(clog("quick", quick))
    late: list[float] = []

    async with working(hf):
        await asyncio.sleep(1)
        for number in range(3):
            at = await now(hf) + timedelta(seconds=1)
            await other.schedules.put(f"s{number}", clog_id="quick", session_id="s", at=at)
            run_id = str((await until(lambda: over(other, f"s{number}"))).last_run_id)  # noqa: B023
            (created, *_) = await hf.journal.read(f"run:{run_id}")
            late.append((created.at - at).total_seconds())

    assert min(late) >= 0
    assert sorted(late)[1] < LATE_S


async def over(hf: Holdfast, name: str) -> Any:
    found = await hf.schedules.get(name)
    return found if found is not None and found.last_at is not None else None


async def test_a_worker_that_waits_for_a_window_asks_at_most_twice_a_second(hf: Holdfast) -> None:
    hf.register(clog("quick", quick))
    far = datetime(2100, 1, 1, tzinfo=UTC)
    await hf.schedules.put("yearly", clog_id="quick", session_id="s", cron="0 0 1 1 *")
    await hf.schedules.put("once", clog_id="quick", session_id="s", at=far)

    asked = await idle_cost(hf, settle_s=3)

    assert asked["fetch"] >= 1, "the sweep is part of the cost"


@pytest.mark.clause("SB-16")
@pytest.mark.parametrize("where", ["before", "after"])
async def test_a_process_that_dies_around_a_start_leaves_it_whole_or_not_begun(
    hf: Holdfast, place: Place, nursery: Nursery, where: str
) -> None:
    first = await missed(hf, "minutely", 5)
    told = {"url": place.url, "schema": place.schema, "place": where}

    for _ in range(3):
        sweeper = nursery.start("sweeper", **told)
        assert await asyncio.to_thread(nursery.wait, sweeper) == -signal.SIGKILL
    left = await hf.schedules.get("minutely")
    begun = await started(hf, "minutely")
    await hf.journal.sweep()

    assert left is not None
    begun_by_then = [] if where == "before" else [first, first + MINUTE, first + 2 * MINUTE]
    assert begun == begun_by_then
    assert left.next_at == first + len(begun_by_then) * MINUTE
    found = await hf.schedules.get("minutely")
    assert found is not None
    assert await started(hf, "minutely") == minutes(first, found.last_at)
    assert (await hf.fsck()).problems == ()


@pytest.mark.clause("SB-16")
async def test_a_storm_of_deaths_starts_every_window_once(hf: Holdfast, place: Place, nursery: Nursery) -> None:
    names = [f"s{number}" for number in range(4)]
    firsts = {name: await missed(hf, name, 150) for name in names}
    workers = [start_worker(nursery, place) for _ in range(3)]

    for _ in range(KILLS):
        await asyncio.sleep(random.uniform(0.05, 0.4))
        await asyncio.to_thread(nursery.kill, workers.pop(0))
        workers.append(start_worker(nursery, place))
    for name in names:
        await until(lambda: caught_up(hf, name), within_s=2 * PATIENCE_S)  # noqa: B023

    for name in names:
        found = await hf.schedules.get(name)
        assert found is not None
        assert await started(hf, name) == minutes(firsts[name], found.last_at)
    assert (await hf.fsck()).problems == ()
