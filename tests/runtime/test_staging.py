"""What a tick stages commits with its outcome: all of it, or nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import Conflict, Context, Continue, Done, Fail, Holdfast, InvalidValue, LeaseLost, Ok, Retry, Wait
from tests.conftest import FakeClock
from tests.contract.builders import LEASE_S, create, entries, kinds, look, quiet
from tests.runtime.clogs import answering, said

STAGED = ("storage_written", "outbox_enqueued", "child_run_started")


async def stage(ctx: Context) -> None:
    """One of everything that waits for the commit."""
    await ctx.read(("run",), ("session",))
    await ctx.write(("run.set", 1), ("session.set", 2))
    await ctx.outbox("email", {"to": "ann"})
    await ctx.child("helper", key="k", input="go")


async def staged_kinds(hf: Holdfast, run_id: str) -> list[str]:
    return [kind for kind in await kinds(hf, run_id) if kind in STAGED]


async def outbox(hf: Holdfast) -> list[tuple[Any, ...]]:
    """What is to be sent, by its space: ids of one millisecond have no order."""
    return await hf.journal.store.fetch(
        "SELECT target_space, payload, idempotency_key, status, run_id FROM {s}outbox ORDER BY target_space, payload"
    )


@pytest.mark.clause("H-O14", "S-16", "C-19", "O-35")
@pytest.mark.parametrize("answer", [Ok(), Done(), Continue(1), Wait(seconds=1), Retry("later"), Fail("no")])
async def test_everything_staged_commits_with_whatever_outcome_is_returned(hf: Holdfast, answer: Any) -> None:
    async def stages(given: Any, ctx: Context) -> Any:
        await stage(ctx)
        assert await staged_kinds(hf, ctx.run_id) == []
        return answer

    answering(hf, stages)
    run = await create(hf)
    await hf.advance()
    await quiet(hf)

    assert await staged_kinds(hf, run.run_id) == list(STAGED)
    found = await entries(hf, run.run_id)
    assert len({entry.at for entry in found if entry.kind in (*STAGED, "tick_settled", "run_terminal")}) == 1
    assert await outbox(hf) == [("email", '{"to":"ann"}', None, "pending", run.run_id)]
    (child,) = (await hf.list_runs(clog_id="helper")).items
    assert (await look(hf, child.run_id)).pending_input == "go"


@pytest.mark.clause("H-O14")
@pytest.mark.parametrize("answer", [ValueError("no"), asyncio.CancelledError()])
async def test_an_exception_discards_what_was_staged_and_keeps_what_was_said(hf: Holdfast, answer: Any) -> None:
    async def stages(given: Any, ctx: Context) -> None:
        await stage(ctx)
        await ctx.emit("note", 1)
        raise answer

    answering(hf, stages)
    run = await create(hf)
    await hf.advance()
    await quiet(hf)

    assert await staged_kinds(hf, run.run_id) == []
    assert await outbox(hf) == []
    assert await said(hf, run.run_id) == [("note", 1)]
    assert (await look(hf, run.run_id)).attempt == 1


@pytest.mark.clause("H-O14", "H-O10")
async def test_a_lost_lease_discards_what_was_staged(hf: Holdfast, clock: FakeClock) -> None:
    async def stages(given: Any, ctx: Context) -> Ok:
        await stage(ctx)
        clock.advance(LEASE_S)
        return Ok()

    answering(hf, stages)
    run = await create(hf)
    await hf.advance()
    await quiet(hf)

    assert await staged_kinds(hf, run.run_id) == []
    assert await outbox(hf) == []
    await hf.advance()
    assert (await look(hf, run.run_id)).status == "idle"


@pytest.mark.clause("H-O14", "C-6")
async def test_a_cancel_discards_what_was_staged(hf: Holdfast) -> None:
    async def stages(given: Any, ctx: Context) -> Done:
        await stage(ctx)
        await hf.cancel(ctx.run_id)
        return Done()

    answering(hf, stages)
    run = await create(hf)
    await hf.advance()
    await quiet(hf)

    assert (await look(hf, run.run_id)).status == "cancelled"
    assert await staged_kinds(hf, run.run_id) == []
    assert (await hf.list_runs(clog_id="helper")).items == []


@pytest.mark.clause("H-O14")
async def test_a_retried_tick_writes_its_rows_once(hf: Holdfast, clock: FakeClock) -> None:
    async def counts(given: Any, ctx: Context) -> Ok:
        (count,) = await ctx.read(("run",))
        await ctx.write(("run.set", (count or 0) + 1))
        if ctx.attempt < 2:
            raise ValueError("again")
        return Ok()

    answering(hf, counts, counts, counts)
    await create(hf)
    await hf.drain()

    assert await hf.journal.store.fetch("SELECT value FROM {s}run_storage") == [("1",)]


@pytest.mark.clause("C-26", "C-19")
async def test_a_delivery_with_a_key_is_staged_once(hf: Holdfast) -> None:
    ids: list[str] = []

    async def sends(given: Any, ctx: Context) -> Continue:
        for _ in range(2):
            ids.append(await ctx.outbox("email", {"to": "ann"}, key="welcome"))
        ids.append(await ctx.outbox("sms", {"to": "ann"}, key="welcome"))
        return Continue()

    answering(hf, sends, sends)
    await create(hf)
    await hf.advance()
    await hf.advance()

    assert len(set(ids)) == 2
    assert [row[:3] for row in await outbox(hf)] == [
        ("email", '{"to":"ann"}', "welcome"),
        ("sms", '{"to":"ann"}', "welcome"),
    ]


@pytest.mark.clause("C-26")
async def test_a_key_of_another_payload_is_a_conflict_and_the_tick_goes_on(hf: Holdfast) -> None:
    async def sends(given: Any, ctx: Context) -> Done:
        await ctx.outbox("email", 1, key="k")
        with pytest.raises(Conflict) as reused:
            await ctx.outbox("email", 2, key="k")
        return Done(reused.value.code)

    answering(hf, sends)
    run = await create(hf)
    await hf.advance()

    assert (await look(hf, run.run_id)).output == "key_reused"
    assert [row[1] for row in await outbox(hf)] == ["1"]


@pytest.mark.clause("C-26")
async def test_two_ticks_that_stage_one_key_at_once_make_one_delivery(hf: Holdfast) -> None:
    async def sends(given: Any, ctx: Context) -> Ok:
        await ctx.outbox("email", "same", key="k")
        if given:
            await hf.advance(max_runs=1)
        return Ok()

    answering(hf, *[sends] * 5)
    first = await create(hf, input=True)
    await create(hf, input=False)
    await hf.drain()

    assert [row[1] for row in await outbox(hf)] == ['"same"']
    assert (await look(hf, first.run_id)).status == "idle"


@pytest.mark.parametrize("payload", [float("nan"), object(), "x" * (9 << 20)])
async def test_what_cannot_be_stored_is_refused_when_it_is_staged(hf: Holdfast, payload: Any) -> None:
    async def stages(given: Any, ctx: Context) -> Done:
        with pytest.raises(InvalidValue):
            await ctx.outbox("email", payload)
        with pytest.raises(InvalidValue):
            await ctx.child("helper", key="k", input=payload)
        for space in ("", "x" * 300, "a\0", 7):
            with pytest.raises(InvalidValue):
                await ctx.outbox(space, 1)  # type: ignore[arg-type]
        return Done("fine")

    answering(hf, stages)
    run = await create(hf)
    await hf.advance()

    assert (await look(hf, run.run_id)).output == "fine"
    assert await outbox(hf) == []


@pytest.mark.clause("H-O14")
async def test_an_event_is_seen_before_the_outcome_and_storage_with_it(hf: Holdfast) -> None:
    async def stages(given: Any, ctx: Context) -> Ok:
        await stage(ctx)
        await ctx.emit("note", "now")
        assert await said(hf, ctx.run_id) == [("note", "now")]
        assert await hf.journal.store.fetch("SELECT 1 FROM {s}run_storage") == []
        return Ok()

    answering(hf, stages)
    run = await create(hf)
    (result,) = (await hf.advance()).results

    assert result.outcome == "ok"
    assert len(await hf.journal.store.fetch("SELECT 1 FROM {s}run_storage")) == 1
    assert (await kinds(hf, run.run_id))[-1] == "tick_settled"


@pytest.mark.clause("H-O10")
async def test_a_ghost_cannot_stage_for_anybody(hf: Holdfast) -> None:
    kept: list[Context] = []

    async def leaks(given: Any, ctx: Context) -> Ok:
        kept.append(ctx)
        return Ok()

    answering(hf, leaks)
    await create(hf)
    await hf.advance()

    with pytest.raises(LeaseLost):
        await stage(kept[0])
