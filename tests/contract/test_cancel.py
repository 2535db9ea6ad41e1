"""Cancel: judged by live claims. Nobody works on the run, it is over; someone does, their outcome is the end."""

from __future__ import annotations

import asyncio

import pytest

from holdfast import Conflict, Continue, Done, Fail, Holdfast, LeaseLost, NotFound, Ok, Retry, Wait
from tests.conftest import FakeClock
from tests.contract.builders import LEASE_S, active, anomalies, claim_one, create, entries, in_status, kinds, look


@pytest.mark.clause("C-6", "H-S10", "H-W3", "S-62", "SB-14")
@pytest.mark.parametrize("status", ["idle", "pending", "waiting", "backing off", "paused"])
async def test_a_run_nobody_works_on_is_cancelled_at_once(hf: Holdfast, clock: FakeClock, status: str) -> None:
    run_id = await in_status(hf, status)
    before = await look(hf, run_id)

    ended = await hf.cancel(run_id, "not needed", actor="ada")

    assert (ended.status, ended.error_kind, ended.wake_at) == ("cancelled", "cancelled", None)
    assert (ended.cancel_requested_at, ended.finished_at) == (clock.now(), clock.now())
    requested, terminal = await entries(hf, run_id, after=before.rev)
    assert (requested.kind, terminal.kind) == ("cancel_requested", "run_terminal")
    assert (requested.data["reason"], requested.data["actor"]) == ("not needed", "ada")
    assert await look(hf, run_id) == ended
    assert await hf.claim_next() == []


@pytest.mark.clause("C-6")
@pytest.mark.parametrize(
    "outcome",
    [Ok(), Done("precious"), Continue(1), Wait(seconds=5), Retry("again"), Fail("broken")],
    ids=lambda outcome: type(outcome).__name__,
)
async def test_any_outcome_after_the_request_ends_the_run_cancelled(hf: Holdfast, outcome: Ok) -> None:
    claim = await active(hf)
    asked = await hf.cancel(claim.run_id)
    assert (asked.status, asked.finished_at) == ("active", None)

    ended = await hf.complete(claim, outcome)

    assert (ended.status, ended.output, ended.attempt) == ("cancelled", None, 0)
    assert await hf.complete(claim, outcome) == ended
    assert await kinds(hf, claim.run_id, after=2) == ["cancel_requested", "run_terminal"]


@pytest.mark.clause("C-6", "SB-14")
async def test_the_first_request_counts_and_repeats_write_nothing(hf: Holdfast, clock: FakeClock) -> None:
    claim = await active(hf)
    first = await hf.cancel(claim.run_id, "first")
    clock.advance(5)

    again = await hf.cancel(claim.run_id, "second")

    assert again == first
    assert await kinds(hf, claim.run_id, after=2) == ["cancel_requested"]
    ended = await hf.complete(claim, Ok())
    assert await hf.cancel(claim.run_id, "third") == ended
    assert ended.cancel_requested_at == first.cancel_requested_at


@pytest.mark.clause("C-6", "S-61", "S-63")
async def test_force_ends_the_run_under_its_worker(hf: Holdfast) -> None:
    claim = await active(hf)

    ended = await hf.cancel(claim.run_id, force=True)

    assert (ended.status, ended.locked_by) == ("cancelled", None)
    with pytest.raises(LeaseLost) as caught:
        await hf.complete(claim, Done("late"))
    assert caught.value.code == "terminal_run"
    assert await anomalies(hf, claim.run_id) == [("terminal_run", "tick_settled")]
    assert await hf.claim_next() == []


@pytest.mark.clause("C-6")
async def test_force_after_a_request_ends_the_run_too(hf: Holdfast) -> None:
    claim = await active(hf)
    await hf.cancel(claim.run_id)

    ended = await hf.cancel(claim.run_id, force=True)

    assert ended.status == "cancelled"
    assert await kinds(hf, claim.run_id, after=2) == ["cancel_requested", "run_terminal"]


@pytest.mark.clause("C-6")
async def test_a_claim_that_has_expired_is_no_live_claim(hf: Holdfast, clock: FakeClock) -> None:
    claim = await active(hf)
    clock.advance(LEASE_S)

    assert (await hf.cancel(claim.run_id)).status == "cancelled"


@pytest.mark.clause("C-6", "SB-14")
async def test_a_claim_that_expires_after_the_request_is_ended_by_the_next_claimer(
    hf: Holdfast, clock: FakeClock
) -> None:
    claim = await active(hf)
    await hf.cancel(claim.run_id)
    clock.advance(LEASE_S)

    assert await hf.claim_next() == []

    assert (await look(hf, claim.run_id)).status == "cancelled"
    assert await kinds(hf, claim.run_id, after=3) == ["tick_abandoned", "run_terminal"]


@pytest.mark.clause("C-6", "SB-14")
async def test_a_claim_given_back_after_the_request_is_not_given_out_again(hf: Holdfast) -> None:
    claim = await active(hf)
    await hf.cancel(claim.run_id)

    await hf.release(claim)

    assert await hf.claim_next() == []
    assert (await look(hf, claim.run_id)).status == "cancelled"


@pytest.mark.clause("C-6")
@pytest.mark.parametrize("status", ["done", "failed", "cancelled"])
async def test_cancelling_a_run_that_is_over_changes_nothing(hf: Holdfast, status: str) -> None:
    run_id = await in_status(hf, status)
    before = await look(hf, run_id)

    assert await hf.cancel(run_id) == before
    assert await hf.cancel(run_id, force=True) == before
    assert (await look(hf, run_id)).rev == before.rev


@pytest.mark.clause("C-6")
async def test_an_unknown_run_cannot_be_cancelled(hf: Holdfast) -> None:
    with pytest.raises(NotFound):
        await hf.cancel("nobody")

    assert await hf.journal.read("run:nobody") == []


@pytest.mark.clause("C-6", "SB-14")
async def test_a_cancel_and_a_completion_that_race_leave_one_end(hf: Holdfast) -> None:
    for _ in range(4):
        claim = await active(hf)

        await asyncio.gather(hf.cancel(claim.run_id, force=True), hf.complete(claim, Done(1)), return_exceptions=True)

        seen = await look(hf, claim.run_id)
        assert (seen.status, seen.output) in {("done", 1), ("cancelled", None)}
        assert (await kinds(hf, claim.run_id)).count("run_terminal") == 1


@pytest.mark.clause("C-6")
async def test_signals_to_a_run_that_is_being_cancelled_do_not_keep_it_alive(hf: Holdfast) -> None:
    claim = await active(hf)
    await hf.cancel(claim.run_id)
    receipt = await hf.signal(claim.run_id, "one more thing")

    ended = await hf.complete(claim, Ok())

    assert receipt.accepted
    assert ended.status == "cancelled"
    assert await hf.claim_next() == []


@pytest.mark.clause("S-62", "S-59")
async def test_the_end_closes_the_open_question(hf: Holdfast) -> None:
    run = await create(hf)
    await hf.pause(run.run_id, "review", "approval")
    await hf.cancel(run.run_id)

    with pytest.raises(Conflict) as caught:
        await hf.approve(run.run_id, actor="ada")

    assert caught.value.code == "terminal_run"
    boundary = await hf.journal.store.fetch("SELECT boundary_step, boundary_kind FROM {s}runs")
    assert boundary == [(None, None)]


@pytest.mark.clause("C-6")
async def test_a_cancelled_tick_spends_no_signal(hf: Holdfast) -> None:
    run_id = await in_status(hf, "idle")
    await hf.signal(run_id, "unheard")
    claim = await claim_one(hf)
    await hf.cancel(run_id)

    await hf.complete(claim, Ok())

    assert await hf.journal.store.fetch("SELECT tick_id FROM {s}signals") == [(None,)]
