"""Lanes: who stands in line, who holds the lane, and what its work looks like meanwhile."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from msgspec.structs import replace

from holdfast.protocol import commands, dispatch, facts
from holdfast.protocol.decide import decide
from holdfast.protocol.evolve import evolve
from holdfast.protocol.lanes import its_turn
from holdfast.protocol.outcomes import Continue, Done, Fail, Ok, Retry, Wait
from holdfast.protocol.state import PENDING, UNKNOWN, RunState, Ticket
from tests.protocol.builders import BOOKKEEPING, NOON, SECOND, Run, changes, fence
from tests.protocol.strategies import Lived, law, wild_lives


def in_lane(*, head: bool = True, **created: Any) -> Run:
    """A run with an input in a lane, its head unless told otherwise."""
    run = Run(lane="main", **{"has_input": True, **created})
    if head:
        run.put(facts.LaneEntered())
    return run


def due(run: Run) -> bool:
    return not any(work.blocked for work in run.state.work.values())


@law
@given(wild_lives)
def test_in_a_lane_work_has_a_ticket_and_is_due_for_the_head_only(lives: list[Lived]) -> None:
    for life in lives:
        state = life.after
        if state.lane is None:
            assert state.ticket is None
            assert not any(work.blocked for work in state.work.values())
        elif state.work:
            assert state.ticket is not None
            assert {work.blocked for work in state.work.values()} == {not state.ticket.held}
        elif state.status in ("idle", "done", "failed", "cancelled"):
            assert state.ticket is None


@law
@given(wild_lives)
def test_a_ticket_keeps_its_place_until_it_is_given_back(lives: list[Lived]) -> None:
    for life in lives:
        before, after = life.before.ticket, life.after.ticket
        if before and after and not isinstance(life.fact, facts.RunForked):
            assert (after.at, after.rev) == (before.at, before.rev)
            assert after.held >= before.held
        if after and not before:
            assert (after.at, after.rev, after.held) == (life.at, life.after.rev, False)


def test_without_a_lane_nobody_waits() -> None:
    run = Run(has_input=True)

    assert (run.state.ticket, due(run), its_turn(run.state)) == (None, True, ())
    assert run.put(facts.LaneEntered()) == "unknown_runnable_intent"


def test_work_waits_until_its_run_enters() -> None:
    run = in_lane(head=False)
    assert run.state.ticket == Ticket(at=NOON, rev=1)
    assert run.claim().refusal == "attempt_not_visible"

    assert run.put(facts.LaneEntered()) is None

    assert run.state.ticket == Ticket(at=NOON, rev=1, held=True)
    assert run.claim().refusal is None


def test_entering_twice_is_entering_once() -> None:
    run = in_lane()
    before = run.state

    assert run.put(facts.LaneEntered()) is None

    assert changes(before, run.state) <= BOOKKEEPING


@pytest.mark.parametrize("head", ["", "r1"], ids=["empty", "first in line"])
def test_it_is_its_turn_when_nobody_stands_before_it(head: str) -> None:
    state = replace(in_lane(head=False).state, lane_head=head)

    decision = decide(state, commands.EnterLane(), NOON)

    assert decision.facts == (facts.LaneEntered(),)


@pytest.mark.parametrize("head", ["r0", UNKNOWN])
def test_it_is_not_its_turn_while_another_stands_before_it_or_may(head: str) -> None:
    state = replace(in_lane(head=False).state, lane_head=head)

    assert decide(state, commands.EnterLane(), NOON).facts == ()


def test_who_holds_the_lane_or_wants_nothing_does_not_enter() -> None:
    assert its_turn(in_lane().state) == ()
    assert its_turn(in_lane(head=False, has_input=False).state) == ()


@pytest.mark.parametrize(
    "outcome",
    [Continue(1), Wait(seconds=60), Wait(), Retry("later"), Retry("later", after=60)],
    ids=["continue", "wait", "wait for a signal", "retry", "backing off"],
)
def test_a_head_with_something_to_do_keeps_its_lane(outcome: Any) -> None:
    run = in_lane()
    run.claim()

    run.settle(outcome)

    assert run.state.ticket is not None
    assert run.state.ticket.held
    assert due(run)


@pytest.mark.parametrize("outcome", [Ok(), Done(), Fail("broken")], ids=["rest", "done", "failed"])
def test_a_head_leaves_at_rest_and_at_its_end(outcome: Any) -> None:
    run = in_lane()
    run.claim()

    run.settle(outcome)

    assert run.state.ticket is None


def test_a_paused_head_keeps_its_lane_and_a_waiting_run_its_place() -> None:
    head, waiting = in_lane(), in_lane(head=False)
    for run in (head, waiting):
        run.pause()

    assert [run.state.ticket for run in (head, waiting)] == [
        Ticket(at=NOON, rev=1, held=held) for held in (True, False)
    ]
    assert waiting.put(facts.LaneEntered()) is None


def test_a_resting_run_that_is_paused_stands_in_no_line() -> None:
    run = in_lane(head=False, has_input=False)

    run.pause()
    assert run.state.ticket is None
    run.signal("m1", 1)
    assert run.state.ticket is None
    run.resolve("resume")

    assert run.state.ticket == Ticket(at=NOON, rev=4)


def test_who_rests_and_wakes_takes_a_new_ticket_and_does_not_know_who_is_next() -> None:
    run = in_lane()
    run.claim()
    run.state = replace(run.state, lane_head="r1")
    run.settle(Ok())
    run.sleep(SECOND)

    run.signal("m1", 1)

    assert run.state.ticket == Ticket(at=NOON + SECOND, rev=5)
    assert its_turn(run.state) == ()


def test_a_head_with_mail_goes_on() -> None:
    run = in_lane()
    run.claim()
    run.signal("m1", 1)

    run.settle(Ok())

    assert run.state.ticket == Ticket(at=NOON, rev=1, held=True)


@pytest.mark.parametrize("command", [commands.Cancel(), commands.Delete()], ids=["cancel", "delete"])
def test_a_waiting_run_can_end(command: Any) -> None:
    run = in_lane(head=False)

    run.do(command)

    assert (run.state.status, run.state.ticket) == ("cancelled", None)


def test_steps_of_a_workflow_share_their_runs_turn() -> None:
    run = in_lane(head=False, has_input=False)
    run.schedule("load")
    run.schedule("send")
    assert [run.claim(f"c{key}", key).refusal for key in ("load", "send")] == ["attempt_not_visible"] * 2

    run.put(facts.LaneEntered())
    run.schedule("note")

    assert [run.claim(f"d{key}", key).refusal for key in ("load", "send", "note")] == [None] * 3


def test_the_view_of_a_queue_knows_who_waits() -> None:
    waiting, head = in_lane(head=False), in_lane()
    entries = [("waiting", fact, at) for fact, at in waiting.entries] + [
        ("head", fact, at) for fact, at in head.entries
    ]

    view = dispatch.fold(entries)

    assert [item.run_id for item in view.visible(NOON)] == ["head"]
    assert [item.run_id for item in view.attempts if item.blocked] == ["waiting"]


def test_a_ticket_is_dated_when_its_commit_is() -> None:
    created = facts.RunCreated(session_id="s1", clog_id="chat", lane="main", has_input=True)

    state = evolve(RunState(run_id="r1"), created, PENDING).resolved(NOON)

    assert state.ticket == Ticket(at=NOON, rev=1)


def test_a_fork_takes_a_place_of_its_own() -> None:
    run = in_lane()
    run.claim()
    run.sleep(SECOND)

    run.put(facts.RunForked(source_run_id="r0", at_rev=3))

    assert run.state.ticket == Ticket(at=NOON + SECOND, rev=4)
    assert run.claim("c2").refusal == "attempt_not_visible"


def test_nothing_of_a_claim_is_accepted_from_a_run_that_waits() -> None:
    run = in_lane(head=False)
    before = run.state

    claim = facts.AttemptClaimed(**fence("c1"), owner_id="w1", lease_us=SECOND)

    assert run.put(claim) == "attempt_not_visible"
    assert changes(before, run.state) <= BOOKKEEPING
