"""gc and the outbox: what ended long ago and belongs to no run goes, with its audits; what is to be sent stays."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import Context, DeadLetter, Done, Holdfast
from tests.conftest import FakeClock, Opener
from tests.contract.builders import INSTANT, count
from tests.outbox.post import letterbox, only, row, send, shared
from tests.worker.places import clog

DAY = 86_400.0


async def ids(hf: Holdfast) -> list[str]:
    return [found[0] for found in await hf._store.fetch("SELECT outbox_id FROM {s}outbox ORDER BY seq")]


async def sent(hf: Holdfast, number: int = 1, space: str = "email") -> list[str]:
    """Rows that are delivered, each with its audit."""
    letterbox(hf, space=space)
    found = await send(hf, number, space)
    assert (await hf.outbox.flush_once(limit=number))["outbox_flush_success"] == number
    return found


@pytest.mark.clause("XB-13")
async def test_ended_rows_of_no_run_go_when_they_are_old_enough(hf: Holdfast, clock: FakeClock) -> None:
    letterbox(hf, "m-1", DeadLetter("no address"))
    await send(hf, 2)
    assert await hf.outbox.flush_once() == only(success=1, dead=1)
    waiting = await hf.outbox.enqueue("later", "nowhere")
    clock.advance(DAY - INSTANT)
    await hf.gc(DAY)
    assert len(await ids(hf)) == 3
    clock.advance(INSTANT)

    assert await hf.gc(DAY) == 0

    assert await ids(hf) == [waiting]
    assert await hf.outbox.audits() == []


async def test_what_waits_or_is_held_never_goes(hf: Holdfast, clock: FakeClock) -> None:
    first, second = await send(hf, 2)
    await hf.outbox.claim_outbox("w1", limit=1, lease_seconds=10 * DAY)
    clock.advance(5 * DAY)

    await hf.gc(0)

    assert await ids(hf) == [first, second]
    assert (await row(hf, first)).locked_by == "w1"


async def test_many_go_in_batches_and_the_limit_holds(hf: Holdfast, clock: FakeClock) -> None:
    await sent(hf, 250)
    clock.advance(DAY)

    await hf.gc(DAY, limit=0)
    assert await count(hf, "outbox") == 250
    await hf.gc(DAY, limit=120)
    assert await count(hf, "outbox") == 130
    await hf.gc(DAY)

    assert await count(hf, "outbox") + await count(hf, "outbox_audits") == 0


async def test_one_user_removes_their_own(hf: Holdfast, clock: FakeClock) -> None:
    await sent(hf)
    clock.advance(DAY)

    await hf.as_user("somebody").gc(DAY)
    assert await count(hf, "outbox") == 1
    await hf.as_user("local").gc(DAY)

    assert await count(hf, "outbox") == 0


async def started(hf: Holdfast) -> tuple[str, str]:
    """A run that is over and asked for a delivery; its id and the row's."""

    async def advance(given: Any, ctx: Context) -> Done:
        return Done(await ctx.outbox("mail", {"to": given}))

    hf.register(clog("sender", advance))
    run = await hf.create_run(session_id="s", clog_id="sender", input="ann")
    await hf.advance()
    (outbox_id,) = await ids(hf)
    return run.run_id, outbox_id


async def test_the_rows_of_a_run_that_is_kept_stay(hf: Holdfast, clock: FakeClock) -> None:
    run_id, outbox_id = await started(hf)
    letterbox(hf, space="mail")
    clock.advance(DAY)
    await hf.outbox.flush_once()
    await hf._store.execute(("UPDATE {s}outbox SET settled_at = 1", ()))

    assert await hf.gc(2 * DAY) == 0

    assert await ids(hf) == [outbox_id]
    assert (await hf.fsck(run_id)).ok


@pytest.mark.parametrize("how", ["purge", "gc"])
async def test_what_outlived_its_run_goes_in_its_own_time(hf: Holdfast, clock: FakeClock, how: str) -> None:
    run_id, outbox_id = await started(hf)
    clock.advance(DAY)
    if how == "purge":
        await hf.purge(run_id)
    else:
        assert await hf.gc(DAY) == 1
    box = letterbox(hf, space="mail")

    assert await hf.outbox.flush_once() == only(success=1)
    assert box.payloads == [{"to": "ann"}]
    assert (await row(hf, outbox_id)).run_id is None
    await hf.gc(DAY)
    assert await ids(hf) == [outbox_id]
    clock.advance(DAY)
    await hf.gc(DAY)

    assert await ids(hf) == []
    assert await hf.outbox.audits() == []


@shared
async def test_two_who_clear_up_at_once_do_no_harm(hf: Holdfast, another: Opener, clock: FakeClock) -> None:
    await sent(hf, 150)
    other = await another()
    clock.advance(DAY)
    (late,) = await sent(hf, space="sms")

    await asyncio.gather(hf.gc(DAY), other.gc(DAY), hf.gc(DAY))
    await hf.gc(DAY)

    assert await ids(hf) == [late]
    assert await count(hf, "outbox_audits") == 1
