"""What workers do beside their work, by the shared clock: reconcile the outbox and, if told, remove what is old."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from holdfast import Done, Holdfast, InvalidValue
from holdfast.runtime import chores
from holdfast.runtime.chores import GC_S, LOOK_S, RECONCILE_S, Chores
from holdfast.testing import VirtualClock
from tests.conftest import Opener
from tests.contract.builders import assert_sound
from tests.worker.places import clog, seam_under, until, working

DAY = 86_400.0


async def quick(given: Any, ctx: Any) -> Done:
    return Done()


async def at_virtual(open_hf: Opener, clock: VirtualClock, **options: Any) -> Holdfast:
    hf = await open_hf(clock=clock, **options)
    hf.register(clog("quick", quick))
    return hf


async def untold(hf: Holdfast, name: str) -> str:
    """A row that was sent by a worker that keeps no audits."""
    outbox_id = await hf.outbox.enqueue({"to": name}, "email")
    await hf.outbox.claim_outbox(name)
    assert await hf.outbox.ack_sent(outbox_id, name)
    return outbox_id


async def forsaken(hf: Holdfast, name: str) -> str:
    """A row whose worker took it and was never seen again."""
    outbox_id = await hf.outbox.enqueue({"to": name}, "email")
    await hf.outbox.claim_outbox(name, lease_seconds=60)
    return outbox_id


async def told(hf: Holdfast, outbox_id: str) -> list[str]:
    return [audit.reason for audit in await hf.outbox.audits(outbox_id)]


async def over(hf: Holdfast) -> str:
    run = await hf.create_run(session_id="s", clog_id="quick", input=1)
    await hf.advance()
    return run.run_id


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers look at the clock often; when something is due is still for the clock to say."""
    monkeypatch.setattr(chores, "LOOK_S", 0.02)


@pytest.mark.clause("C-9", "XB-10")
async def test_a_worker_reconciles_the_outbox_by_itself(open_hf: Opener, impatient: None) -> None:
    clock = VirtualClock()
    hf = await at_virtual(open_hf, clock)
    first = await untold(hf, "w1")

    async with working(hf):
        await asyncio.sleep(0.3)
        before = await told(hf, first)
        clock.advance(RECONCILE_S)
        await until(lambda: told(hf, first))
        second, lost = await untold(hf, "w2"), await forsaken(hf, "w3")
        clock.advance(2 * RECONCILE_S + 60)
        await until(lambda: told(hf, second))
        await until(lambda: told(hf, lost))

    assert before == []
    assert (await told(hf, first), await told(hf, second)) == (["outbox_flush_success"],) * 2
    assert await told(hf, lost) == ["outbox_stale"]
    await assert_sound(hf)


@pytest.mark.clause("C-9", "OB-17")
async def test_a_worker_removes_what_is_older_than_the_retention(open_hf: Opener, impatient: None) -> None:
    clock = VirtualClock()
    hf = await at_virtual(open_hf, clock, retention=timedelta(days=1))
    old = await over(hf)
    row = await untold(hf, "w1")
    clock.advance(DAY - 2 * GC_S)
    young = await over(hf)

    async with working(hf):
        await asyncio.sleep(0.3)
        clock.advance(2 * GC_S)
        await until(lambda: hf.is_gone(old))
        clock.advance(2 * GC_S)
        await until(lambda: is_away(hf, row))

    assert await hf.get_run(old) is None
    assert await hf.get_run(young) is not None
    await assert_sound(hf)


async def is_away(hf: Holdfast, outbox_id: str) -> bool:
    return await hf.outbox.get(outbox_id) is None


@pytest.mark.clause("C-9", "C-12")
async def test_without_a_retention_nothing_ever_goes(open_hf: Opener, impatient: None) -> None:
    clock = VirtualClock()
    hf = await at_virtual(open_hf, clock)
    old, row = await over(hf), await untold(hf, "w1")

    async with working(hf):
        for _ in range(5):
            clock.advance(1_000 * DAY)
            await asyncio.sleep(0.1)

    assert await hf.get_run(old) is not None
    assert await hf.outbox.get(row) is not None


@pytest.mark.clause("C-9")
async def test_chores_are_done_in_their_time_and_a_little_apart(open_hf: Opener) -> None:
    clock = VirtualClock()
    hf = await at_virtual(open_hf, clock, retention=DAY)
    turns = [Chores(hf, hf.outbox, DAY) for _ in range(8)]
    waits = [await each.turn() for each in turns]
    seam = seam_under(hf)

    assert all(0 < wait <= LOOK_S for wait in waits)
    assert len(set(waits)) > 1
    clock.advance(RECONCILE_S)
    for each in turns:
        assert 0 < await each.turn() <= LOOK_S
    asked = sum(seam.calls.values()) - seam.calls["now"]
    assert 0 < asked <= len(turns) * 8, "a round a minute must not be felt"
    for each in turns:
        await each.turn()

    assert sum(seam.calls.values()) - seam.calls["now"] == asked


@pytest.mark.clause("C-9")
async def test_a_chore_that_fails_keeps_no_other_from_being_done_and_comes_again(
    open_hf: Opener, impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = VirtualClock()
    hf = await at_virtual(open_hf, clock, retention=DAY)
    old = await over(hf)
    failures = 0

    async def broken(**_: Any) -> None:
        nonlocal failures
        failures += 1
        raise RuntimeError("as told")

    monkeypatch.setattr(hf.outbox, "reconcile", broken)

    async with working(hf):
        await asyncio.sleep(0.1)
        clock.advance(DAY)
        await until(lambda: hf.is_gone(old))
        await until(lambda: failures == 1)
        clock.advance(2 * RECONCILE_S)
        await until(lambda: failures == 2)


@pytest.mark.parametrize("retention", [-1, "a day", True, timedelta(days=-1)])
def test_a_retention_that_is_no_time_is_refused(retention: Any) -> None:
    with pytest.raises(InvalidValue):
        Holdfast(":memory:", retention=retention)
