"""Children: one child for one logical start, and lineage that no later entry rewrites."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.errors import InvalidEntry
from holdfast.protocol import commands, facts
from holdfast.protocol.decisions import Handoff
from holdfast.protocol.outcomes import Done, Retry
from tests.protocol.builders import BOOKKEEPING, LEASE, SECOND, Run, active, changes


def with_child() -> Run:
    run = active()
    run.start_child("k1", step="load", start={"input": 1}, metadata={"why": "because"})
    return run


def finish(child: str, status: str = "done") -> commands.FinishChild:
    return commands.FinishChild(child_run_id=child, status=status, output="result")


@pytest.mark.clause("S-50")
@pytest.mark.parametrize("data", [{}, {"child_key": None}], ids=["absent", "null"])
def test_a_child_start_without_a_key_is_refused(data: dict[str, Any]) -> None:
    with pytest.raises(InvalidEntry, match="lacks child_key"):
        facts.from_value("child_run_started", {"child_run_id": "k1", "clog_id": "helper", **data})


@pytest.mark.clause("S-52")
def test_the_parent_records_the_childs_identity_and_origin() -> None:
    run = active()
    run.settle(Retry("again"))
    run.sleep(SECOND)
    run.claim("c2")

    decision = run.start_child("k1", "c2", step="load", start={"input": 1}, metadata={"why": "because"})

    started = facts.ChildRunStarted(
        child_run_id="k1",
        clog_id="helper",
        child_key="k1",
        step="load",
        attempt=1,
        start={"input": 1},
        metadata={"why": "because"},
    )
    assert decision.facts == (started,)
    assert decision.handoffs == (Handoff(target_run_id="k1", kind="start", fact=0),)
    (child,) = run.state.open_children()
    assert (child.child_run_id, child.clog_id, child.child_key, child.step) == ("k1", "helper", "k1", "load")


@pytest.mark.clause("S-54")
def test_the_same_start_again_answers_the_first_child() -> None:
    run = with_child()

    again = run.start_child("k1", step="load")

    assert (again.repeat_rev, again.facts, again.handoffs) == (3, (), ())


@pytest.mark.clause("S-54")
def test_a_later_try_of_the_parent_finds_the_same_child() -> None:
    run = with_child()
    run.sleep(LEASE)
    run.claim("c2")

    again = run.start_child("k1", "c2", step="load")

    assert (again.repeat_rev, again.facts) == (3, ())
    assert len(run.state.children) == 1


@pytest.mark.clause("S-54")
def test_a_journal_that_repeats_a_start_has_one_child() -> None:
    run = with_child()
    before = run.state

    assert run.put(run.entries[-1][0]) is None

    assert changes(before, run.state) <= BOOKKEEPING


def test_the_same_key_from_another_step_is_another_child() -> None:
    run = with_child()

    run.start_child("k2", step="charge")

    assert sorted(run.state.children) == ["k1", "k2"]


@pytest.mark.clause("S-55")
@pytest.mark.parametrize(
    ("child", "options"),
    [("k2", {"step": "load"}), ("k1", {"step": "charge"}), ("k1", {"step": "load", "clog_id": "other"})],
    ids=["same key, other child", "same child, other step", "same child, other clog"],
)
def test_a_start_that_contradicts_the_lineage_is_refused(child: str, options: dict[str, str]) -> None:
    run = with_child()
    before = run.state
    told: dict[str, Any] = {"child_run_id": child, "clog_id": "helper", "child_key": "k1", **options}
    fact = facts.ChildRunStarted(**told)

    assert run.put(fact) == "conflicting_child_run"
    assert run.start_child(child, **options).refusal == "conflicting_child_run"

    assert changes(before, run.state) <= BOOKKEEPING


@pytest.mark.clause("S-55")
def test_a_stale_or_ended_parent_starts_no_child() -> None:
    stale, over = active(), active()
    stale.sleep(LEASE)
    over.cancel(force=True)

    assert stale.start_child("k1").refusal == "expired_claim"
    assert over.start_child("k1").refusal == "terminal_run"
    late = facts.ChildRunStarted(child_run_id="k1", clog_id="helper", child_key="k1")
    assert over.put(late) == "terminal_run"
    assert (len(stale.state.children), len(over.state.children)) == (0, 0)


def test_a_childs_end_is_recorded_once() -> None:
    run = with_child()

    first, again = run.do(finish("k1")), run.do(finish("k1"))

    assert first.facts == (facts.ChildRunFinished(child_run_id="k1", status="done", output="result"),)
    assert (again.repeat_rev, again.facts) == (4, ())
    assert run.state.open_children() == ()
    assert run.state.children["k1"].status == "done"


def test_the_end_of_an_unknown_child_is_refused() -> None:
    run = with_child()

    assert run.do(finish("k9")).refusal == "conflicting_child_run"


@pytest.mark.clause("S-55")
@pytest.mark.parametrize(
    ("child", "status"), [("k9", "done"), ("k1", "failed"), ("k1", "asleep")], ids=["unknown", "other end", "no end"]
)
def test_an_end_that_contradicts_the_lineage_is_an_anomaly(child: str, status: str) -> None:
    run = with_child()
    run.do(finish("k1"))
    before = run.state

    assert run.put(facts.ChildRunFinished(child_run_id=child, status=status)) == "conflicting_child_run"

    assert changes(before, run.state) <= BOOKKEEPING


def test_a_repeated_end_in_a_journal_changes_nothing() -> None:
    run = with_child()
    run.do(finish("k1"))
    before = run.state

    assert run.put(run.entries[-1][0]) is None

    assert changes(before, run.state) <= BOOKKEEPING


def test_the_end_of_a_child_after_its_parents_end_is_no_news() -> None:
    run = with_child()
    run.settle(Done())

    decision = run.do(finish("k1"))

    assert (decision.facts, decision.refusal) == ((), None)
