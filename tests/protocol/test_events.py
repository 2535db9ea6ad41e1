"""The public event of every kind of entry."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from holdfast.protocol import facts
from holdfast.protocol.events import View, is_shown, view
from holdfast.protocol.facts import Fact
from holdfast.protocol.graphs import Graph
from tests.protocol.builders import fence
from tests.protocol.strategies import any_fact, law


def tool_requested(**fields: Any) -> Fact:
    told = {"slot": "|a", "tool_key": "k", "call_id": "k", "name": "search", "args_sha256": "s", **fields}
    return facts.ToolRequested(**fence("c1"), **told)


def tool_answered(**fields: Any) -> Fact:
    told = {"slot": "|a", "call_id": "k", "name": "search", "args_sha256": "s", "status": "completed", **fields}
    return facts.ToolAnswered(**fence("c1"), **told)


SHOWN: list[tuple[Fact, View]] = [
    (
        facts.RunCreated(session_id="s1", clog_id="chat", input="secret"),
        View("run_queued", {"clog_id": "chat", "session_id": "s1", "queue": "default"}),
    ),
    (
        facts.AttemptClaimed(**fence("c1"), owner_id="w1", lease_us=1, attempt=2),
        View("run_started", {"tick_id": "c1", "attempt": 2}, "c1", 2),
    ),
    (
        facts.AttemptClaimed(**fence("c1", "load"), owner_id="w1", lease_us=1, attempt=2),
        View("step_start", {"step_id": "load"}, "c1", 2),
    ),
    (
        facts.TickSettled(**fence("c1"), outcome="ok", result_digest="d"),
        View("run_idle", {}, "c1"),
    ),
    (
        facts.TickSettled(**fence("c1"), outcome="wait", result_digest="d", delay_us=5),
        View("run_waiting", {"until_us": None, "delay_us": 5}, "c1"),
    ),
    (
        facts.TickSettled(**fence("c1"), outcome="retry", result_digest="d", delay_us=5, error="broken"),
        View("run_retrying", {"error": "broken", "delay_us": 5}, "c1"),
    ),
    (
        facts.TickAbandoned(tick_id="c1", from_seq=2, reason="expired", keep=[[3, 4]]),
        View("tick_abandoned", {"tick_id": "c1", "from_seq": 2, "keep": [[3, 4]]}, "c1"),
    ),
    (
        facts.SignalReceived(signal_id="m1", name="go", has_input=True, input="secret"),
        View("signal_received", {"name": "go", "has_input": True}),
    ),
    (
        facts.CancelRequested(reason="enough", actor="ann"),
        View("cancel_requested", {"reason": "enough", "actor": "ann"}),
    ),
    (
        facts.ManualStepPaused(step="review", boundary="approval", metadata={"a": 1}),
        View("approval_requested", {"step": "review", "metadata": {"a": 1}}),
    ),
    (
        facts.ManualStepPaused(step="review", boundary="pause"),
        View("run_paused", {"step": "review", "metadata": {}}),
    ),
    (
        facts.ManualStepResolved(step="review", action="approve", actor="ann", comment="fine"),
        View("approval_resolved", {"step": "review", "action": "approve", "actor": "ann", "comment": "fine"}),
    ),
    (
        facts.ManualStepResolved(step="review", action="expire"),
        View("approval_expired", {"step": "review"}),
    ),
    (
        facts.StepRecorded(**fence("c1"), name="charge", result="secret"),
        View("step_complete", {"step_id": "charge", "status": "completed"}, "c1", 0),
    ),
    (
        facts.StepRecorded(**fence("c1"), name="charge", status="retry", error="broken", attempt=2),
        View("step_complete", {"step_id": "charge", "status": "retrying", "error": "broken"}, "c1", 2),
    ),
    (
        tool_requested(args={"q": 1}),
        View("tool_call", {"tool": "search", "args": {"q": 1}, "tool_call_id": "k"}, "c1"),
    ),
    (
        tool_answered(result={"token": "t"}, shown={"token": "[redacted]"}),
        View("tool_result", {"tool": "search", "result": {"token": "[redacted]"}, "tool_call_id": "k"}, "c1"),
    ),
    (
        tool_answered(status="failed", error="broken", error_kind="oops"),
        View(
            "tool_result",
            {"tool": "search", "result": "broken", "tool_call_id": "k", "is_error": True, "error_kind": "oops"},
            "c1",
        ),
    ),
    (
        facts.ChildRunStarted(child_run_id="k1", clog_id="helper", child_key="k"),
        View("child_started", {"child_run_id": "k1", "clog_id": "helper"}),
    ),
    (
        facts.ChildRunFinished(child_run_id="k1", status="done"),
        View("child_finished", {"child_run_id": "k1", "status": "done"}),
    ),
    (
        facts.AttemptCompleted(**fence("c1", "load"), result_digest="d"),
        View("step_complete", {"step_id": "load", "status": "completed"}, "c1"),
    ),
    (
        facts.AttemptFailed(**fence("c1", "load"), error="broken", result_digest="d"),
        View("step_complete", {"step_id": "load", "status": "failed", "error": "broken"}, "c1"),
    ),
    (
        facts.AttemptFailed(**fence("c1", "load"), error="broken", result_digest="d", retry_delay_us=5),
        View("step_complete", {"step_id": "load", "status": "retrying", "error": "broken"}, "c1"),
    ),
    (
        facts.AttemptCompleted(**fence("c1", "load"), result_digest="d", skipped=True),
        View("step_complete", {"step_id": "load", "status": "skipped"}, "c1"),
    ),
    (
        facts.MapExpanded(**fence("c1", "lines"), result_digest="d", items=3),
        View("step_complete", {"step_id": "lines", "status": "mapping", "items": 3}, "c1"),
    ),
    (
        facts.TickSettled(**fence("c1", "load"), outcome="wait", result_digest="d", delay_us=5),
        View("step_complete", {"step_id": "load", "status": "waiting", "delay_us": 5}, "c1"),
    ),
    (
        facts.CompensationBegun(step="charge"),
        View("compensation_begun", {"step_id": "charge"}),
    ),
    (
        facts.Anomaly(reason="stale_claim", entry_kind="event", claim_id="c1"),
        View("anomaly", {"reason": "stale_claim", "entry_kind": "event", "claim_id": "c1"}),
    ),
    (
        facts.Event(type="text", data="hi", tick_id="c1", attempt=1),
        View("text", "hi", "c1", 1),
    ),
]
HIDDEN: list[Fact] = [
    facts.AttemptHeartbeat(**fence("c1"), lease_us=1),
    facts.TickSettled(**fence("c1"), outcome="continue", result_digest="d"),
    facts.TickSettled(**fence("c1"), outcome="ok", result_digest="d", flow=True),
    facts.WorkflowStarted(version="1", fingerprint="f", graph=Graph(nodes=())),
    facts.RunnablePlanned(runnable_key="load", step="load"),
    facts.AttemptScheduled(runnable_key="load", step="load", idempotency_key="k"),
    facts.RunnableApplied(runnable_key="load", result_digest="d"),
    facts.LiveWakeupEmitted(),
    facts.RunForked(source_run_id="r0", at_rev=3),
    facts.StorageWritten(tick_id="c1", clog_id="chat", writes=[facts.StorageWrite(scope="run", value="secret")]),
    facts.OutboxEnqueued(tick_id="c1", outbox_id="o1", target_space="mail", payload_sha="a"),
    facts.TickBegun(tick_id="c1"),
    facts.EndpointCalled(tick_id="c1", clog_id="chat", method="sum"),
    facts.LaneEntered(),
    tool_requested(tries=1),
    facts.StepRecorded(**fence("c1"), name="@now", result=1),
    facts.SignalTaken(**fence("c1"), seq=2, step="@receive:a"),
    facts.RunDeleted(),
]


def test_every_kind_is_either_shown_or_hidden() -> None:
    kinds = {fact.kind for fact, _ in SHOWN} | {fact.kind for fact in HIDDEN} | {"run_terminal"}

    assert kinds == set(facts.KINDS)


@pytest.mark.parametrize(("fact", "shown"), SHOWN, ids=lambda part: part.type if isinstance(part, View) else part.kind)
def test_an_entry_shows_its_change_and_no_more(fact: Fact, shown: View) -> None:
    assert view(fact) == shown
    assert is_shown(fact)


@pytest.mark.parametrize("fact", HIDDEN, ids=lambda fact: fact.kind)
def test_an_entry_that_is_nobodys_business_shows_nothing(fact: Fact) -> None:
    assert view(fact) is None
    assert not is_shown(fact)


@pytest.mark.clause("H-W13", "H-O6")
@pytest.mark.parametrize(
    ("fact", "data"),
    [
        (
            facts.RunTerminal(status="done", output={"answer": 42}, claim_id="c1"),
            {"status": "completed", "run_status": "done", "output": {"answer": 42}},
        ),
        (
            facts.RunTerminal(status="failed", error="broken", claim_id="c1"),
            {"status": "error", "run_status": "failed", "error": "broken"},
        ),
        (
            facts.RunTerminal(status="cancelled", claim_id="c1"),
            {"status": "cancelled", "run_status": "cancelled"},
        ),
    ],
    ids=["done", "failed", "cancelled"],
)
def test_the_end_of_a_run_is_done_with_its_status(fact: facts.RunTerminal, data: dict[str, Any]) -> None:
    assert view(fact) == View("done", data, "c1")


@pytest.mark.clause("H-S9")
@law
@given(any_fact)
def test_no_event_of_the_library_shows_a_token_hash(fact: Fact) -> None:
    shown = view(fact)

    if shown is not None and shown.type != "note":
        assert "hash of" not in repr(shown)
