"""The relay inside a worker, on real time: it delivers, keeps to its limits, costs little, and stops cleanly."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any

import pytest

from holdfast import Context, Done, Holdfast
from tests.contract.builders import assert_sound
from tests.outbox.post import Letterbox, letterbox, only, reasons, row, send
from tests.worker.idleness import idle_cost
from tests.worker.places import clog, until, working


@pytest.fixture(params=["file", "postgres"])
def configuration(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def hf(database_url: str, schema: str) -> AsyncIterator[Holdfast]:
    async with Holdfast(database_url, schema=schema) as holdfast:
        yield holdfast
        await assert_sound(holdfast)


async def nothing_waits(hf: Holdfast) -> bool:
    return (await hf.outbox.report()).statuses["pending"] == 0


@pytest.mark.clause("C-19", "C-9")
async def test_what_a_tick_asked_for_is_delivered_at_once(hf: Holdfast) -> None:
    async def advance(given: Any, ctx: Context) -> Done:
        return Done(await ctx.outbox("email", {"to": given}))

    hf.register(clog("sender", advance))
    box = letterbox(hf, last="m-1")

    async with working(hf):
        await asyncio.sleep(2)
        since = time.monotonic()
        await hf.create_run(session_id="s", clog_id="sender", input="ann")
        await until(lambda: box.calls)
        took = time.monotonic() - since
        await until(lambda: nothing_waits(hf))

    assert box.payloads == [{"to": "ann"}]
    assert took < 1.5
    assert await reasons(hf) == ["success"]


async def test_an_idle_worker_with_sinks_asks_at_most_twice_a_second(hf: Holdfast) -> None:
    for space in ("email", "sms", "hook:*"):
        letterbox(hf, space=space)
    await send(hf)
    await send(hf, space="nowhere")

    asked = await idle_cost(hf, settle_s=6, ready=lambda: reasons(hf))

    assert asked["change"] >= 1


async def test_a_slow_sink_holds_up_no_other_and_keeps_to_its_slots(hf: Holdfast) -> None:
    gate = asyncio.Event()
    running = most = 0

    async def slow(payload: Any) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await gate.wait()
        running -= 1

    hf.deliver("slow", concurrency=2)(slow)
    quick = letterbox(hf, space="quick")
    await send(hf, 6, "slow")
    await send(hf, 40, "quick")

    async with working(hf):
        await until(lambda: len(quick.calls) == 40)
        assert running == 2
        gate.set()
        await until(lambda: nothing_waits(hf))

    assert most == 2


async def test_a_sink_begins_no_more_than_its_rate(hf: Holdfast) -> None:
    begun: list[float] = []

    @hf.deliver("slow", rate=10)
    async def deliver(payload: Any) -> None:
        begun.append(time.monotonic())

    await send(hf, 12, "slow")

    async with working(hf):
        await until(lambda: nothing_waits(hf))

    assert begun[-1] - begun[0] >= 1.0


@pytest.mark.parametrize("configuration", ["memory"], indirect=True)
async def test_a_rate_below_one_a_second_is_used_and_leaves_the_rest_for_others(hf: Holdfast) -> None:
    begun: list[float] = []
    held: list[int] = []

    @hf.deliver("slow", rate=0.8)
    async def deliver(payload: Any) -> None:
        begun.append(time.monotonic())
        held.append((await hf.outbox.report()).locked)

    await send(hf, 3, "slow")

    async with working(hf):
        await until(lambda: nothing_waits(hf))

    gaps = [later - earlier for earlier, later in pairwise(begun)]
    assert held == [1, 1, 1]
    assert min(gaps) >= 1.2
    assert max(gaps) < 3.0


@pytest.mark.parametrize("configuration", ["memory"], indirect=True)
async def test_slow_deliveries_do_not_hold_up_their_rate(hf: Holdfast) -> None:
    begun: list[float] = []
    gate = asyncio.Event()

    @hf.deliver("slow", rate=10, concurrency=30)
    async def deliver(payload: Any) -> None:
        begun.append(time.monotonic())
        await gate.wait()

    await send(hf, 30, "slow")

    async with working(hf):
        await until(lambda: len(begun) == 30)
        gate.set()
        await until(lambda: nothing_waits(hf))

    assert 2.8 <= begun[-1] - begun[0] < 6.0


async def test_deliveries_end_before_the_worker_does(hf: Holdfast) -> None:
    async def slow(payload: Any) -> str:
        await asyncio.sleep(1)
        return "m-1"

    box = letterbox(hf, slow)
    (outbox_id,) = await send(hf)
    worker = hf.worker()
    running = asyncio.create_task(worker.run())
    await until(lambda: box.calls)

    worker.stop()
    late = await hf.outbox.enqueue("late", "email")
    await running

    assert (await row(hf, outbox_id)).status == "sent"
    found = await row(hf, late)
    assert (found.status, found.locked_by) == ("pending", None)


@pytest.mark.parametrize("told", ["twice", "cancelled", "once"])
async def test_what_does_not_end_is_given_back(hf: Holdfast, told: str) -> None:
    async def hangs(payload: Any) -> None:
        await asyncio.sleep(600)

    box = letterbox(hf, hangs, last="m-1")
    (outbox_id,) = await send(hf)
    worker = hf.worker(drain_s=0.3 if told == "once" else 60)
    running = asyncio.create_task(worker.run())
    await until(lambda: box.calls)

    if told == "cancelled":
        running.cancel()
    else:
        worker.stop()
    if told == "twice":
        await asyncio.sleep(0.2)
        worker.stop()
    await asyncio.wait_for(asyncio.gather(running, return_exceptions=True), 10)

    found = await row(hf, outbox_id)
    assert (found.status, found.locked_by, found.retry_count) == ("pending", None, 0)
    assert await hf.outbox.flush_once() == only(success=1)
    assert len({call["key"] for call in box.calls}) == 1


async def test_a_sink_that_breaks_in_every_way_stops_nobody(hf: Holdfast) -> None:
    box = Letterbox(ValueError("one"), KeyError("two"), RuntimeError(), last="m")
    hf.deliver("email", base_seconds=0, max_seconds=0)(box)
    await send(hf, 8)

    async with working(hf):
        await until(lambda: nothing_waits(hf))

    assert (await hf.outbox.report()).statuses == {"pending": 0, "sent": 8, "dead": 0}
    assert (await reasons(hf)).count("retry") == 3
