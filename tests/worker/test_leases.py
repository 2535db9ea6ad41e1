"""Claims that are kept under a busy handler, and claims that are lost: then nothing of the tick may count."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from holdfast import Done, Holdfast, LeaseLost
from holdfast.runtime.pulse import Pulse
from tests.conftest import Opener
from tests.worker.places import LEASE_MS, bodies, clog, ended, kinds, seam_under, stored, until, working

LEASE_S = LEASE_MS / 1_000


class Rival(threading.Thread):
    """Another worker with an event loop of its own: wants every run it can get, and says how many it got."""

    def __init__(self, url: str, schema: str) -> None:
        super().__init__(daemon=True)
        self._url, self._schema = url, schema
        self.got = self.asked = 0
        self.enough = threading.Event()

    def run(self) -> None:
        asyncio.run(self._ask())

    async def _ask(self) -> None:
        async with Holdfast(self._url, schema=self._schema) as holdfast:
            while not self.enough.is_set():
                self.got += len(await holdfast.claim_next(limit=10))
                self.asked += 1
                await asyncio.sleep(0.05)


@pytest.mark.clause("H-O11", "W-17", "S-40", "O-34")
async def test_a_handler_that_blocks_the_event_loop_past_its_lease_keeps_its_claim(
    hf: Holdfast, database_url: str, schema: str
) -> None:
    rival = Rival(database_url, schema)

    async def handler(given: Any, ctx: Any) -> Done:
        rival.start()
        time.sleep(3 * LEASE_S)  # noqa: ASYNC251  # that is the fault
        await ctx.emit("awake", {})
        return Done("kept")

    hf.register(clog("busy", handler))
    run = await hf.create_run(session_id="s", clog_id="busy", input=1)

    async with working(hf):
        assert await ended(hf, run.run_id) == ["done"]
    rival.enough.set()
    await asyncio.to_thread(rival.join)

    assert rival.asked > 10
    assert rival.got == 0
    found = await kinds(hf, run.run_id)
    assert found.count("attempt_claimed") == 1
    assert found.count("attempt_heartbeat") >= 3


async def test_the_claims_of_all_ticks_are_kept_by_one_statement(hf: Holdfast) -> None:
    async def handler(given: Any, ctx: Any) -> Done:
        await asyncio.sleep(2 * LEASE_S)
        return Done()

    hf.register(clog("long", handler))
    seam = seam_under(hf)
    async with working(hf):
        runs = []
        for _ in range(12):
            # Claimed at different times, they still come to beat together.
            runs.append((await hf.create_run(session_id="s", clog_id="long", input=1)).run_id)
            await asyncio.sleep(0.05)
        assert await ended(hf, *runs) == ["done"] * 12

    # 4 to 6 beats each, for twelve of them.
    assert seam.calls["heartbeat"] <= 24


@pytest.mark.clause("H-O11", "O-33", "W-22", "S-35", "H-O1", "WB-12")
async def test_a_tick_that_lost_its_lease_is_stopped_and_nothing_of_it_is_kept(
    open_hf: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = await open_hf(), await open_hf()
    refusals: list[str] = []
    over = asyncio.Event()

    async def deaf(given: Any, ctx: Any) -> Done:
        await ctx.read(("run",))
        await ctx.write(("run.set", "of the first"))
        await ctx.outbox("post", "from the first")
        await ctx.emit("said", "by the first")
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            for call in (ctx.emit("late", {}), ctx.outbox("post", {}), ctx.call("lost", "x"), ctx.child("c", key="k")):
                with pytest.raises(LeaseLost) as caught:
                    await call
                refusals.append(caught.value.code)
        await over.wait()
        return Done("of the first")

    async def sound(given: Any, ctx: Any) -> Done:
        await ctx.read(("run",))
        await ctx.write(("run.set", "of the second"))
        return Done("of the second")

    first.register(clog("lost", deaf))
    second.register(clog("lost", sound))
    monkeypatch.setattr(first._pulse, "_beat_all", lambda store, due: asyncio.sleep(0))
    run = await first.create_run(session_id="s", clog_id="lost", input=1)

    async with working(first, concurrency=1):
        await until(lambda: kinds_hold(first, run.run_id, "event"))
        async with working(second):
            assert await ended(second, run.run_id) == ["done"]
            await until(lambda: refusals)
            over.set()
            # Its last word reaches the database, is refused there and recorded.
            await until(lambda: kinds_hold(first, run.run_id, "anomaly"))

    assert refusals == ["expired_claim"] * 4
    finished = await second.get_run(run.run_id)
    assert finished is not None
    assert finished.output == "of the second"
    assert await stored(second, run.run_id) == ['"of the second"']
    assert await second._store.fetch("SELECT 1 FROM {s}outbox") == []
    (abandoned,) = await bodies(second, run.run_id, "tick_abandoned")
    assert abandoned["reason"] == "expired"
    (anomaly,) = await bodies(second, run.run_id, "anomaly")
    assert (anomaly["reason"], anomaly["claim_id"]) == ("terminal_run", abandoned["tick_id"])
    assert (await second.fsck()).problems == ()


async def kinds_hold(holdfast: Holdfast, run_id: str, kind: str) -> bool:
    return kind in await kinds(holdfast, run_id)


async def test_a_def_handler_that_lost_its_lease_is_told_at_its_next_call(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []

    def handler(given: Any, ctx: Any) -> Done:
        if ctx.deliveries > 1:
            return Done("second")
        time.sleep(LEASE_S + 1)
        try:
            ctx.emit("late", {})
        except LeaseLost as error:
            told.append(error.code)
        return Done("first")

    hf.register(clog("threads", handler))
    monkeypatch.setattr(hf._pulse, "_beat_all", lambda store, due: asyncio.sleep(0))
    run = await hf.create_run(session_id="s", clog_id="threads", input=1)

    async with working(hf):
        assert await ended(hf, run.run_id) == ["done"]
        await until(lambda: told)

    finished = await hf.get_run(run.run_id)
    assert finished is not None
    assert finished.output == "second"
    assert "event" not in await kinds(hf, run.run_id)


@pytest.mark.clause("W-22", "WB-12")
async def test_without_a_database_the_own_clock_ends_a_tick_and_the_worker_goes_on_by_itself(hf: Holdfast) -> None:
    seam = seam_under(hf)
    stopped_at: list[float] = []
    refused_in: list[float] = []

    async def handler(given: Any, ctx: Any) -> Done:
        if ctx.deliveries > 1:
            return Done("after the storm")
        seam.away = True
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            stopped_at.append(time.monotonic())
            with pytest.raises(LeaseLost):
                await ctx.emit("late", {})
            refused_in.append(time.monotonic() - stopped_at[0])
            raise
        return Done("never")

    hf.register(clog("lonely", handler))
    run = await hf.create_run(session_id="s", clog_id="lonely", input=1)
    begun = time.monotonic()

    async with working(hf):
        await until(lambda: refused_in, within_s=LEASE_S + 5)
        # Not after the patience of a call that waits for its database.
        assert LEASE_S * 0.5 < stopped_at[0] - begun < LEASE_S + 4
        assert refused_in[0] < 1.0
        await asyncio.sleep(1)
        seam.away = False
        assert await ended(hf, run.run_id) == ["done"]

    finished = await hf.get_run(run.run_id)
    assert finished is not None
    assert finished.output == "after the storm"


async def test_a_tick_that_begins_after_its_deadline_calls_no_handler(hf: Holdfast) -> None:
    called: list[int] = []

    async def handler(given: Any, ctx: Any) -> Done:
        called.append(ctx.deliveries)
        return Done()

    hf.register(clog("slow", handler))
    await hf.create_run(session_id="s", clog_id="slow", input=1)
    (taken,) = await hf.take(["default"], clogs=["slow"], limit=1)

    result = await hf._executor.run(taken, lease_us=1_000_000, since=time.monotonic() - 1.0)

    assert result is None
    assert called == []


async def test_one_claim_that_the_database_will_not_have_costs_no_other_its_lease(hf: Holdfast) -> None:
    """Its row says another revision than its journal, so no heartbeat of it can be written."""

    async def handler(given: Any, ctx: Any) -> Done:
        await asyncio.sleep(2 * LEASE_S)
        return Done(ctx.deliveries)

    hf.register(clog("long", handler))
    runs = [(await hf.create_run(session_id="s", clog_id="long", input=1)).run_id for _ in range(4)]

    async with working(hf):
        await until(lambda: all_claimed(hf, runs))
        await hf._store.execute(("UPDATE {s}runs SET rev = 1 WHERE run_id = $1", (runs[0],)))
        assert await ended(hf, *runs[1:]) == ["done"] * 3

    for run_id in runs[1:]:
        finished = await hf.get_run(run_id)
        assert finished is not None
        assert finished.output == 1


async def all_claimed(holdfast: Holdfast, run_ids: list[str]) -> bool:
    return all([(run := await holdfast.get_run(run_id)) and run.status == "active" for run_id in run_ids])


async def test_the_pulse_ends_with_its_runtime(open_hf: Opener) -> None:
    hf = await open_hf()

    async def handler(given: Any, ctx: Any) -> Done:
        return Done()

    hf.register(clog("quick", handler))
    run = await hf.create_run(session_id="s", clog_id="quick", input=1)
    async with working(hf):
        await ended(hf, run.run_id)
    thread = hf._pulse._thread
    assert thread is not None

    await hf.close()

    assert not thread.is_alive()
    assert isinstance(hf._pulse, Pulse)
