"""Cancelling: judged by who holds a live claim, never by status."""

from __future__ import annotations

import pytest

from holdfast.protocol import facts
from holdfast.protocol.decisions import Handoff
from holdfast.protocol.outcomes import Continue, Done, Fail, Ok, Outcome, Retry, Wait
from tests.protocol.builders import LEASE, LIVE, NOON, SECOND, Run, active, ended, pending


@pytest.mark.clause("C-6", "H-S10")
@pytest.mark.parametrize("status", ["idle", "pending", "waiting", "paused"])
def test_a_run_that_nobody_holds_is_cancelled_at_once(status: str) -> None:
    run = LIVE[status]()

    decision = run.cancel(reason="enough", actor="ann")

    requested, last = decision.facts
    assert requested == facts.CancelRequested(reason="enough", actor="ann")
    assert isinstance(last, facts.RunTerminal)
    assert (run.state.status, run.state.error_kind) == ("cancelled", "cancelled")
    assert (run.state.cancel_requested_at, run.state.finished_at) == (NOON, NOON)


@pytest.mark.clause("C-6")
def test_a_held_run_only_gets_the_flag() -> None:
    run = active()

    decision = run.cancel()

    assert [fact.kind for fact in decision.facts] == ["cancel_requested"]
    assert (run.state.status, run.state.cancel_requested_at) == ("active", NOON)


@pytest.mark.clause("C-6")
def test_a_run_with_an_expired_claim_is_cancelled_at_once() -> None:
    run = active()
    run.sleep(LEASE)

    run.cancel()

    assert (run.state.status, run.state.ticks["c1"].outcome) == ("cancelled", "fenced")


@pytest.mark.clause("C-6")
@pytest.mark.parametrize(
    "outcome", [Ok(), Done("result"), Continue("next"), Wait(seconds=1), Retry("again"), Fail("broken")], ids=repr
)
def test_the_next_outcome_of_any_kind_ends_the_run_cancelled(outcome: Outcome) -> None:
    run = active()
    run.cancel()

    (last,) = run.settle(outcome).facts

    assert isinstance(last, facts.RunTerminal)
    assert (run.state.status, run.state.error_kind) == ("cancelled", "cancelled")
    assert (run.state.output_rev, run.state.last_error) == (None, None)
    assert run.settle(outcome).repeat_rev == run.state.rev


@pytest.mark.clause("C-6")
@pytest.mark.parametrize("outcome", [Done("result"), Retry("again")], ids=repr)
def test_the_next_outcome_of_a_step_ends_the_run_cancelled_too(outcome: Outcome) -> None:
    run = Run()
    run.schedule("load")
    run.claim("c1", "load")
    run.cancel()

    (last,) = run.settle(outcome, "c1", "load").facts

    assert isinstance(last, facts.RunTerminal)
    assert run.state.status == "cancelled"
    assert run.refusals == set()


@pytest.mark.clause("C-6")
def test_the_next_claim_after_a_lost_lease_ends_the_run_without_a_tick() -> None:
    run = active()
    run.cancel()
    run.sleep(LEASE)

    decision = run.claim("c2")

    assert [fact.kind for fact in decision.facts] == ["tick_abandoned", "run_terminal"]
    assert (run.state.status, run.state.error_kind) == ("cancelled", "cancelled")
    assert list(run.state.ticks) == ["c1"]


@pytest.mark.clause("C-6")
def test_the_last_holder_who_lets_go_of_the_run_ends_it() -> None:
    run = active()
    run.schedule("load")
    run.claim("c2", "load")
    run.cancel()

    first = run.release("c1")
    last = run.release("c2", "load")

    assert [fact.kind for fact in first.facts] == ["tick_abandoned"]
    assert [fact.kind for fact in last.facts] == ["tick_abandoned", "run_terminal"]
    assert (run.state.status, run.state.error_kind) == ("cancelled", "cancelled")


@pytest.mark.clause("C-6", "S-63")
def test_force_ends_a_held_run_at_once_and_the_late_outcome_is_refused() -> None:
    run = active()

    run.cancel(force=True)
    late = run.settle(Done("late"))

    assert (run.state.status, run.state.ticks["c1"].outcome) == ("cancelled", "fenced")
    assert late.refusal == "terminal_run"
    assert run.refusals == {"terminal_run"}


@pytest.mark.clause("C-6", "SB-14")
@pytest.mark.parametrize("status", ["done", "failed", "cancelled"])
def test_cancelling_an_ended_run_is_fine_and_changes_nothing(status: str) -> None:
    run = ended(status)

    decision = run.cancel(force=True)

    assert (decision.facts, decision.refusal, decision.repeat_rev) == ((), None, run.state.rev)


@pytest.mark.clause("C-6")
def test_the_first_request_counts() -> None:
    run = active()
    run.cancel()
    run.sleep(SECOND)

    again = run.cancel()
    run.put(facts.CancelRequested())

    assert (again.facts, again.repeat_rev) == ((), 3)
    assert run.state.cancel_requested_at == NOON


def test_a_second_request_after_the_lease_ends_the_run() -> None:
    run = active()
    run.cancel()
    run.sleep(LEASE)

    decision = run.cancel()

    assert [fact.kind for fact in decision.facts] == ["run_terminal"]
    assert (run.state.status, run.state.cancel_requested_at) == ("cancelled", NOON)


def test_a_cancelled_tick_does_not_spend_its_signal() -> None:
    run = Run()
    run.signal("m1", "hi")
    run.claim()
    run.cancel()

    run.settle(Ok())

    assert [signal.tick_id for signal in run.state.signals.values()] == [None]


@pytest.mark.clause("C-6")
def test_open_children_are_told_and_finished_ones_are_not() -> None:
    run = active()
    run.start_child("k1")
    run.start_child("k2", child_key="k2")
    run.put(facts.ChildRunFinished(child_run_id="k1", status="done"))

    decision = run.cancel(force=True)

    assert decision.handoffs == (Handoff(target_run_id="k2", kind="cancel", fact=1),)


@pytest.mark.parametrize("outcome", [Done(), Fail("broken")], ids=repr)
def test_children_live_on_when_their_parent_ends_by_itself(outcome: Outcome) -> None:
    run = active()
    run.start_child("k1")

    assert run.settle(outcome).handoffs == ()


@pytest.mark.parametrize("how", ["done", "failed", "cancelled"])
def test_the_parent_is_told_of_every_end(how: str) -> None:
    run = Run(has_input=True, parent=facts.Parent(run_id="p1", child_key="k"))
    run.claim()

    decision = run.cancel(force=True) if how == "cancelled" else run.settle(Done() if how == "done" else Fail("no"))

    (handoff,) = decision.handoffs
    assert (handoff.target_run_id, handoff.kind) == ("p1", "child_finished")
    told = decision.facts[handoff.fact]
    assert isinstance(told, facts.RunTerminal)
    assert told.status == how


def test_a_run_without_relatives_tells_nobody() -> None:
    assert pending().cancel().handoffs == ()
