"""Deletion, forks and recovery as facts: what they take away, what they leave, what they refuse."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from holdfast.protocol import commands, facts
from holdfast.protocol.decide import decide
from holdfast.protocol.decisions import Handoff
from holdfast.protocol.outcomes import Done, Ok
from holdfast.protocol.state import RunState
from tests.protocol.builders import (
    BOOKKEEPING,
    LEASE,
    LIVE,
    NOON,
    SECOND,
    Run,
    active,
    changes,
    ended,
    idle,
    pending,
)

QUIET = {name: make for name, make in LIVE.items() if name != "active"}


@pytest.mark.clause("O-51")
@pytest.mark.parametrize("make", QUIET.values(), ids=QUIET)
def test_what_is_not_over_is_cancelled_first(make: Callable[[], Run]) -> None:
    run = make()

    decision = run.do(commands.Delete(actor="ada"))

    assert [fact.kind for fact in decision.facts] == ["run_terminal", "run_deleted"]
    assert (run.state.status, run.state.deleted, decision.refusal) == ("cancelled", True, None)


@pytest.mark.parametrize("status", ["done", "failed", "cancelled"])
def test_what_is_over_is_deleted_as_it_ended(status: str) -> None:
    run = ended(status)

    decision = run.do(commands.Delete(actor="ada"))

    assert decision.facts == (facts.RunDeleted(actor="ada"),)
    assert (run.state.status, run.state.deleted) == (status, True)


def test_somebodys_work_is_deleted_by_force_only() -> None:
    run = active()

    assert run.do(commands.Delete()).refusal == "run_active"
    assert not run.state.deleted
    assert run.do(commands.Delete(force=True)).refusal is None
    assert run.state.deleted


def test_a_claim_that_ran_out_is_nobodys_work() -> None:
    run = active()
    run.sleep(LEASE)

    assert run.do(commands.Delete()).refusal is None


def test_parents_and_children_are_told() -> None:
    run = Run(has_input=True, parent=facts.Parent(run_id="p1", child_key="k"))
    run.claim()
    run.start_child("k1")

    decision = run.do(commands.Delete(force=True))

    assert decision.handoffs == (
        Handoff(target_run_id="p1", kind="child_finished", fact=0),
        Handoff(target_run_id="k1", kind="cancel", fact=0),
    )


def test_what_is_not_there_is_not_deleted_and_not_recovered() -> None:
    nothing = RunState(run_id="r1")

    assert decide(nothing, commands.Delete(), NOON).refusal == "not_found"
    assert decide(nothing, commands.Recover(), NOON).refusal == "not_found"


@pytest.mark.parametrize("make", LIVE.values(), ids=LIVE)
def test_a_journal_that_deletes_what_is_not_over_is_not_believed(make: Callable[[], Run]) -> None:
    run = make()
    before = run.state

    assert run.put(facts.RunDeleted()) == "malformed_entry"

    assert changes(before, run.state) <= BOOKKEEPING


def test_deleting_twice_is_deleting_once() -> None:
    run = ended()
    run.put(facts.RunDeleted())
    before = run.state

    assert run.put(facts.RunDeleted()) is None

    assert changes(before, run.state) <= BOOKKEEPING


def test_an_id_that_was_used_is_not_used_again() -> None:
    gone = RunState(run_id="r1", created_digest="gone")

    assert decide(gone, commands.Create(fact=pending().created), NOON).refusal == "id_reused"


def test_a_fork_lets_go_of_what_is_its_originals() -> None:
    run = Run(has_input=True, parent=facts.Parent(run_id="p1", child_key="k"), key="order-1", key_digest="d")
    run.claim()
    run.start_child("k1", child_key="a")
    run.start_child("k2", child_key="b")
    run.do(commands.FinishChild(child_run_id="k1", status="done"))
    run.sleep(SECOND)

    assert run.put(facts.RunForked(source_run_id="r0", at_rev=run.state.rev)) is None

    state = run.state
    assert (state.status, state.deliveries, state.work[""].claim) == ("pending", 0, None)
    assert (state.parent_run_id, state.created_key) == (None, None)
    assert (set(state.children), set(state.child_ids.values())) == ({"k1"}, {"k1"})
    assert len(state.ticks) == 0


def test_a_fork_of_what_is_over_is_over() -> None:
    run = ended()
    before = run.state

    assert run.put(facts.RunForked(source_run_id="r0", at_rev=2)) is None

    assert changes(before, run.state) <= BOOKKEEPING


@pytest.mark.clause("S-22", "S-23")
def test_recovery_schedules_what_was_planned_before_it_applies_what_was_completed() -> None:
    run = idle()
    digest = run.finish_step("first", 1)
    run.plan("second", input={"page": 2})
    run.plan("third")

    decision = run.do(commands.Recover(inputs={"third": None, "second": {"page": 2}}))

    assert decision.facts == (
        facts.AttemptScheduled(runnable_key="second", step="second", idempotency_key="second", input={"page": 2}),
        facts.AttemptScheduled(runnable_key="third", step="third", idempotency_key="third"),
        facts.RunnableApplied(runnable_key="first", result_digest=digest),
    )
    again = run.do(commands.Recover(inputs={"third": None, "second": {"page": 2}}))
    assert (again.facts, again.repeat_rev) == ((), run.state.rev)


@pytest.mark.clause("S-23")
def test_what_was_planned_while_its_input_was_looked_up_is_left_for_the_next_time() -> None:
    run = idle()
    run.plan("late", input="precious")

    decision = run.do(commands.Recover(inputs={}))

    assert (decision.facts, decision.repeat_rev) == ((), run.state.rev)


def test_there_is_nothing_to_recover_after_the_end() -> None:
    run = idle()
    run.plan("step")
    run.cancel()

    assert run.do(commands.Recover(inputs={"step": 1})).facts == ()


def test_a_released_or_settled_run_can_be_deleted_at_once() -> None:
    released, rested, done = active(), active(), active()
    released.release()
    rested.settle(Ok())
    done.settle(Done())

    for run in (released, rested, done):
        assert run.do(commands.Delete()).refusal is None
