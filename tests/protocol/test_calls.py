"""Direct calls of endpoints, and what a tick wants beside its outcome."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.protocol import commands, facts
from holdfast.protocol.decide import decide
from holdfast.protocol.decisions import Handoff
from holdfast.protocol.outcomes import Continue, Done, Ok
from holdfast.protocol.state import RunState
from holdfast.protocol.storage import ClogWrites, StagedWrite
from tests.protocol.builders import NOON, Run, active, ended, fence, idle, pending

NOTHING = commands.Staged()
OUTBOX = commands.OutboxRow(outbox_id="o1", target_space="mail", payload="hi", payload_sha="s", idempotency_key="k")
CHILD = commands.ChildStart(child_run_id="k1", clog_id="helper", child_key="k", start={"input": 1})


def begun(run: Run | None = None) -> Run:
    run = run or idle()
    run.do(commands.BeginTick(tick_id="t1"))
    return run


def call(tick_id: str = "t1", staged: commands.Staged = NOTHING, **options: Any) -> commands.CallEndpoint:
    return commands.CallEndpoint(tick_id=tick_id, clog_id="chat", method="sum", staged=staged, **options)


@pytest.mark.clause("OB-18")
def test_a_tick_for_calls_moves_nothing_and_begins_once() -> None:
    run = active()

    first, again = run.do(commands.BeginTick(tick_id="t1")), run.do(commands.BeginTick(tick_id="t1"))

    assert (first.facts, again.facts, again.repeat_rev) == ((facts.TickBegun(tick_id="t1"),), (), 3)
    assert (run.state.status, run.state.deliveries) == ("active", 1)
    assert run.do(commands.BeginTick(tick_id="c1")).refusal == "tick_active"


COMMANDS = [
    commands.BeginTick(tick_id="t9"),
    commands.Speak(tick_id="t9", events=(("text", "hi"),)),
    call("t9"),
]


@pytest.mark.parametrize("command", COMMANDS, ids=["begin", "speak", "call"])
def test_there_are_no_calls_without_a_run_or_after_its_end(command: Any) -> None:
    assert decide(RunState(run_id="r1"), command, NOON).refusal == "not_found"
    assert ended().do(command).refusal == "terminal_run"


@pytest.mark.parametrize(("tick_id", "refusal"), [("t9", "not_found"), ("c1", "tick_active")])
def test_calls_need_a_tick_that_was_begun_for_them(tick_id: str, refusal: str) -> None:
    run = active()

    assert run.do(call(tick_id)).refusal == refusal
    assert run.do(commands.Speak(tick_id=tick_id, events=(("text", "hi"),))).refusal == refusal


def test_an_endpoint_may_speak_in_its_tick() -> None:
    run = begun()

    decision = run.do(commands.Speak(tick_id="t1", events=(("text", "a"), ("text", "b"))))

    assert [getattr(fact, "data", None) for fact in decision.facts] == ["a", "b"]
    assert run.refusals == set()


def test_a_call_leaves_what_it_wrote_sent_and_used_up() -> None:
    run = begun()
    storage = (ClogWrites(clog_id="chat", writes=(StagedWrite(scope="run", value=1),)),)
    staged = commands.Staged(storage=storage, outbox=(OUTBOX,), deletes=("run",))

    decision = run.do(call(staged=staged, spent=("r:chat", "w:chat"), error=None))

    assert [fact.kind for fact in decision.facts] == ["storage_written", "outbox_enqueued", "endpoint_called"]
    assert decision.handoffs == (Handoff(target_run_id="r1", kind="delete_run", fact=2),)
    assert run.state.ticks["t1"].spent == ("r:chat", "w:chat")
    assert run.do(call(staged=staged)).refusal == "STORAGE_WRITE_ALREADY_CALLED"


def test_a_call_that_raised_is_remembered_with_its_error() -> None:
    run = begun()

    decision = run.do(call(error="broken", spent=("r:chat",)))

    assert decision.facts == (
        facts.EndpointCalled(tick_id="t1", clog_id="chat", method="sum", spent=["r:chat"], error="broken"),
    )
    assert run.state.ticks["t1"].spent == ("r:chat",)


def test_what_a_tick_staged_commits_with_its_outcome() -> None:
    run = active()
    staged = commands.Staged(outbox=(OUTBOX,), children=(CHILD,), deletes=("session",))

    decision = run.do(commands.Settle(**fence("c1"), outcome=Continue(2), staged=staged))

    assert [fact.kind for fact in decision.facts] == ["outbox_enqueued", "child_run_started", "tick_settled"]
    assert decision.handoffs == (
        Handoff(target_run_id="k1", kind="start", fact=1),
        Handoff(target_run_id="r1", kind="delete_session", fact=2),
    )
    assert list(run.state.children) == ["k1"]


def test_a_child_that_was_started_before_is_not_started_again() -> None:
    run = active()
    run.start_child("k1", child_key="k")

    decision = run.do(commands.Settle(**fence("c1"), outcome=Ok(), staged=commands.Staged(children=(CHILD,))))

    assert ([fact.kind for fact in decision.facts], decision.handoffs) == (["tick_settled"], ())


def test_a_cancelled_run_keeps_nothing_of_what_its_tick_staged() -> None:
    run = active()
    run.cancel()
    staged = commands.Staged(outbox=(OUTBOX,), children=(CHILD,), deletes=("run",))

    decision = run.do(commands.Settle(**fence("c1"), outcome=Done(), staged=staged))

    assert ([fact.kind for fact in decision.facts], decision.handoffs) == (["run_terminal"], ())


@pytest.mark.clause("S-18")
def test_a_notifier_that_was_told_is_noted_while_the_work_is_there() -> None:
    run = pending()

    assert run.do(commands.NoteWakeup()).facts == (facts.LiveWakeupEmitted(),)
    assert run.do(commands.NoteWakeup(runnable_key="load")).refusal == "unknown_runnable_intent"
    assert ended().do(commands.NoteWakeup()).refusal == "terminal_run"
