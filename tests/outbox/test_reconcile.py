"""Reconcile finds what a crash, or a worker that keeps no audits, left behind; the report counts."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from holdfast import DeadLetter, Holdfast
from tests.conftest import FakeClock, Opener
from tests.outbox.post import claimed, letterbox, only, reasons, row, send, shared


@pytest.mark.clause("XB-10", "XB-13")
async def test_missing_audits_are_found_and_written_once(hf: Holdfast) -> None:
    sent = await claimed(hf, "w1")
    await hf.outbox.ack_sent(sent.outbox_id, "w1", "m-1")
    dead = await claimed(hf, "w2")
    await hf.outbox.mark_dead_by_worker(dead.outbox_id, "w2", "no")
    letterbox(hf, "m-2")
    await send(hf)
    assert await hf.outbox.flush_once() == only(success=1)

    seen = await hf.outbox.reconcile(report=True)
    assert (seen.found, seen.fixed, seen.ok) == (2, 0, False)
    assert set(seen.missing_audits) == {sent.outbox_id, dead.outbox_id}
    assert await reasons(hf, sent.outbox_id) == []

    done = await hf.outbox.reconcile()
    assert (done.found, done.fixed, done.ok) == (2, 2, True)
    (audit,) = await hf.outbox.audits(sent.outbox_id)
    assert (audit.reason, audit.evidence["memory_id"]) == ("outbox_flush_success", "m-1")
    assert audit.evidence["reconciled"] is True
    assert await reasons(hf, dead.outbox_id) == ["dead"]

    again = await hf.outbox.reconcile()
    assert (again.found, again.fixed, again.ok) == (0, 0, True)


@pytest.mark.clause("XB-13", "XB-10")
@shared
async def test_many_who_reconcile_at_once_write_each_audit_once(hf: Holdfast, another: Opener) -> None:
    rows = []
    for number in range(5):
        rows.append(await claimed(hf, f"w{number}"))
        await hf.outbox.ack_sent(rows[-1].outbox_id, f"w{number}")
    others = [hf, await another(), await another()]

    await asyncio.gather(*(each.outbox.reconcile() for each in others))

    assert await reasons(hf) == ["success"] * 5


@pytest.mark.clause("XB-10")
async def test_what_ended_before_the_window_is_left_alone(hf: Holdfast, clock: FakeClock) -> None:
    held = await claimed(hf)
    await hf.outbox.ack_sent(held.outbox_id, "w1")
    clock.advance(24 * 3_600 + 1)

    assert (await hf.outbox.reconcile()).found == 0
    assert (await hf.outbox.reconcile(window_s=25 * 3_600)).fixed == 1


@pytest.mark.clause("XB-10", "H-X2")
async def test_a_stale_lock_is_freed_and_a_live_or_young_one_is_not(hf: Holdfast, clock: FakeClock) -> None:
    stale = await claimed(hf, "gone", lease_seconds=400)
    live = await claimed(hf, "slow", lease_seconds=3_600)
    clock.advance(300)
    young = await claimed(hf, "young", lease_seconds=1)
    clock.advance(300)

    seen = await hf.outbox.reconcile(report=True)
    assert seen.stale_locks == (stale.outbox_id,)
    assert (await row(hf, stale.outbox_id)).locked_by == "gone"

    done = await hf.outbox.reconcile(delay_s=30)
    assert (done.found, done.fixed) == (1, 1)
    found = await row(hf, stale.outbox_id)
    assert (found.status, found.locked_by, found.lease_until, found.retry_count) == ("pending", None, None, 0)
    assert found.next_attempt_at == clock.now() + timedelta(seconds=30)
    assert [(await row(hf, each.outbox_id)).locked_by for each in (live, young)] == ["slow", "young"]
    (audit,) = await hf.outbox.audits(stale.outbox_id)
    assert (audit.reason, audit.evidence["observed_locked_by"]) == ("outbox_stale", "gone")
    assert await hf.outbox.ack_sent(stale.outbox_id, "gone") is False


@pytest.mark.clause("XB-11", "XB-13")
async def test_the_report_counts_rows_by_status_and_audits_by_action(hf: Holdfast, clock: FakeClock) -> None:
    letterbox(hf, "m-1", OSError("later"), DeadLetter("no"))
    since = clock.now()
    await send(hf, 3)
    for _ in range(3):
        await hf.outbox.flush_once(limit=1)
    await hf.outbox.enqueue("x", "nowhere")
    clock.advance(5)

    found = await hf.outbox.report()

    assert found.statuses == {"pending": 2, "sent": 1, "dead": 1}
    assert found.actions == {"allow": 1, "redirect": 1, "reject": 1}
    assert found.reasons == {f"outbox_flush_{end}": 1 for end in ("success", "retry", "dead")}
    assert (found.locked, found.oldest_pending_at) == (0, since)
    assert [each.target_space for each in await hf.outbox.rows("pending")] == ["nowhere", "email"]
