"""Cancels reach running handlers; a worker that is told to stop lets ticks end and gives the rest back."""

from __future__ import annotations

import asyncio
import signal
import time
from typing import Any

import pytest

from holdfast import Done, Holdfast, Ok
from tests.conftest import Opener
from tests.worker.places import bodies, clog, ended, kinds, seam_under, stored, until, working


async def begun(holdfast: Holdfast, name: str, **options: Any) -> str:
    run = await holdfast.create_run(session_id="s", clog_id=name, input=1, **options)
    return run.run_id


class TestCancel:
    @pytest.mark.clause("C-6", "W-03", "W-18", "W-25")
    async def test_a_running_handler_is_stopped_within_a_second(self, open_hf: Opener) -> None:
        hf, other = await open_hf(), await open_hf()
        delays: list[float] = []
        asked_at = 0.0
        waiting = asyncio.Event()

        async def handler(given: Any, ctx: Any) -> Done:
            await ctx.read(("run",))
            await ctx.write(("run.set", "staged"))
            waiting.set()
            try:
                await asyncio.sleep(60)
            finally:
                assert ctx.cancelled
                delays.append(time.monotonic() - asked_at)
            return Done()

        hf.register(clog("long", handler))
        async with working(hf):
            for _ in range(3):
                waiting.clear()
                run_id = await begun(other, "long")
                await waiting.wait()
                asked_at = time.monotonic()
                await other.cancel(run_id)
                assert await ended(other, run_id) == ["cancelled"]
                assert await stored(other, run_id) == []

        # The machine may be slow once, but not three times.
        assert min(delays) < 1.0
        assert max(delays) < 3.0

    @pytest.mark.clause("C-6", "W-03")
    async def test_a_def_handler_notices_by_its_context(self, open_hf: Opener) -> None:
        hf, other = await open_hf(), await open_hf()
        noticed: list[str] = []

        def handler(given: Any, ctx: Any) -> Done:
            ctx.emit("begun", {})
            while not ctx.cancelled:
                time.sleep(0.01)
            try:
                ctx.emit("late", {})
            except asyncio.CancelledError:
                noticed.append("cancelled")
                raise
            return Done()

        hf.register(clog("threads", handler))
        async with working(hf):
            run_id = await begun(other, "threads")
            await until(lambda: said(other, run_id))
            await other.cancel(run_id)
            assert await ended(other, run_id, within_s=5) == ["cancelled"]
            await until(lambda: noticed)

        assert "late" not in [event.type async for event in other.events(run_id)]
        # It was told by its own process: nothing was refused by the database, so nothing is recorded.
        assert "anomaly" not in await kinds(other, run_id)

    async def test_a_handler_that_will_not_stop_ends_cancelled_all_the_same(self, open_hf: Opener) -> None:
        hf, other = await open_hf(), await open_hf()
        waiting = asyncio.Event()

        async def handler(given: Any, ctx: Any) -> Done:
            waiting.set()
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                await asyncio.sleep(0.5)
            return Done("nevertheless")

        hf.register(clog("stubborn", handler))
        async with working(hf):
            run_id = await begun(other, "stubborn")
            await waiting.wait()
            await other.cancel(run_id)
            assert await ended(other, run_id) == ["cancelled"]


async def said(holdfast: Holdfast, run_id: str) -> bool:
    return "event" in await kinds(holdfast, run_id)


class TestSignals:
    async def test_signals_that_someone_else_waits_for_are_left_alone(self, hf: Holdfast) -> None:
        def theirs(*_: Any) -> None: ...

        before = signal.signal(signal.SIGTERM, theirs)
        try:
            async with working(hf):
                await asyncio.sleep(0.1)
                assert signal.getsignal(signal.SIGTERM) is theirs
        finally:
            signal.signal(signal.SIGTERM, before)

    async def test_afterwards_they_are_as_they_were(self, hf: Holdfast) -> None:
        before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
        async with working(hf):
            await asyncio.sleep(0.1)
            assert signal.getsignal(signal.SIGTERM) is not before[0]
        assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before


class TestDrain:
    async def test_ticks_have_time_to_end_and_nothing_new_begins(self, hf: Holdfast) -> None:
        waiting, count = asyncio.Event(), 0

        async def handler(given: Any, ctx: Any) -> Done:
            nonlocal count
            count += 1
            waiting.set()
            await asyncio.sleep(1.0)
            return Done()

        hf.register(clog("slow", handler))
        first = await begun(hf, "slow")
        worker = hf.worker(concurrency=1, drain_s=20)
        running = asyncio.create_task(worker.run())
        await waiting.wait()
        second = await begun(hf, "slow")
        worker.stop()
        await running

        assert await ended(hf, first) == ["done"]
        left = await hf.get_run(second)
        assert left is not None
        assert (left.status, count) == ("pending", 1)

    @pytest.mark.parametrize("stubborn", [False, True])
    async def test_what_does_not_end_in_time_is_given_back(self, hf: Holdfast, stubborn: bool) -> None:
        waiting = asyncio.Event()

        async def handler(given: Any, ctx: Any) -> Done:
            await ctx.read(("run",))
            await ctx.write(("run.set", "staged"))
            await ctx.emit("half", {})
            waiting.set()
            for _ in range(60):
                try:
                    await asyncio.sleep(1)
                except asyncio.CancelledError:
                    if not stubborn:
                        raise
            return Done()

        hf.register(clog("long", handler))
        run_id = await begun(hf, "long")
        worker = hf.worker(drain_s=0.3)
        running = asyncio.create_task(worker.run())
        await waiting.wait()
        worker.stop()
        await asyncio.wait_for(running, 10)

        (abandoned,) = await bodies(hf, run_id, "tick_abandoned")
        assert abandoned["reason"] == "released"
        run = await hf.get_run(run_id)
        assert run is not None
        assert (run.status, run.deliveries, run.attempt, run.locked_by) == ("pending", 0, 0, None)
        assert await stored(hf, run_id) == []
        (claim,) = await hf.claim_next()
        assert claim.run_id == run_id
        assert (await hf.fsck()).problems == ()

    async def test_told_twice_it_gives_back_now(self, hf: Holdfast) -> None:
        waiting = asyncio.Event()

        def thread(given: Any, ctx: Any) -> Done:
            time.sleep(20)
            return Done()

        async def handler(given: Any, ctx: Any) -> Done:
            waiting.set()
            await asyncio.sleep(60)
            return Done()

        hf.register(clog("long", handler), clog("thread", thread))
        runs = [await begun(hf, "thread"), await begun(hf, "long")]
        worker = hf.worker(drain_s=60)
        running = asyncio.create_task(worker.run())
        await waiting.wait()
        worker.stop()
        await asyncio.sleep(0.2)
        assert not running.done()
        worker.stop()
        await asyncio.wait_for(running, 5)

        for run_id in runs:
            assert [body["reason"] for body in await bodies(hf, run_id, "tick_abandoned")] == ["released"]

    async def test_a_cancelled_worker_gives_back_now(self, hf: Holdfast) -> None:
        waiting = asyncio.Event()

        async def handler(given: Any, ctx: Any) -> Done:
            waiting.set()
            await asyncio.sleep(60)
            return Done()

        hf.register(clog("long", handler))
        run_id = await begun(hf, "long")
        running = asyncio.create_task(hf.worker(drain_s=60).run())
        await waiting.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(running, 10)

        assert [body["reason"] for body in await bodies(hf, run_id, "tick_abandoned")] == ["released"]

    async def test_an_outcome_that_comes_within_the_grace_counts(self, hf: Holdfast) -> None:
        waiting = asyncio.Event()

        async def handler(given: Any, ctx: Any) -> Done | Ok:
            waiting.set()
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                return Done("saved")
            return Ok()

        hf.register(clog("careful", handler))
        run_id = await begun(hf, "careful")
        worker = hf.worker(drain_s=0)
        running = asyncio.create_task(worker.run())
        await waiting.wait()
        worker.stop()
        await asyncio.wait_for(running, 10)

        run = await hf.get_run(run_id)
        assert run is not None
        assert (run.status, run.output) == ("done", "saved")

    async def test_an_outcome_on_its_way_to_disk_is_not_torn(
        self, hf: Holdfast, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        settling = asyncio.Event()
        submit = hf.journal.submit

        async def slowly(run_id: str, command: Any, **options: Any) -> Any:
            if type(command).__name__ == "Settle":
                settling.set()
                await asyncio.sleep(0.5)
            return await submit(run_id, command, **options)

        async def handler(given: Any, ctx: Any) -> Done:
            return Done("whole")

        monkeypatch.setattr(hf.journal, "submit", slowly)
        hf.register(clog("quick", handler))
        run_id = await begun(hf, "quick")
        worker = hf.worker(drain_s=0)
        running = asyncio.create_task(worker.run())
        await settling.wait()
        worker.stop()
        await running

        found = [kind for kind in await kinds(hf, run_id) if kind != "attempt_heartbeat"]
        assert found == ["run_created", "attempt_claimed", "run_terminal"]

    async def test_a_claim_that_comes_after_the_stop_is_given_back(
        self, hf: Holdfast, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        called: list[int] = []
        claiming = asyncio.Event()
        claim = hf.journal.claim

        async def slowly(request: Any) -> Any:
            claiming.set()
            await asyncio.sleep(0.5)
            return await claim(request)

        async def handler(given: Any, ctx: Any) -> Done:
            called.append(1)
            return Done()

        monkeypatch.setattr(hf.journal, "claim", slowly)
        hf.register(clog("quick", handler))
        run_id = await begun(hf, "quick")
        worker = hf.worker(drain_s=0)
        running = asyncio.create_task(worker.run())
        await claiming.wait()
        worker.stop()
        await running

        assert called == []
        run = await hf.get_run(run_id)
        assert run is not None
        assert (run.status, run.deliveries) == ("pending", 0)

    async def test_without_a_database_stopping_takes_moments_not_half_a_minute(self, hf: Holdfast) -> None:
        seam = seam_under(hf)

        async def handler(given: Any, ctx: Any) -> Done:
            seam.away = True
            await asyncio.sleep(60)
            return Done()

        hf.register(clog("long", handler))
        await begun(hf, "long")
        worker = hf.worker(drain_s=0.5)
        running = asyncio.create_task(worker.run())
        await until(lambda: seam.away)
        await asyncio.sleep(1.5)
        worker.stop()
        await asyncio.wait_for(running, 10)
        seam.away = False


@pytest.mark.parametrize("turns", range(4))
async def test_whoever_is_cancelled_as_news_arrives_ends(hf: Holdfast, turns: int) -> None:
    """Whoever hears the news and not the cancel waits for ever, and with it the worker that was told to stop."""
    listener = hf.journal.store.listen("news")

    async def hear() -> None:
        while True:
            await listener.wait(60.0)

    hearing = asyncio.create_task(hear())
    await asyncio.sleep(0.01)
    hf.journal.store.hints.publish({"news"})
    for _ in range(turns):
        await asyncio.sleep(0)
    hearing.cancel()
    done, _ = await asyncio.wait([hearing], timeout=1.0)
    listener.close()

    assert done
    assert hearing.cancelled()
