"""Flows: recorded steps, received signals, questions to people, and what wakes a body that sleeps."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.protocol import commands, facts
from holdfast.protocol.decisions import Decision
from holdfast.protocol.facts import ROOT
from holdfast.protocol.flows import joined
from holdfast.protocol.outcomes import Done, Retry, Wait
from holdfast.protocol.state import NEVER
from holdfast.protocol.values import fingerprint
from tests.protocol.builders import BOOKKEEPING, LEASE, SECOND, Run, active, changes, fence, idle, pending


def record(run: Run, name: str = "charge", claim: str = "c1", **options: Any) -> Decision:
    return run.do(commands.RecordStep(**fence(claim), name=name, **options))


def take(run: Run, name: str | None = None, occurrence: int = 0, claim: str = "c1") -> Decision:
    return run.do(commands.TakeSignal(**fence(claim), name=name, occurrence=occurrence))


def ask(run: Run, step: str = "go", claim: str = "c1", **options: Any) -> Decision:
    return run.do(commands.OpenBoundary(**fence(claim), step=step, **options))


def rest(run: Run, *awaits: str, claim: str = "c1", seconds: float | None = None) -> Decision:
    settled = commands.Settle(**fence(claim), outcome=Wait(seconds=seconds), awaits=awaits, flow=True)
    return run.do(settled)


def is_due(run: Run) -> bool:
    return run.state.work[ROOT].visible_at <= run.now


def test_a_step_is_recorded_once() -> None:
    run = active()

    first = record(run, result=1)
    again = record(run, result=2)

    assert [fact.kind for fact in first.facts] == ["step_recorded"]
    assert (again.facts, again.repeat_rev) == ((), run.state.steps["charge", 0].rev)
    assert record(run, occurrence=1).facts


def test_a_failed_attempt_is_followed_by_the_next_one_and_by_no_older_one() -> None:
    run = active()
    record(run, status="retry", attempt=2, error="down", result=1)
    before = run.state

    older = facts.StepRecorded(**fence("c1"), name="charge", status="retry", attempt=1)
    assert run.put(older) is None
    assert changes(before, run.state) <= BOOKKEEPING
    record(run, result="paid", attempt=2)

    assert run.state.steps["charge", 0].status == "done"


def test_what_belongs_to_a_step_commits_with_it() -> None:
    run = active()
    child = commands.ChildStart(child_run_id="k1", clog_id="helper", child_key="k")
    row = commands.OutboxRow(outbox_id="o1", target_space="mail", payload_sha="a")
    staged = commands.Staged(outbox=(row,), children=(child,))

    decision = record(run, staged=staged, events=(("text", "hi"), ("text", "ho")))

    kinds = [fact.kind for fact in decision.facts]
    assert kinds == ["event", "event", "outbox_enqueued", "child_run_started", "step_recorded"]
    assert [(handoff.kind, handoff.fact) for handoff in decision.handoffs] == [("start", 3)]
    recorded = decision.facts[-1]
    assert isinstance(recorded, facts.StepRecorded)
    assert recorded.said == [[3, 4]]


def test_what_a_finished_step_said_stays_when_its_tick_is_lost() -> None:
    run = active()
    run.emit(("text", "one"))
    record(run, said=((3, 3),))
    run.emit(("text", "unfinished"))
    run.sleep(LEASE)

    taken_over = run.claim("c2")

    abandoned = taken_over.facts[0]
    assert isinstance(abandoned, facts.TickAbandoned)
    assert (abandoned.from_seq, abandoned.keep) == (2, [[3, 4]])


def test_a_tick_that_speaks_in_every_step_keeps_one_range() -> None:
    run = active()

    for number in range(20):
        run.emit(("text", number))
        record(run, occurrence=number, said=((run.state.rev, run.state.rev),))
        record(run, "@now", occurrence=number)

    (kept,) = run.state.ticks["c1"].kept
    assert kept == (3, run.state.rev)


def test_a_step_that_is_tried_again_keeps_nothing_it_said() -> None:
    run = active()
    run.emit(("text", "one"))

    record(run, status="retry", attempt=1, said=((3, 3),))

    assert run.state.ticks["c1"].kept == ()


@pytest.mark.parametrize("order", [record, take, ask], ids=["record", "take", "ask"])
def test_only_the_holder_of_the_claim_writes_its_memory(order: Any) -> None:
    run = active()
    before = run.state

    assert order(run, claim="c9").refusal == "stale_claim"
    assert changes(before, run.state) <= BOOKKEEPING


def test_memory_in_a_journal_is_judged_like_a_command() -> None:
    run = active()
    run.signal("m1", "one")

    assert run.put(facts.StepRecorded(**fence("c1"), name="a", status="odd")) == "malformed_entry"
    assert run.put(facts.StepRecorded(**fence("c9"), name="a")) == "stale_claim"
    assert run.put(facts.SignalTaken(**fence("c8"), seq=3, step="@receive:")) == "stale_claim"
    assert run.state.mailbox == (3,)


def test_signals_are_taken_first_in_first_out_by_name() -> None:
    run = active()
    for number, name in enumerate(["a", None, "a", "b"]):
        run.signal(f"m{number}", number, name=name)
    early = run.state.mailbox

    taken = [take(run, "a"), take(run, "a", 1), take(run), take(run, "a", 2)]

    seqs = [fact.seq for decision in taken for fact in decision.facts if isinstance(fact, facts.SignalTaken)]
    assert seqs == [early[0], early[2], early[1]]
    assert taken[-1].refusal == "no_signal"
    assert run.state.mailbox == (early[3],)
    assert run.state.signals[early[0]].tick_id == "c1"


def test_a_signal_is_received_once() -> None:
    run = active()
    run.signal("m1", "one")
    run.signal("m2", "two")

    first = take(run)
    again = take(run)

    assert (again.facts, again.repeat_rev) == ((), run.state.steps["@receive:", 0].rev)
    assert run.put(first.facts[0]) is None
    assert len(run.state.mailbox) == 1


def test_the_signal_that_started_the_run_is_its_input_and_is_not_received_again() -> None:
    run = idle()
    run.signal("m1", "start")
    run.claim()

    assert take(run).refusal == "no_signal"
    assert run.put(facts.SignalTaken(**fence("c1"), seq=2, step="@receive:")) == "malformed_entry"
    rest(run, "signal:")

    assert (run.state.mailbox, run.state.status) == ((), "waiting")


def test_a_flow_is_woken_by_what_it_waits_for_and_by_nothing_else() -> None:
    run = active()
    rest(run, "signal:go", seconds=60)

    run.signal("m1", "noise")
    run.signal("m2", "noise", name="other", interrupt=True)
    assert (run.state.status, is_due(run)) == ("waiting", False)
    run.signal("m3", "now", name="go")

    assert (run.state.status, is_due(run), run.state.wake_at) == ("pending", True, None)


def test_a_sleep_is_shortened_by_nothing() -> None:
    run = active()
    rest(run, seconds=60)

    run.signal("m1", "hello")
    run.signal("m2", "hello", interrupt=True)

    assert run.state.work[ROOT].visible_at == run.now + 60 * SECOND
    run.sleep(60 * SECOND)
    assert run.claim("c2").refusal is None


def test_what_came_before_the_body_lay_down_wakes_it_at_once() -> None:
    run = active()
    run.signal("m1", "early", name="go")

    rest(run, "signal:go", "nothing:we know")

    assert (run.state.status, is_due(run)) == ("pending", True)


@pytest.mark.parametrize("awaits", [(), ("signal:other",), ("child:k1",), ("nothing:we know",)])
def test_what_has_not_happened_wakes_nobody(awaits: tuple[str, ...]) -> None:
    run = active()
    run.signal("m1", "early", name="go")

    rest(run, *awaits)

    assert (run.state.status, run.state.work[ROOT].visible_at) == ("waiting", NEVER)


def test_the_end_of_a_child_wakes_its_parent() -> None:
    run = active()
    run.start_child("k1")
    rest(run, "child:k1")
    assert not is_due(run)

    run.do(commands.FinishChild(child_run_id="k1", status="done"))

    assert is_due(run)


def test_a_child_that_ended_meanwhile_wakes_its_parent_at_once() -> None:
    run = active()
    run.start_child("k1")
    run.do(commands.FinishChild(child_run_id="k1", status="failed"))

    rest(run, "child:k1")

    assert is_due(run)


@pytest.mark.parametrize("action", ["approve", "reject"])
def test_a_flow_hears_the_answer_whatever_it_is(action: str) -> None:
    run = active()
    ask(run, metadata={"amount": 5})
    rest(run, "approval:go")
    assert run.state.status == "paused"

    decision = run.resolve(action, actor="ann")

    (resolved,) = decision.facts
    assert isinstance(resolved, facts.ManualStepResolved)
    assert resolved.shown_sha == fingerprint({"amount": 5})
    assert (run.state.status, is_due(run)) == ("pending", True)
    assert run.state.steps["@approval:go", 0].rev == run.state.rev


def test_one_question_at_a_time() -> None:
    run = active()
    first = ask(run, "one")

    assert ask(run, "one").repeat_rev == 3
    assert ask(run, "two").refusal == "active_manual_step"
    assert (len(first.facts), run.refusals) == (1, set())


def test_an_answer_that_came_before_the_body_lay_down_counts() -> None:
    run = active()
    ask(run)
    run.resolve("approve", actor="ann")
    run.pause("by hand")

    rest(run, "approval:go")
    run.resolve("resume", step="by hand")

    assert (run.state.status, is_due(run)) == ("pending", True)


def test_an_answer_must_have_seen_the_question() -> None:
    run = active()
    ask(run)
    boundary = run.state.boundary
    assert boundary is not None

    assert run.resolve("approve", actor="ann", seen_rev=boundary.rev - 1).refusal == "stale_manual_resolution"
    assert run.resolve("approve", actor="ann", seen_rev=boundary.rev).refusal is None


def test_an_answer_that_comes_too_late_is_refused() -> None:
    run = active()
    ask(run, expires_us=SECOND)
    run.sleep(SECOND)

    assert run.resolve("approve", actor="ann").refusal == "stale_manual_resolution"


def test_nobody_answered_in_time() -> None:
    run = active()
    ask(run, expires_us=SECOND)
    rest(run, "approval:go")

    early = run.do(commands.ExpireBoundary())
    run.sleep(SECOND)
    late = run.do(commands.ExpireBoundary())
    again = run.do(commands.ExpireBoundary())

    assert (early.facts, again.facts) == ((), ())
    assert late.facts == (facts.ManualStepResolved(step="go", action="expire"),)
    assert (run.state.status, is_due(run)) == ("pending", True)


def test_a_pause_that_expires_goes_on_and_an_approval_fails_its_run() -> None:
    resumed, failed = pending(), pending()
    resumed.pause("stop", "pause", expires_us=SECOND)
    failed.pause("check", "approval", expires_us=SECOND)

    for run in (resumed, failed):
        run.sleep(SECOND)
        run.do(commands.ExpireBoundary())

    assert resumed.state.status == "pending"
    assert (failed.state.status, failed.state.error_kind) == ("failed", "approval_expired")


def test_a_flow_that_is_tried_again_keeps_what_its_steps_said() -> None:
    run = active()
    run.emit(("text", "one"))
    record(run, said=((3, 3),))

    decision = run.do(commands.Settle(**fence("c1"), outcome=Retry("broken"), flow=True))

    abandoned = decision.facts[-1]
    assert isinstance(abandoned, facts.TickAbandoned)
    assert abandoned.keep == [[3, 4]]


def test_the_run_of_a_flow_ends_like_any_other() -> None:
    run = active()
    record(run)

    run.do(commands.Settle(**fence("c1"), outcome=Done(7), flow=True))

    assert run.state.status == "done"


@pytest.mark.parametrize(
    ("ranges", "expected"),
    [
        ([], ()),
        ([(5, 6), (1, 2)], ((1, 2), (5, 6))),
        ([(1, 2), (3, 4)], ((1, 4),)),
        ([(1, 9), (3, 4)], ((1, 9),)),
    ],
)
def test_neighbouring_ranges_are_one(ranges: list[tuple[int, int]], expected: Any) -> None:
    assert joined(ranges) == expected
