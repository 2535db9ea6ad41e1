"""How a worker fills its slots: many claims at once, one by one again, never more than it has."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Any

import pytest

from holdfast import Done, Holdfast
from holdfast.slots import SETTLING_MAX
from holdfast.worker import CROWD_DOUBLINGS, CROWD_FIRST_S
from tests.conftest import Opener
from tests.worker.places import clog, ended, until, working


class Crowd:
    """A handler that counts how many of it run at once."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.now = self.most = 0

    async def __call__(self, given: Any, ctx: Any) -> Done:
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(self.seconds)
        self.now -= 1
        return Done()


async def made(holdfast: Holdfast, name: str, count: int, **options: Any) -> list[str]:
    runs = await holdfast.create_runs(
        [{"session_id": "s", "clog_id": name, "input": number, **options} for number in range(count)]
    )
    return [run.run_id for run in runs]


async def test_a_free_slot_is_filled_while_others_are_still_busy(hf: Holdfast) -> None:
    release = asyncio.Event()

    async def slow(given: Any, ctx: Any) -> Done:
        await release.wait()
        return Done()

    async def quick(given: Any, ctx: Any) -> Done:
        return Done()

    hf.register(clog("slow", slow), clog("quick", quick))
    (held,) = await made(hf, "slow", 1)
    rest = await made(hf, "quick", 10)

    async with working(hf, concurrency=3):
        assert await ended(hf, *rest) == ["done"] * 10
        run = await hf.get_run(held)
        assert run is not None
        assert run.status == "active"
        release.set()
        assert await ended(hf, held) == ["done"]


async def test_no_more_ticks_at_once_than_slots_and_no_fewer(hf: Holdfast) -> None:
    crowd = Crowd(0.3)

    async def handler(given: Any, ctx: Any) -> Done:
        return await crowd(given, ctx)

    hf.register(clog("crowd", handler))
    runs = await made(hf, "crowd", 20)

    async with working(hf, concurrency=5):
        assert await ended(hf, *runs) == ["done"] * 20

    assert crowd.most == 5


async def test_one_call_claims_for_all_free_slots(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    async def handler(given: Any, ctx: Any) -> Done:
        return Done()

    hf.register(clog("quick", handler))
    runs = await made(hf, "quick", 40)
    sizes: list[int] = []
    claim = hf.journal.claim

    async def counted(request: Any) -> Any:
        found = await claim(request)
        sizes.append(len(found))
        return found

    monkeypatch.setattr(hf.journal, "claim", counted)
    async with working(hf, concurrency=50):
        await ended(hf, *runs)

    assert sizes[0] == 40


@pytest.mark.clause("O-32", "W-06", "W-14")
async def test_two_workers_share_what_there_is(open_hf: Opener) -> None:
    seen: Counter[str] = Counter()
    first, second = await open_hf(), await open_hf()

    async def handler(given: Any, ctx: Any) -> Done:
        seen[ctx.run_id] += 1
        await asyncio.sleep(0.05)
        return Done()

    for holdfast in (first, second):
        holdfast.register(clog("shared", handler))
    runs = await made(first, "shared", 40)

    async with working(first, concurrency=2) as one, working(second, concurrency=2) as other:
        assert await ended(first, *runs) == ["done"] * 40
        await until(lambda: one.ticks + other.ticks == 40)

    assert seen == Counter(runs)
    assert one.ticks > 0
    assert other.ticks > 0


@pytest.mark.clause("H-O15")
async def test_clogs_unknown_here_are_left_for_others(hf: Holdfast) -> None:
    async def handler(given: Any, ctx: Any) -> Done:
        return Done()

    hf.register(clog("known", handler))
    (foreign,) = await made(hf, "foreign", 1, priority=9)
    known = await made(hf, "known", 5)

    async with working(hf, concurrency=2):
        assert await ended(hf, *known) == ["done"] * 5
        left = await hf.get_run(foreign)
        assert left is not None
        assert (left.status, left.deliveries, left.rev) == ("pending", 0, 1)

        hf.register(clog("foreign", handler))
        assert await ended(hf, foreign) == ["done"]


async def test_only_the_named_queues_are_served(hf: Holdfast) -> None:
    async def handler(given: Any, ctx: Any) -> Done:
        return Done()

    hf.register(clog("quick", handler))
    (mail,), (post,), (other,) = [await made(hf, "quick", 1, queue=queue) for queue in ("mail", "post", "other")]

    async with working(hf, queues=["mail", "post"]):
        assert await ended(hf, mail, post) == ["done"] * 2

    left = await hf.get_run(other)
    assert left is not None
    assert left.status == "pending"


async def test_def_handlers_block_a_thread_and_nobody_else(hf: Holdfast) -> None:
    times: dict[str, float] = {}

    def slow(given: Any, ctx: Any) -> Done:
        time.sleep(1.0)
        assert ctx.emit("slept", {}) > 0
        times["slow"] = time.monotonic()
        return Done()

    async def quick(given: Any, ctx: Any) -> Done:
        times["quick"] = time.monotonic()
        return Done()

    hf.register(clog("slow", slow), clog("quick", quick))
    slow_runs, quick_runs = await made(hf, "slow", 3), await made(hf, "quick", 3)

    async with working(hf, concurrency=4):
        assert await ended(hf, *slow_runs, *quick_runs) == ["done"] * 6

    assert times["quick"] < times["slow"]


async def test_a_slot_is_free_while_the_disk_is_waited_for_but_claims_stay_bounded(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[int] = []
    disk = asyncio.Event()
    submit = hf.journal.submit

    async def slowly(run_id: str, command: Any, **options: Any) -> Any:
        if type(command).__name__ == "Settle":
            await disk.wait()
        return await submit(run_id, command, **options)

    async def handler(given: Any, ctx: Any) -> Done:
        called.append(given)
        return Done()

    monkeypatch.setattr(hf.journal, "submit", slowly)
    hf.register(clog("quick", handler))
    runs = await made(hf, "quick", 20)
    most = 2 * (1 + SETTLING_MAX)

    async with working(hf, concurrency=2):
        await until(lambda: len(called) == most)
        await asyncio.sleep(0.3)
        assert len(called) == most, "a few for each slot, and no more"
        disk.set()
        assert await ended(hf, *runs) == ["done"] * 20

    assert sorted(called) == list(range(20))


async def test_news_that_was_in_vain_is_heeded_later_until_there_is_work_again(open_hf: Opener) -> None:
    """In a fleet every worker hears of every run; those who come too late must not run for each of them."""
    hf, other = await open_hf(), await open_hf()
    looks: list[float] = []
    left: list[int] = []
    claim = hf.journal.claim

    async def looked(request: Any) -> Any:
        looks.append(time.monotonic())
        return await claim(request)

    hf.journal.claim = looked  # type: ignore[method-assign]

    async def handler(given: Any, ctx: Any) -> Done:
        left.append(worker._in_vain)
        return Done()

    async def look_after_news() -> float:
        """How long after a piece of news it was heeded."""
        await until(lambda: worker._is_sated and not worker._wake.is_set())
        looks.clear()
        told = time.monotonic()
        hf.journal.store.hints.publish({"queue:default"})
        await until(lambda: looks)
        return looks[0] - told

    hf.register(clog("quick", handler))
    async with working(hf) as worker:
        for vain in range(1, CROWD_DOUBLINGS + 2):
            await look_after_news()
            await until(lambda vain=vain: worker._in_vain == min(vain, CROWD_DOUBLINGS))  # type: ignore[misc]
        # Never later than the longest delay, and a moment for the loop.
        assert await look_after_news() < CROWD_FIRST_S * 2**CROWD_DOUBLINGS + 0.5

        run = await other.create_run(session_id="s", clog_id="quick", input=1)
        assert await ended(hf, run.run_id) == ["done"]
        assert left == [0]
