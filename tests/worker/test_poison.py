"""Runs that would harm their neighbours: each is dealt with alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Any

import pytest

from holdfast import Done, Fail, Holdfast, Retry, RetryPolicy, Wait
from tests.worker.places import LEASE_MS, clog, ended, until, working


class Odd(BaseException):
    """What no `except Exception` catches."""


RAISES: list[Callable[[], BaseException]] = [
    lambda: ValueError("plain"),
    lambda: Odd("odd"),
    lambda: SystemExit(3),
    lambda: KeyboardInterrupt(),
    lambda: GeneratorExit(),
    lambda: StopIteration("empty"),
    lambda: asyncio.CancelledError(),
    lambda: RecursionError(),
]
RETURNS: list[Callable[[], Any]] = [
    object,
    lambda: "done",
    lambda: Done,
    lambda: Done(object()),
    lambda: Done({"deep": float("nan")}),
    lambda: Wait(seconds="soon"),  # type: ignore[arg-type]
    lambda: Wait(seconds=float("nan")),
    lambda: Wait(seconds=1e300),
    lambda: Wait(until=datetime(2030, 1, 1)),
    lambda: Retry(error=5),  # type: ignore[arg-type]
    lambda: Retry("x", after="soon"),  # type: ignore[arg-type]
    lambda: Fail(error=None),  # type: ignore[arg-type]
    lambda: iter(()),
]


async def sound(given: Any, ctx: Any) -> Done:
    await asyncio.sleep(0.2)
    return Done(ctx.deliveries)


async def neighbours(holdfast: Holdfast, count: int = 5) -> list[str]:
    holdfast.register(clog("sound", sound))
    runs = [await holdfast.create_run(session_id="s", clog_id="sound", input=1) for _ in range(count)]
    return [run.run_id for run in runs]


async def outputs(holdfast: Holdfast, run_ids: list[str]) -> list[Any]:
    return [run.output for run_id in run_ids if (run := await holdfast.get_run(run_id))]


@pytest.mark.clause("O-24", "H-O12")
@pytest.mark.parametrize("style", ["async", "def"])
async def test_whatever_a_handler_raises_is_its_own_failure(hf: Holdfast, style: str) -> None:
    async def raises(number: int, ctx: Any) -> None:
        raise RAISES[number]()

    def raises_in_thread(number: int, ctx: Any) -> None:
        raise RAISES[number]()

    hf.register(clog("bad", raises if style == "async" else raises_in_thread))
    once = RetryPolicy(max_attempts=1)
    bad = [
        (await hf.create_run(session_id="s", clog_id="bad", input=number, retry=once)).run_id
        for number in range(len(RAISES))
    ]
    good = await neighbours(hf)

    async with working(hf):
        assert await ended(hf, *good, *bad) == ["done"] * len(good) + ["failed"] * len(bad)

    assert await outputs(hf, good) == [1] * len(good)
    errors = [run.last_error for run_id in bad if (run := await hf.get_run(run_id))]
    assert all(errors), errors
    assert (await hf.fsck()).problems == ()


@pytest.mark.parametrize("style", ["async", "def"])
async def test_whatever_a_handler_returns_the_run_goes_on_or_fails_in_words(hf: Holdfast, style: str) -> None:
    async def returns(number: int, ctx: Any) -> Any:
        return RETURNS[number]()

    def returns_in_thread(number: int, ctx: Any) -> Any:
        return RETURNS[number]()

    hf.register(clog("rubbish", returns if style == "async" else returns_in_thread))
    once = RetryPolicy(max_attempts=1)
    bad = [
        (await hf.create_run(session_id="s", clog_id="rubbish", input=number, retry=once)).run_id
        for number in range(len(RETURNS))
    ]
    good = await neighbours(hf)

    async with working(hf):
        assert await ended(hf, *good) == ["done"] * len(good)
        found = [await until(partial(settled, hf, run_id)) for run_id in bad]

    assert [(run.status, bool(run.last_error)) for run in found] == [("failed", True)] * len(bad)
    assert (await hf.fsck()).problems == ()


async def settled(holdfast: Holdfast, run_id: str) -> Any:
    run = await holdfast.get_run(run_id)
    assert run is not None
    return run if run.status not in ("pending", "active") else None


async def test_a_run_whose_journal_is_damaged_costs_no_other_anything(hf: Holdfast) -> None:
    hf.register(clog("hurt", sound))
    hurt = await hf.create_run(session_id="s", clog_id="hurt", input={"n": 1}, priority=5, max_deliveries=2)
    damage = "UPDATE {s}journal SET data = '{' WHERE thread = $1 AND rev = 1"
    await hf._store.execute((damage, (f"run:{hurt.run_id}",)))
    good = await neighbours(hf, 10)

    async with working(hf, concurrency=3):
        assert await ended(hf, *good) == ["done"] * 10
        later = await hf.create_run(session_id="s", clog_id="sound", input=1)
        assert await ended(hf, later.run_id) == ["done"]

        # It is tried as often as it may be, and then ends as a loss.
        async def given_up() -> bool:
            rows = await hf._store.fetch("SELECT status FROM {s}runs WHERE run_id = $1", hurt.run_id)
            return bool(rows[0][0] == "failed")

        await until(given_up, within_s=10 * LEASE_MS / 1_000)

    assert await outputs(hf, good) == [1] * 10


async def test_a_handler_that_never_ends_costs_its_slot_and_no_more(hf: Holdfast) -> None:
    async def endless(given: Any, ctx: Any) -> None:
        while True:
            try:
                await asyncio.sleep(3_600)
            except asyncio.CancelledError:
                continue

    hf.register(clog("endless", endless))
    stuck = await hf.create_run(session_id="s", clog_id="endless", input=1, priority=5)
    good = await neighbours(hf)

    worker = hf.worker(concurrency=2, drain_s=0.1)
    running = asyncio.create_task(worker.run())
    assert await ended(hf, *good) == ["done"] * len(good)
    worker.stop()
    await asyncio.wait_for(running, 10)

    run = await hf.get_run(stuck.run_id)
    assert run is not None
    assert (run.status, run.deliveries) == ("pending", 0)
