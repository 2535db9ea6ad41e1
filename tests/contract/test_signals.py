"""Signals: a mailbox in order, one signal per tick, none lost and none twice."""

from __future__ import annotations

import asyncio

import pytest

from holdfast import Continue, Done, Fail, Holdfast, Ok, Retry, Wait
from tests.conftest import FakeClock
from tests.contract.builders import LEASE_S, active, claim_one, create, idle, in_status, kinds, look


@pytest.mark.clause("O-36", "O-11")
async def test_a_signal_makes_a_resting_run_pending_with_its_input(hf: Holdfast) -> None:
    run = await idle(hf)

    receipt = await hf.signal(run.run_id, {"n": 1}, name="more")

    assert (receipt.accepted, receipt.reason, receipt.rev) == (True, None, 2)
    seen = await look(hf, run.run_id)
    assert (seen.status, seen.pending_input) == ("pending", {"n": 1})
    assert (await claim_one(hf)).input == {"n": 1}


@pytest.mark.clause("O-37", "H-O2", "C-21")
async def test_a_signal_ends_a_sleep(hf: Holdfast) -> None:
    run_id = await in_status(hf, "waiting")

    await hf.signal(run_id, "up")

    seen = await look(hf, run_id)
    assert (seen.status, seen.wake_at, seen.pending_input) == ("pending", None, "up")
    assert (await claim_one(hf)).input == "up"


@pytest.mark.clause("H-O3", "O-40", "OB-7")
async def test_signals_come_one_per_tick_in_the_order_they_were_sent(hf: Holdfast) -> None:
    run = await create(hf, input="first")
    for i in range(4):
        await hf.signal(run.run_id, i)

    seen = []
    for _ in range(5):
        claim = await claim_one(hf)
        seen.append(claim.input)
        after = await hf.complete(claim, Ok())

    assert seen == ["first", 0, 1, 2, 3]
    assert after.status == "idle"
    consumed = await hf.journal.store.fetch("SELECT seq FROM {s}signals WHERE tick_id IS NOT NULL ORDER BY seq")
    assert len(consumed) == 4


@pytest.mark.clause("H-O3", "O-40")
async def test_signals_sent_at_the_same_time_are_all_delivered(hf: Holdfast) -> None:
    run = await idle(hf)

    receipts = await asyncio.gather(*(hf.signal(run.run_id, i) for i in range(10)))

    order = [i for _, i in sorted((receipt.rev or 0, i) for i, receipt in enumerate(receipts))]
    seen = []
    for _ in range(10):
        claim = await claim_one(hf)
        seen.append(claim.input)
        await hf.complete(claim, Ok())
    assert seen == order


@pytest.mark.clause("O-39", "OB-6", "H-O3")
@pytest.mark.parametrize(
    ("outcome", "inputs"),
    [
        (Ok(), ["signal"]),
        (Wait(seconds=3_600), ["signal"]),
        (Continue("continued"), ["continued", "signal"]),
        (Retry("again", after=0), ["hello", "signal"]),
    ],
    ids=["ok", "wait", "continue", "retry"],
)
async def test_a_signal_during_a_tick_is_processed_next(hf: Holdfast, outcome: Ok, inputs: list[str]) -> None:
    claim = await active(hf)
    await hf.signal(claim.run_id, "signal")
    assert (await look(hf, claim.run_id)).status == "active"

    after = await hf.complete(claim, outcome)

    assert after.status == "pending"
    for value in inputs:
        claim = await claim_one(hf)
        assert claim.input == value
        after = await hf.complete(claim, Ok())
    assert after.status == "idle"


@pytest.mark.clause("OB-6", "C-20", "H-O13")
@pytest.mark.parametrize("outcome", [Done(1), Fail("broken")], ids=["done", "fail"])
async def test_a_signal_during_the_last_tick_is_kept_undelivered(hf: Holdfast, outcome: Done | Fail) -> None:
    claim = await active(hf)
    await hf.signal(claim.run_id, "too late")

    ended = await hf.complete(claim, outcome)

    assert ended.finished_at is not None
    assert await hf.journal.store.fetch("SELECT tick_id FROM {s}signals") == [(None,)]
    assert await hf.claim_next() == []


@pytest.mark.clause("OB-6", "H-O3")
async def test_an_equal_signal_and_a_bare_one_are_ticks_of_their_own(hf: Holdfast) -> None:
    run = await create(hf, input="same")
    claim = await claim_one(hf)
    await hf.signal(run.run_id, "same")
    await hf.signal(run.run_id)
    await hf.complete(claim, Ok())

    second = await claim_one(hf)
    await hf.complete(second, Ok())
    third = await claim_one(hf)

    assert (second.input, third.input) == ("same", None)


@pytest.mark.clause("H-O2", "OB-9")
async def test_a_backoff_is_honoured_unless_the_signal_interrupts(hf: Holdfast, clock: FakeClock) -> None:
    run_id = await in_status(hf, "backing off")
    wake_at = (await look(hf, run_id)).wake_at

    await hf.signal(run_id, "patient")
    assert (await look(hf, run_id)).wake_at == wake_at
    assert await hf.claim_next() == []
    await hf.signal(run_id, "urgent", interrupt=True)

    seen = []
    for _ in range(3):
        claim = await claim_one(hf)
        seen.append((claim.input, claim.attempt))
        await hf.complete(claim, Ok())
    assert seen == [("hello", 1), ("patient", 0), ("urgent", 0)]


@pytest.mark.clause("H-O13", "OB-8", "C-20", "C-17")
async def test_a_signal_nobody_can_take_is_answered_not_raised(hf: Holdfast) -> None:
    unknown = await hf.signal("nobody", 1)
    assert (unknown.accepted, unknown.reason, unknown.rev) == (False, "not_found", None)
    assert await hf.journal.read("run:nobody") == []

    for status in ("done", "failed", "cancelled"):
        run_id = await in_status(hf, status)
        before = await look(hf, run_id)
        late = await hf.signal(run_id, "late")
        after = await look(hf, run_id)
        assert (late.accepted, late.reason, late.rev) == (False, "terminal", before.rev + 1)
        assert (after.status, after.output, after.finished_at) == (before.status, before.output, before.finished_at)
        assert (await kinds(hf, run_id))[-1] == "signal_received"
        assert await hf.claim_next() == []


@pytest.mark.clause("H-O5", "OB-5", "O-40")
async def test_a_signal_survives_the_loss_of_its_worker(hf: Holdfast, clock: FakeClock) -> None:
    run = await idle(hf)
    await hf.signal(run.run_id, "precious")
    await hf.signal(run.run_id, "next")
    lost = await claim_one(hf)
    clock.advance(LEASE_S)

    again = await claim_one(hf)
    await hf.complete(again, Ok())

    assert (lost.input, again.input) == ("precious", "precious")
    assert (await claim_one(hf)).input == "next"


@pytest.mark.clause("H-O5", "OB-5")
async def test_a_retried_signal_comes_before_the_ones_behind_it(hf: Holdfast, clock: FakeClock) -> None:
    run = await idle(hf)
    for name in ("first", "second"):
        await hf.signal(run.run_id, name)
    await hf.fail(await claim_one(hf), "again")
    clock.advance(1)

    retried = await claim_one(hf)
    await hf.complete(retried, Continue("continued"))
    continued = await claim_one(hf)
    await hf.complete(continued, Ok())

    assert [retried.input, continued.input, (await claim_one(hf)).input] == ["first", "continued", "second"]


@pytest.mark.clause("OB-6", "O-39")
async def test_signals_and_outcomes_that_race_lose_nothing(hf: Holdfast) -> None:
    claim = await active(hf)

    await asyncio.gather(hf.complete(claim, Ok()), *(hf.signal(claim.run_id, i) for i in range(5)))

    seen = []
    while claims := await hf.claim_next():
        seen.append(claims[0].input)
        await hf.complete(claims[0], Ok())
    assert sorted(seen) == [0, 1, 2, 3, 4]
