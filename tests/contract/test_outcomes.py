"""What an outcome does to its run: rest, go on, sleep, try again, end."""

from __future__ import annotations

from datetime import timedelta

import pytest

from holdfast import Continue, Done, Fail, Holdfast, Ok, Retry, RetryPolicy, Wait
from tests.conftest import FakeClock
from tests.contract.builders import INSTANT, active, claim_one, entries, event_types, kinds, look


@pytest.mark.clause("O-13", "O-19", "O-20", "O-11")
async def test_ok_rests_the_run(hf: Holdfast) -> None:
    after = await hf.complete(await active(hf), Ok())

    assert (after.status, after.pending_input, after.deliveries) == ("idle", None, 0)
    assert await hf.claim_next() == []
    assert await kinds(hf, after.run_id) == ["run_created", "attempt_claimed", "tick_settled"]


@pytest.mark.clause("O-14", "H-O6", "O-12")
async def test_done_ends_the_run_with_its_output(hf: Holdfast, clock: FakeClock) -> None:
    claim = await active(hf)
    clock.advance(3)

    plain = await hf.complete(claim, {"answer": [1, None]})

    assert (plain.status, plain.output, plain.finished_at) == ("done", {"answer": [1, None]}, clock.now())
    assert await look(hf, claim.run_id) == plain
    assert await hf.claim_next() == []
    assert (await hf.complete(await active(hf))).output is None


@pytest.mark.clause("O-15", "O-27", "O-38")
async def test_continue_makes_its_input_the_next_ticks(hf: Holdfast) -> None:
    claim = await active(hf)

    for given in ("second", None, {"n": 3}):
        after = await hf.complete(claim, Continue(given))
        assert (after.status, after.pending_input) == ("pending", given)
        claim = await claim_one(hf)
        assert (claim.input, claim.attempt) == (given, 0)
    await hf.complete(claim, Continue())

    assert (await claim_one(hf)).input is None
    assert (await kinds(hf, claim.run_id)).count("attempt_claimed") == 5


@pytest.mark.clause("O-16", "OB-10")
async def test_wait_sleeps_until_an_instant_or_for_seconds(hf: Holdfast, clock: FakeClock) -> None:
    until = clock.now() + timedelta(hours=8)
    for wait in (Wait(until=until), Wait(seconds=28_800), Wait(seconds=timedelta(hours=8))):
        after = await hf.complete(await active(hf), wait)
        assert (after.status, after.wake_at) == ("waiting", until)

    clock.advance(28_800 - INSTANT)
    assert await hf.claim_next(limit=5) == []
    clock.advance(INSTANT)

    claims = await hf.claim_next(limit=5)
    assert [claim.input for claim in claims] == [None, None, None]
    assert {(await look(hf, claim.run_id)).wake_at for claim in claims} == {None}


@pytest.mark.clause("O-16")
async def test_a_wait_for_a_past_instant_is_due_at_once(hf: Holdfast, clock: FakeClock) -> None:
    claim = await active(hf)

    await hf.complete(claim, Wait(until=clock.now() - timedelta(days=1)))

    assert (await claim_one(hf)).run_id == claim.run_id


@pytest.mark.clause("C-21")
async def test_a_wait_without_an_end_lasts_until_a_signal(hf: Holdfast, clock: FakeClock) -> None:
    claim = await active(hf)
    resting = await hf.complete(claim, Wait())
    clock.advance(10**9)

    assert (resting.status, resting.wake_at) == ("waiting", None)
    assert await hf.claim_next() == []
    await hf.signal(claim.run_id, "up")
    assert (await claim_one(hf)).input == "up"


@pytest.mark.clause("O-17", "O-21", "O-22", "O-23", "OB-5", "H-O4", "C-7", "C-8", "S-45")
async def test_retries_wait_one_two_four_seconds_and_then_the_run_fails(hf: Holdfast, clock: FakeClock) -> None:
    claim = await active(hf, input={"same": True}, retry=RetryPolicy(max_attempts=4))

    for attempt, delay in enumerate((1, 2, 4), start=1):
        after = await hf.fail(claim, f"no. {attempt}")
        assert (after.status, after.attempt, after.last_error) == ("pending", attempt, f"no. {attempt}")
        assert (after.wake_at, after.pending_input) == (clock.now() + timedelta(seconds=delay), {"same": True})
        clock.advance(delay - INSTANT)
        assert await hf.claim_next() == []
        clock.advance(INSTANT)
        claim = await claim_one(hf)
        assert (claim.attempt, claim.input) == (attempt, {"same": True})
    ended = await hf.fail(claim, "no. 4")

    assert (ended.status, ended.attempt, ended.last_error, ended.error_kind) == ("failed", 4, "no. 4", "error")
    assert (await event_types(hf, claim.run_id))[-2:] == ["error", "done"]
    assert (await kinds(hf, claim.run_id))[-2:] == ["event", "run_terminal"]


@pytest.mark.clause("O-21", "O-05", "C-7")
async def test_a_backoff_never_exceeds_its_maximum(hf: Holdfast, clock: FakeClock) -> None:
    claim = await active(hf, retry=RetryPolicy(max_attempts=20))

    delays = []
    for _ in range(9):
        after = await hf.fail(claim, "again")
        assert after.wake_at is not None
        delays.append((after.wake_at - clock.now()).total_seconds())
        clock.advance(delays[-1])
        claim = await claim_one(hf)

    assert delays == [1, 2, 4, 8, 16, 32, 60, 60, 60]


@pytest.mark.clause("C-7", "O-19")
async def test_a_handler_may_say_when_to_try_again(hf: Holdfast, clock: FakeClock) -> None:
    after = await hf.complete(await active(hf), Retry("busy", after=0.5, kind="rate_limited"))

    assert (after.wake_at, after.error_kind) == (clock.now() + timedelta(seconds=0.5), "rate_limited")


@pytest.mark.clause("OB-4", "O-17", "H-O12")
@pytest.mark.parametrize(
    "outcome", [Ok(), Continue(1), Wait(seconds=9), Done(1)], ids=lambda outcome: type(outcome).__name__
)
async def test_success_resets_attempt_and_error(hf: Holdfast, clock: FakeClock, outcome: Ok) -> None:
    claim = await active(hf)
    await hf.fail(claim, "once")
    clock.advance(1)

    after = await hf.complete(await claim_one(hf), outcome)

    assert (after.attempt, after.last_error, after.error_kind, after.deliveries) == (0, None, None, 0)


@pytest.mark.clause("O-18", "O-19", "OB-4")
async def test_fail_ends_the_run_at_once_and_burns_no_attempt(hf: Holdfast) -> None:
    ended = await hf.complete(await active(hf), Fail("broken", kind="bad_request"))
    also = await hf.fail(await active(hf), "broken", retry=False)

    assert (ended.status, ended.attempt, ended.last_error, ended.error_kind) == ("failed", 0, "broken", "bad_request")
    assert (also.status, also.attempt, also.error_kind) == ("failed", 0, "error")
    error, done = [event async for event in hf.events(ended.run_id)][-2:]
    assert (error.type, error.data) == ("error", {"message": "broken", "kind": "bad_request"})
    assert (done.type, done.data) == ("done", {"status": "error", "run_status": "failed", "error": "broken"})


@pytest.mark.clause("O-17")
async def test_with_one_attempt_the_first_retry_fails_the_run(hf: Holdfast) -> None:
    ended = await hf.fail(await active(hf, retry=RetryPolicy(max_attempts=1)), "once")

    assert (ended.status, ended.attempt) == ("failed", 1)


@pytest.mark.clause("H-O16", "W-23")
async def test_what_a_tick_said_before_its_retry_is_marked(hf: Holdfast, clock: FakeClock) -> None:
    quiet, loud = await active(hf), await active(hf)
    await hf.emit(loud, "text", "half a sen")

    for claim in (quiet, loud):
        await hf.fail(claim, "again")

    assert await kinds(hf, quiet.run_id, after=2) == ["tick_settled"]
    settled, abandoned = await entries(hf, loud.run_id, after=3)
    assert (settled.kind, abandoned.kind) == ("tick_settled", "tick_abandoned")
    assert (abandoned.data["tick_id"], abandoned.data["from_seq"]) == (loud.tick_id, 2)


@pytest.mark.clause("C-1", "O-10")
async def test_a_long_life_keeps_a_tick_per_cycle(hf: Holdfast) -> None:
    claim = await active(hf)
    for i in range(5):
        await hf.complete(claim, Ok())
        await hf.signal(claim.run_id, i)
        claim = await claim_one(hf)
        assert claim.input == i

    ticks = await hf.journal.store.fetch("SELECT outcome FROM {s}ticks ORDER BY claimed_rev")
    assert ticks == [("ok",)] * 5 + [(None,)]
