"""Ghosts: handlers that lost their lease, or whose run someone stopped. What they write late is refused, once noted."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import Context, Done, Holdfast, LeaseLost, Ok, Retry
from tests.conftest import FakeClock, Opener
from tests.contract.builders import INSTANT, LEASE_S, anomalies, claim_one, create, event_types, kinds, look
from tests.runtime.clogs import answering, inputs, on_advance, said, shared

PATIENCE_S = 10


@shared
@pytest.mark.clause("O-33", "O-34", "H-O1", "H-O5", "H-O10", "OB-10", "C-16", "S-31", "S-35")
async def test_a_ghosts_outcome_is_refused_and_its_input_delivered_again(
    hf: Holdfast, another: Opener, clock: FakeClock
) -> None:
    rival = await another()
    seen = answering(rival, Done("theirs"))

    async def sleeps_too_long(given: Any, ctx: Context) -> Done:
        clock.advance(LEASE_S - INSTANT)
        assert (await rival.advance()).advanced == 0
        clock.advance(INSTANT)
        assert (await rival.advance()).advanced == 1
        return Done("mine")

    on_advance(hf, sleeps_too_long)
    run = await create(hf)

    assert (await hf.advance()).advanced == 0
    after = await look(hf, run.run_id)
    assert (after.status, after.output) == ("done", "theirs")
    assert [(each.input, each.deliveries) for each in seen] == [("hello", 2)]
    assert await anomalies(hf, run.run_id) == [("terminal_run", "tick_settled")]


@pytest.mark.clause("H-O10", "S-37", "S-41", "S-42")
async def test_an_outcome_after_the_lease_is_dropped_though_nobody_took_over(hf: Holdfast, clock: FakeClock) -> None:
    async def sleeps_too_long(given: Any, ctx: Context) -> Done:
        await ctx.outbox("email", "never sent")
        clock.advance(LEASE_S)
        return Done("late")

    seen = answering(hf, sleeps_too_long)
    run = await create(hf)

    assert (await hf.advance()).advanced == 0
    assert (await look(hf, run.run_id)).status == "active"
    assert await anomalies(hf, run.run_id) == [("expired_claim", "tick_settled")]
    assert (await hf.advance()).advanced == 1
    assert [(each.attempt, each.deliveries) for each in seen] == [(0, 1), (0, 2)]
    assert await hf.journal.store.fetch("SELECT 1 FROM {s}outbox") == []


@pytest.mark.clause("H-O10", "S-36", "S-38", "S-44")
async def test_everything_a_ghost_says_is_refused_and_noted_once(hf: Holdfast, clock: FakeClock) -> None:
    async def haunts(given: Any, ctx: Context) -> Done:
        await ctx.emit("before", 1)
        clock.advance(LEASE_S)
        for _ in range(3):
            with pytest.raises(LeaseLost) as lost:
                await ctx.emit("after", 2)
            assert lost.value.code == "expired_claim"
        return Done()

    answering(hf, haunts)
    run = await create(hf)

    assert (await hf.advance()).advanced == 0
    assert await anomalies(hf, run.run_id) == [("expired_claim", "event")]
    assert await said(hf, run.run_id) == [("before", 1)]


@pytest.mark.clause("H-O1", "H-O16", "S-33")
async def test_a_takeover_tells_watchers_to_drop_what_the_ghost_said(hf: Holdfast, clock: FakeClock) -> None:
    async def speaks_and_dies(given: Any, ctx: Context) -> None:
        await ctx.emit("text", "half an ans")
        clock.advance(LEASE_S)
        await ctx.emit("text", "wer")

    seen = answering(hf, speaks_and_dies)
    run = await create(hf)
    await hf.advance()
    await hf.advance()

    abandoned = [event async for event in hf.events(run.run_id) if event.type == "tick_abandoned"]
    assert [event.data["tick_id"] for event in abandoned] == [seen[0].tick_id]
    spoken = [event async for event in hf.events(run.run_id) if event.type == "text"]
    assert all(event.seq >= abandoned[0].data["from_seq"] for event in spoken)
    assert {event.tick_id for event in spoken} == {seen[0].tick_id}


@shared
@pytest.mark.clause("H-O10", "S-44", "S-63", "S-29")
async def test_a_ghost_whose_run_went_on_is_a_stale_claim(hf: Holdfast, another: Opener, clock: FakeClock) -> None:
    rival = await another()
    answering(rival, Ok())

    async def haunts(given: Any, ctx: Context) -> Ok:
        clock.advance(LEASE_S)
        await rival.advance()
        with pytest.raises(LeaseLost) as lost:
            await ctx.emit("after", 2)
        assert lost.value.code == "stale_claim"
        return Ok()

    on_advance(hf, haunts)
    run = await create(hf)

    assert (await hf.advance()).advanced == 0
    assert (await look(hf, run.run_id)).status == "idle"
    assert await anomalies(hf, run.run_id) == [("stale_claim", "event")]


@pytest.mark.clause("H-O12", "H-W6")
async def test_an_input_that_kills_its_workers_is_given_up(hf: Holdfast, clock: FakeClock) -> None:
    async def dies(given: Any, ctx: Context) -> Ok:
        clock.advance(LEASE_S)
        return Ok()

    seen = answering(hf, *[dies] * 9)
    run = await create(hf, max_deliveries=3)

    for _ in range(5):
        await hf.advance()

    after = await look(hf, run.run_id)
    assert [each.deliveries for each in seen] == [1, 2, 3]
    assert (after.status, after.error_kind) == ("failed", "worker_lost")


@pytest.mark.clause("H-O11", "S-40")
async def test_a_lease_that_was_taken_away_cancels_the_handler(real: Holdfast) -> None:
    stopped = asyncio.Event()

    async def waits(given: Any, ctx: Context) -> Ok:
        try:
            # The news may come while the order is still being answered.
            await real.cancel(ctx.run_id, force=True)
            await asyncio.sleep(PATIENCE_S)
        except asyncio.CancelledError:
            stopped.set()
            raise
        return Ok()

    on_advance(real, waits)
    run = await create(real)

    async with asyncio.timeout(PATIENCE_S):
        await real.execute_next(lease_ms=60_000, heartbeat_interval_ms=20)

    assert stopped.is_set()
    assert (await look(real, run.run_id)).status == "cancelled"


@pytest.mark.clause("C-6", "SB-14")
async def test_a_run_cancelled_between_claim_and_handler_never_meets_it(hf: Holdfast) -> None:
    seen = answering(hf)
    run = await create(hf)
    take = hf.take

    async def take_and_cancel(*args: Any, **options: Any) -> Any:
        claims = await take(*args, **options)
        await hf.cancel(run.run_id)
        # As if the cancel had come a moment earlier: what the claimer knows of the run is from after it.
        states = await hf.journal.slices([run.run_id])
        return [item._replace(state=states[run.run_id]) for item in claims]

    hf.take = take_and_cancel  # type: ignore[method-assign]
    await hf.advance(max_runs=1)

    assert seen == []
    assert (await look(hf, run.run_id)).status == "cancelled"


@pytest.mark.clause("C-6")
async def test_a_cancel_reaches_the_handler_at_its_next_await(hf: Holdfast) -> None:
    noticed: list[bool] = []

    async def waits(given: Any, ctx: Context) -> Ok:
        await ctx.outbox("email", "never sent")
        try:
            # The news may come while the order is still being answered.
            await hf.cancel(ctx.run_id, "enough")
            await asyncio.sleep(PATIENCE_S)
        finally:
            noticed.append(ctx.cancelled)
        return Ok()

    answering(hf, waits)
    run = await create(hf)

    async with asyncio.timeout(PATIENCE_S):
        (result,) = (await hf.advance()).results

    assert noticed == [True]
    assert result.status == "cancelled"
    assert await kinds(hf, run.run_id) == ["run_created", "attempt_claimed", "cancel_requested", "run_terminal"]
    assert await hf.journal.store.fetch("SELECT 1 FROM {s}outbox") == []


@pytest.mark.clause("C-6")
@pytest.mark.parametrize("answer", [Ok(), Done("result"), Retry("later"), ValueError("no")])
async def test_after_a_cancel_any_answer_ends_the_run_cancelled(hf: Holdfast, answer: Any) -> None:
    async def finishes(given: Any, ctx: Context) -> Any:
        await ctx.read(("run",))
        await ctx.write(("run.set", 1))
        await hf.cancel(ctx.run_id)
        if isinstance(answer, Exception):
            raise answer
        return answer

    answering(hf, finishes)
    run = await create(hf)

    (result,) = (await hf.advance()).results

    after = await look(hf, run.run_id)
    assert (result.status, after.status, after.output) == ("cancelled", "cancelled", None)
    assert "storage_written" not in await kinds(hf, run.run_id)


@pytest.mark.clause("C-6", "S-61", "S-63")
async def test_a_forced_cancel_ends_the_run_and_refuses_the_late_answer(hf: Holdfast) -> None:
    async def finishes(given: Any, ctx: Context) -> Done:
        await hf.cancel(ctx.run_id, force=True)
        await ctx.emit("late", 1)
        return Done("late")

    answering(hf, finishes)
    run = await create(hf)

    assert (await hf.advance()).advanced == 0
    assert (await look(hf, run.run_id)).status == "cancelled"
    # The handler may be cancelled before it speaks; then its answer is what comes late.
    assert [reason for reason, _ in await anomalies(hf, run.run_id)] == ["terminal_run"]
    assert (await event_types(hf, run.run_id))[-1] == "done"


@pytest.mark.clause("C-6")
async def test_a_cancelled_run_whose_worker_died_ends_without_its_handler(hf: Holdfast, clock: FakeClock) -> None:
    seen = answering(hf)
    claim = await create(hf)
    await claim_one(hf)
    await hf.cancel(claim.run_id)
    clock.advance(LEASE_S)

    assert (await hf.advance()).advanced == 0
    assert seen == []
    assert (await look(hf, claim.run_id)).status == "cancelled"


@pytest.mark.clause("O-35")
async def test_an_advance_that_is_cut_gives_its_run_back_at_once(hf: Holdfast) -> None:
    started = asyncio.Event()

    async def waits(given: Any, ctx: Context) -> Ok:
        await ctx.emit("text", "half")
        started.set()
        await asyncio.sleep(PATIENCE_S)
        return Ok()

    seen = answering(hf, waits)
    run = await create(hf)
    task = asyncio.create_task(hf.advance())
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    after = await look(hf, run.run_id)
    assert (after.status, after.deliveries, after.locked_by) == ("pending", 0, None)
    assert (await hf.advance()).advanced == 1
    assert [each.deliveries for each in seen] == [1, 1]
    assert inputs(seen) == ["hello", "hello"]


@pytest.mark.clause("H-O10")
async def test_a_context_is_worth_nothing_once_its_tick_is_over(hf: Holdfast) -> None:
    kept: list[Context] = []

    async def leaks(given: Any, ctx: Context) -> Ok:
        kept.append(ctx)
        return Ok()

    answering(hf, leaks)
    run = await create(hf)
    await hf.advance()

    (ctx,) = kept
    for call in (
        lambda: ctx.emit("late", 1),
        lambda: ctx.read(("run",)),
        lambda: ctx.write(("run.clear",)),
        lambda: ctx.outbox("email", 1),
        lambda: ctx.call("chat", "x"),
        lambda: ctx.child("chat", key="k"),
    ):
        with pytest.raises(LeaseLost):
            await call()
    with pytest.raises(LeaseLost):
        ctx.stream("text", "late")
    assert await said(hf, run.run_id) == []
