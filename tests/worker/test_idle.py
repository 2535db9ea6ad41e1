"""What a worker costs while there is nothing to do, and how soon it finds what there is."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from holdfast import Done, Holdfast, Wait
from holdfast.store.hints import Hints, Listener
from tests.conftest import Opener
from tests.worker.idleness import IDLE_S, idle_cost
from tests.worker.places import clog, ended, kinds, working


async def quick(given: Any, ctx: Any) -> Done:
    return Done()


@pytest.mark.clause("WB-12")
async def test_an_idle_worker_asks_at_most_twice_a_second(hf: Holdfast) -> None:
    hf.register(clog("quick", quick))
    first = await hf.create_run(session_id="s", clog_id="quick", input=1)

    asked = await idle_cost(hf, settle_s=2, ready=lambda: ended(hf, first.run_id))

    # It looks every second, or a little sooner.
    assert IDLE_S * 0.8 <= asked["claim"] <= IDLE_S * 1.4
    assert asked["fetch"] >= 1, "the sweep is part of the cost"


@pytest.mark.clause("W-06", "W-02")
async def test_without_any_hint_work_is_found_by_looking(open_hf: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    hf, other = await open_hf(), await open_hf()
    monkeypatch.setattr(Listener, "tell", lambda self, topics: None)
    monkeypatch.setattr(Hints, "publish", lambda self, topics, told=(): None)
    hf.register(clog("quick", quick))

    async with working(hf):
        await asyncio.sleep(2)
        for _ in range(2):
            run = await other.create_run(session_id="s", clog_id="quick", input=1)
            assert await ended(other, run.run_id, within_s=5) == ["done"]


async def test_a_hint_makes_it_quick(open_hf: Opener) -> None:
    hf, other = await open_hf(), await open_hf()
    hf.register(clog("quick", quick))
    delays: list[float] = []

    async with working(hf):
        await asyncio.sleep(2.5)
        for _ in range(5):
            since = time.monotonic()
            run = await other.create_run(session_id="s", clog_id="quick", input=1)
            await ended(other, run.run_id)
            delays.append(time.monotonic() - since)
            await asyncio.sleep(0.3)

    assert sorted(delays)[2] < 0.5


@pytest.mark.parametrize("seconds", [0.3, 2.6])
async def test_a_sleep_that_we_began_ends_on_time(hf: Holdfast, seconds: float) -> None:
    async def handler(given: Any, ctx: Any) -> Any:
        return Wait(seconds=seconds) if given else Done()

    hf.register(clog("sleeper", handler))
    async with working(hf):
        await asyncio.sleep(2)
        runs = [await hf.create_run(session_id="s", clog_id="sleeper", input=1) for _ in range(3)]
        await ended(hf, *(run.run_id for run in runs))

    late = []
    for run in runs:
        entries = await hf.journal.read(f"run:{run.run_id}")
        _, slept, woken = (entry.at for entry in entries if entry.kind in ("attempt_claimed", "tick_settled"))
        late.append((woken - slept).total_seconds() - seconds)
        assert "tick_settled" in await kinds(hf, run.run_id)
    assert min(late) >= 0
    assert sorted(late)[1] < 0.4
