"""A lost claim changes nothing: every write of its holder is refused, and the refusal is remembered once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from msgspec.structs import replace

from holdfast import Claim, Conflict, Continue, Done, Fail, Holdfast, LeaseLost, Ok, Retry, Wait
from tests.conftest import FakeClock
from tests.contract.builders import LEASE_S, active, anomalies, claim_one, kinds, look, start_child, stolen

Call = Callable[[Holdfast, Claim], Awaitable[object]]

CALLS: dict[str, Call] = {
    "attempt_heartbeat": lambda hf, claim: hf.heartbeat(claim),
    "event": lambda hf, claim: hf.emit(claim, "text", "late"),
    "tick_abandoned": lambda hf, claim: hf.release(claim),
    "tick_settled": lambda hf, claim: hf.complete(claim, Done("late")),
}


async def expired(hf: Holdfast, clock: FakeClock) -> Claim:
    """Its lease has ended and nobody came."""
    claim = await active(hf)
    clock.advance(LEASE_S)
    return claim


async def taken_over(hf: Holdfast, clock: FakeClock) -> Claim:
    """Its lease has ended and someone else works on the run."""
    claim = await expired(hf, clock)
    await claim_one(hf)
    return claim


async def guessed(hf: Holdfast, clock: FakeClock) -> Claim:
    """The right claim with a wrong token."""
    return stolen(await active(hf))


async def ended(hf: Holdfast, clock: FakeClock) -> Claim:
    """The run is over."""
    claim = await active(hf)
    await hf.cancel(claim.run_id, force=True)
    return claim


@pytest.mark.clause("S-36", "S-37", "S-38", "S-42", "H-O10", "H-W2", "SB-5", "S-63", "O-12")
@pytest.mark.parametrize(
    ("lose", "code"),
    [
        (expired, "expired_claim"),
        (taken_over, "stale_claim"),
        (guessed, "stale_claim"),
        (ended, "terminal_run"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
async def test_a_lost_claim_is_refused_with_its_reason_and_remembered_once(
    hf: Holdfast,
    clock: FakeClock,
    lose: Callable[[Holdfast, FakeClock], Awaitable[Claim]],
    code: str,
) -> None:
    for kind, call in CALLS.items():
        claim = await lose(hf, clock)
        before = await look(hf, claim.run_id)

        for _ in range(3):
            with pytest.raises(LeaseLost) as caught:
                await call(hf, claim)
            assert caught.value.code == code

        after = await look(hf, claim.run_id)
        assert after == replace(before, rev=before.rev + 1, updated_at=clock.now())
        assert await anomalies(hf, claim.run_id) == [(code, kind)]
        await hf.cancel(claim.run_id, force=True)


@pytest.mark.clause("SB-5", "S-44")
async def test_each_reason_of_a_claim_is_remembered_once(hf: Holdfast, clock: FakeClock) -> None:
    claim = await expired(hf, clock)

    for call in CALLS.values():
        with pytest.raises(LeaseLost):
            await call(hf, claim)
    await claim_one(hf)
    for call in CALLS.values():
        with pytest.raises(LeaseLost):
            await call(hf, claim)

    assert [reason for reason, _ in await anomalies(hf, claim.run_id)] == ["expired_claim", "stale_claim"]
    assert (await kinds(hf, claim.run_id)).count("anomaly") == 2


@pytest.mark.clause("SB-5", "S-63")
async def test_a_refusal_is_a_public_event_before_the_end_only(hf: Holdfast, clock: FakeClock) -> None:
    claim = await expired(hf, clock)
    with pytest.raises(LeaseLost):
        await hf.emit(claim, "text", "late")
    final = await claim_one(hf)
    await hf.complete(final)
    with pytest.raises(LeaseLost):
        await hf.emit(final, "text", "later")

    events = [event async for event in hf.events(claim.run_id)]

    assert [event.data["reason"] for event in events if event.type == "anomaly"] == ["expired_claim"]
    assert events[-1].type == "done"
    assert (await kinds(hf, claim.run_id))[-1] == "anomaly"


async def test_a_claim_on_a_run_that_never_was_writes_nothing(hf: Holdfast) -> None:
    claim = await active(hf)
    stray = replace(claim, run_id="nobody")

    for call in CALLS.values():
        with pytest.raises(LeaseLost):
            await call(hf, stray)

    assert await hf.journal.read("run:nobody") == []
    assert await hf.get_run("nobody") is None


@pytest.mark.clause("S-43", "H-S3", "S-39")
@pytest.mark.parametrize(
    "outcome",
    [Ok(), Done({"a": [1]}), Continue("more"), Wait(seconds=60), Retry("later"), Fail("broken")],
    ids=lambda outcome: type(outcome).__name__,
)
async def test_an_identical_completion_answers_the_first(hf: Holdfast, outcome: Ok) -> None:
    claim = await active(hf)

    first = await hf.complete(claim, outcome)
    again = await hf.complete(claim, outcome)

    assert again == first
    assert await anomalies(hf, claim.run_id) == []
    assert (await look(hf, claim.run_id)).rev == first.rev


@pytest.mark.clause("S-43")
async def test_an_identical_completion_is_known_long_after(hf: Holdfast, clock: FakeClock) -> None:
    claim = await active(hf)
    await hf.complete(claim, Continue("more"))
    later = await claim_one(hf)
    clock.advance(LEASE_S)

    seen = await hf.complete(claim, Continue("more"))

    assert (seen.run_id, seen.status) == (later.run_id, "active")
    assert await kinds(hf, claim.run_id, after=3) == ["attempt_claimed"]


@pytest.mark.clause("S-44", "H-S3")
async def test_another_result_is_a_conflict_and_the_first_stands(hf: Holdfast) -> None:
    done, retried = await active(hf), await active(hf)
    await hf.complete(done, Done("first"))
    await hf.fail(retried, "first")

    for _ in range(2):
        with pytest.raises(Conflict) as caught:
            await hf.complete(done, Done("second"))
        assert caught.value.code == "conflicting_completion"
        with pytest.raises(Conflict) as caught:
            await hf.fail(retried, "second")
        assert caught.value.code == "conflicting_completion"

    assert (await look(hf, done.run_id)).output == "first"
    assert (await look(hf, retried.run_id)).last_error == "first"
    for claim in (done, retried):
        assert await anomalies(hf, claim.run_id) == [("conflicting_completion", "tick_settled")]


@pytest.mark.clause("S-37", "S-45")
async def test_a_late_failure_schedules_no_retry(hf: Holdfast, clock: FakeClock) -> None:
    claim = await expired(hf, clock)

    with pytest.raises(LeaseLost) as caught:
        await hf.fail(claim, "too slow")

    seen = await look(hf, claim.run_id)
    assert (caught.value.code, seen.attempt, seen.wake_at, seen.last_error) == ("expired_claim", 0, None, None)


@pytest.mark.clause("S-38", "S-44", "OB-6")
async def test_of_several_results_at_once_exactly_one_is_committed(hf: Holdfast) -> None:
    claim = await active(hf)

    answers = await asyncio.gather(*(hf.complete(claim, Done(i)) for i in range(6)), return_exceptions=True)

    (winner,) = [i for i, answer in enumerate(answers) if not isinstance(answer, Exception)]
    assert {getattr(a, "code", None) for i, a in enumerate(answers) if i != winner} == {"conflicting_completion"}
    assert (await look(hf, claim.run_id)).output == winner
    assert (await kinds(hf, claim.run_id)).count("run_terminal") == 1


@pytest.mark.clause("S-55")
async def test_a_lost_claim_starts_no_child(hf: Holdfast, clock: FakeClock) -> None:
    claim = await taken_over(hf, clock)

    executed = await hf.journal.execute(claim.run_id, start_child(claim))

    assert executed.decision.refusal == "stale_claim"
    assert await hf.get_run("child") is None
    assert await anomalies(hf, claim.run_id) == [("stale_claim", "child_run_started")]
