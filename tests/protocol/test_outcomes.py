"""What each outcome makes of the run."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from holdfast.errors import InvalidValue
from holdfast.moments import from_us
from holdfast.protocol import facts
from holdfast.protocol.decisions import ERROR_LENGTH_MAX
from holdfast.protocol.outcomes import Continue, Done, Fail, Ok, Outcome, Retry, Wait
from holdfast.protocol.settle import outcome_digest
from holdfast.protocol.state import NEVER
from tests.protocol.builders import MILLISECOND, NOON, SECOND, Run, active, pending

GOING_ON: list[Outcome] = [Ok(), Continue("next"), Wait(seconds=1), Retry("again")]
ENDING: list[Outcome] = [Done("result"), Fail("broken")]


def tried_twice() -> Run:
    """A run whose current tick is its second try."""
    run = active()
    run.settle(Retry("first", kind="flaky"))
    run.sleep(SECOND)
    run.claim("c2")
    return run


@pytest.mark.clause("O-13")
def test_ok_rests_the_run_in_idle() -> None:
    run = active()

    run.settle(Ok())

    assert run.state.status == "idle"
    assert (len(run.state.work), run.state.input_rev) == (0, None)


@pytest.mark.clause("C-2")
def test_ok_ends_a_run_of_mode_single_as_done() -> None:
    run = Run(has_input=True, mode="single")
    run.claim()

    run.settle(Ok())

    assert run.state.status == "done"
    assert [fact.kind for fact, _ in run.entries] == ["run_created", "attempt_claimed", "run_terminal"]


@pytest.mark.clause("C-2")
def test_ok_leaves_a_run_of_mode_session_open_for_the_next_signal() -> None:
    run = active()
    run.settle(Ok())

    run.signal("m1", "more")

    assert (run.state.status, run.next_input()) == ("pending", "more")


@pytest.mark.clause("O-14", "H-O6")
@pytest.mark.parametrize("output", [None, 0, {"answer": 42}], ids=repr)
def test_done_ends_the_run_and_keeps_its_output(output: Any) -> None:
    run = active()

    run.settle(Done(output))

    assert run.state.status == "done"
    assert run.state.finished_at == NOON
    assert run.state.output_rev is not None
    last, _ = run.entries[run.state.output_rev - 1]
    assert isinstance(last, facts.RunTerminal)
    assert last.output == output


def test_a_run_that_does_nothing_has_three_entries() -> None:
    run = active()

    run.settle(Done())

    assert [fact.kind for fact, _ in run.entries] == ["run_created", "attempt_claimed", "run_terminal"]


@pytest.mark.clause("O-15")
@pytest.mark.parametrize("input", [0, None, {"page": 2}], ids=repr)
def test_continue_is_pending_at_once_with_its_own_input(input: Any) -> None:
    run = active()
    run.sleep(SECOND)

    run.settle(Continue(input))

    assert (run.state.status, run.state.wake_at) == ("pending", None)
    assert run.state.work[""].visible_at == NOON + SECOND
    assert run.next_input() is input
    assert run.claim("c2").refusal is None


def test_continue_without_an_input_still_runs_again() -> None:
    run = active()

    run.settle(Continue())

    settled = run.entries[-1][0]
    assert isinstance(settled, facts.TickSettled)
    assert not settled.has_input
    assert run.state.status == "pending"


@pytest.mark.clause("O-16")
@pytest.mark.parametrize(
    "wait",
    [Wait(seconds=5), Wait(seconds=timedelta(seconds=5)), Wait(until=from_us(NOON + 5 * SECOND))],
    ids=["seconds", "timedelta", "until"],
)
def test_wait_sleeps_until_its_time_and_not_a_millisecond_less(wait: Wait) -> None:
    run = active()

    run.settle(wait)

    assert (run.state.status, run.state.wake_at) == ("waiting", NOON + 5 * SECOND)

    run.sleep(5 * SECOND - MILLISECOND)

    assert run.claim("c2").refusal == "attempt_not_visible"

    run.sleep(MILLISECOND)

    assert run.claim("c2").refusal is None
    assert (run.state.status, run.state.wake_at, run.state.input_rev) == ("active", None, None)


def test_wait_without_a_time_is_ended_by_a_signal_only() -> None:
    run = active()

    run.settle(Wait())

    assert (run.state.status, run.state.wake_at) == ("waiting", None)
    assert run.state.work[""].visible_at == NEVER

    run.signal("m1")

    assert run.state.status == "pending"


def test_a_wait_until_the_distant_past_is_due_at_once() -> None:
    run = active()

    run.settle(Wait(until=datetime(1900, 1, 1, tzinfo=UTC)))

    assert run.claim("c2").refusal is None


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), timedelta.max], ids=str)
@pytest.mark.parametrize("outcome", [lambda s: Wait(seconds=s), lambda s: Retry("x", after=s)], ids=["wait", "retry"])
def test_a_time_that_cannot_be_kept_is_an_invalid_value(outcome: Any, seconds: Any) -> None:
    run = active()

    with pytest.raises(InvalidValue, match="cannot be kept"):
        run.settle(outcome(seconds))

    assert run.state.status == "active"


@pytest.mark.clause("O-17", "O-21", "O-22", "O-23", "H-O4", "C-8")
def test_retries_wait_longer_each_time_and_fail_at_the_limit() -> None:
    run = Run(has_input=True, input="work", max_attempts=3)
    seen, delays = [], []

    for claim in ("c1", "c2", "c3"):
        claimed = run.claim(claim).facts[-1]
        assert isinstance(claimed, facts.AttemptClaimed)
        seen.append((claimed.attempt, run.next_input()))
        run.settle(Retry(f"{claim} broke", kind="flaky"), claim)
        if run.state.wake_at is not None:
            delays.append(run.state.wake_at - run.now)
            assert (run.state.status, run.state.last_error) == ("pending", f"{claim} broke")
            run.sleep(delays[-1])

    assert seen == [(0, "work"), (1, "work"), (2, "work")]
    assert delays == [SECOND, 2 * SECOND]
    assert (run.state.status, run.state.attempt) == ("failed", 3)
    assert (run.state.last_error, run.state.error_kind) == ("c3 broke", "flaky")


@pytest.mark.clause("O-17")
def test_a_retry_is_not_picked_a_millisecond_early() -> None:
    run = active()
    run.settle(Retry("again"))

    run.sleep(SECOND - MILLISECOND)

    assert run.claim("c2").refusal == "attempt_not_visible"

    run.sleep(MILLISECOND)

    assert run.claim("c2").refusal is None


@pytest.mark.clause("C-7")
@pytest.mark.parametrize("after", [7, timedelta(seconds=7)], ids=["seconds", "timedelta"])
def test_a_handler_may_name_the_delay_itself(after: Any) -> None:
    run = active()

    run.settle(Retry("again", after=after))

    assert run.state.wake_at == NOON + 7 * SECOND


@pytest.mark.clause("O-18", "O-19")
def test_fail_ends_the_run_at_once_and_burns_no_attempt() -> None:
    run = active()

    run.settle(Fail("broken", kind="fatal"))

    assert (run.state.status, run.state.attempt) == ("failed", 0)
    assert (run.state.last_error, run.state.error_kind) == ("broken", "fatal")
    assert (run.state.output_rev, run.state.ticks["c1"].outcome) == (None, "failed")


@pytest.mark.clause("O-19")
def test_fail_on_a_later_try_keeps_the_attempts_that_were_made() -> None:
    run = tried_twice()

    run.settle(Fail("broken"), "c2")

    assert (run.state.status, run.state.attempt) == ("failed", 1)


@pytest.mark.clause("OB-4")
@pytest.mark.parametrize("outcome", [Ok(), Done(), Continue("next"), Wait(seconds=1)], ids=repr)
def test_a_success_forgets_earlier_attempts_and_errors(outcome: Outcome) -> None:
    run = tried_twice()
    assert (run.state.attempt, run.state.last_error, run.state.error_kind) == (1, "first", "flaky")

    run.settle(outcome, "c2")

    assert (run.state.attempt, run.state.last_error, run.state.error_kind) == (0, None, None)


@pytest.mark.clause("O-35")
@pytest.mark.parametrize("outcome", GOING_ON + ENDING, ids=repr)
def test_every_outcome_gives_the_claim_back(outcome: Outcome) -> None:
    run = active()

    run.settle(outcome)

    assert run.state.live_claims(run.now) == ()
    assert run.state.deliveries == 0


@pytest.mark.clause("O-12", "S-61")
@pytest.mark.parametrize("outcome", ENDING, ids=repr)
def test_an_ended_run_is_never_claimed_again(outcome: Outcome) -> None:
    run = active()
    run.settle(outcome)

    decision = run.claim("c2")

    assert (decision.refusal, decision.facts) == ("terminal_run", ())


@pytest.mark.parametrize("outcome", [Fail("broken", kind="fatal"), Retry("broken", kind="fatal")], ids=repr)
def test_an_error_event_stands_right_before_a_failing_end(outcome: Outcome) -> None:
    run = Run(has_input=True, max_attempts=1)
    run.claim()

    event, last = run.settle(outcome).facts

    assert event == facts.Event(type="error", data={"message": "broken", "kind": "fatal"})
    assert isinstance(last, facts.RunTerminal)
    assert last.status == "failed"


@pytest.mark.parametrize("outcome", [Done(), *GOING_ON], ids=repr)
def test_no_error_event_is_written_unless_the_run_fails(outcome: Outcome) -> None:
    decision = active().settle(outcome)

    assert [fact for fact in decision.facts if isinstance(fact, facts.Event)] == []


def test_an_error_is_cut_only_if_it_is_too_long() -> None:
    fits, too_long = active(), active()

    fits.settle(Fail("x" * ERROR_LENGTH_MAX))
    too_long.settle(Fail("x" * (ERROR_LENGTH_MAX + 1)))

    assert fits.state.last_error == "x" * ERROR_LENGTH_MAX
    assert too_long.state.last_error == "x" * (ERROR_LENGTH_MAX - 1) + "…"


@pytest.mark.clause("O-10")
def test_a_run_of_plain_outcomes_shows_only_the_six_plain_words() -> None:
    runs = [active() for _ in GOING_ON + ENDING]
    seen = {run.state.status for run in (Run(), pending(), *runs)}

    for run, outcome in zip(runs, GOING_ON + ENDING, strict=True):
        run.settle(outcome)
        seen.add(run.state.status)

    assert seen == {"idle", "pending", "active", "waiting", "done", "failed"}


def test_what_is_no_outcome_is_never_applied() -> None:
    run = active()

    with pytest.raises(AssertionError):
        run.settle(cast(Any, "shrug"))

    assert run.state.status == "active"


def test_outcomes_are_one_result_only_if_they_are_equal() -> None:
    different: list[Outcome] = [
        *(Ok(), Done(), Done(0), Done(False), Continue(), Continue(None), Wait(), Wait(seconds=1)),
        *(Retry("x"), Fail("x"), Fail("x", kind="y"), Fail("y")),
    ]

    assert len({outcome_digest(outcome) for outcome in different}) == len(different)
    assert outcome_digest(Done({"a": 1, "b": 2})) == outcome_digest(Done({"b": 2, "a": 1}))
