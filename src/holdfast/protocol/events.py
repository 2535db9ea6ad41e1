"""The public event of an entry: a pure view of the one change of state that the entry records."""

from __future__ import annotations

from typing import Any, NamedTuple

from holdfast.protocol import facts
from holdfast.protocol.facts import ROOT, Fact
from holdfast.protocol.flows import OURS

_DONE = {"done": "completed", "failed": "error", "cancelled": "cancelled"}
_STEP = {"done": "completed", "failed": "failed", "retry": "retrying"}


class View(NamedTuple):
    """What watchers see of an entry."""

    type: str
    data: Any
    tick_id: str | None = None
    attempt: int | None = None


def view(fact: Fact) -> View | None:
    """The event that this fact shows to people, or None if it is not their business."""
    match fact:
        case facts.Event():
            return View(fact.type, fact.data, fact.tick_id, fact.attempt)
        case facts.RunCreated():
            return View("run_queued", {"clog_id": fact.clog_id, "session_id": fact.session_id, "queue": fact.queue})
        case facts.AttemptClaimed():
            return _started(fact)
        case facts.TickSettled():
            return _settled(fact)
        case facts.RunTerminal():
            return View("done", _ended(fact), fact.claim_id)
        case facts.SignalReceived():
            return View("signal_received", {"name": fact.name, "has_input": fact.has_input})
        case facts.CancelRequested():
            return View("cancel_requested", {"reason": fact.reason, "actor": fact.actor})
        case facts.TickAbandoned():
            data = {"tick_id": fact.tick_id, "from_seq": fact.from_seq, "keep": fact.keep}
            return View("tick_abandoned", data, fact.tick_id)
        case facts.Anomaly():
            data = {"reason": fact.reason, "entry_kind": fact.entry_kind, "claim_id": fact.claim_id}
            return View("anomaly", data)
        case _:
            return _of_people_and_steps(fact)


_ALWAYS_SHOWN = frozenset(
    {
        *(facts.Event, facts.RunCreated, facts.AttemptClaimed, facts.RunTerminal, facts.SignalReceived),
        *(facts.CancelRequested, facts.TickAbandoned, facts.Anomaly, facts.ManualStepPaused),
        *(facts.ManualStepResolved, facts.ChildRunStarted, facts.ChildRunFinished, facts.AttemptCompleted),
        *(facts.AttemptFailed, facts.MapExpanded, facts.CompensationBegun, facts.ToolAnswered),
    }
)
_SOMETIMES_SHOWN = frozenset({facts.TickSettled, facts.ToolRequested, facts.StepRecorded})


def is_shown(fact: Fact) -> bool:
    """Whether the fact shows an event, without making it."""
    kind = type(fact)
    return kind in _ALWAYS_SHOWN or (kind in _SOMETIMES_SHOWN and view(fact) is not None)


def _of_people_and_steps(fact: Fact) -> View | None:
    data: dict[str, Any]
    match fact:
        case facts.ManualStepPaused():
            kind = "approval_requested" if fact.boundary == "approval" else "run_paused"
            return View(kind, {"step": fact.step, "metadata": fact.metadata})
        case facts.ManualStepResolved(action="expire"):
            return View("approval_expired", {"step": fact.step})
        case facts.ManualStepResolved():
            data = {"step": fact.step, "action": fact.action, "actor": fact.actor, "comment": fact.comment}
            return View("approval_resolved", data)
        case facts.ChildRunStarted():
            return View("child_started", {"child_run_id": fact.child_run_id, "clog_id": fact.clog_id})
        case facts.ChildRunFinished():
            return View("child_finished", {"child_run_id": fact.child_run_id, "status": fact.status})
        case facts.AttemptCompleted():
            word = "skipped" if fact.skipped else "completed"
            return View("step_complete", {"step_id": fact.runnable_key, "status": word}, fact.claim_id)
        case facts.AttemptFailed():
            word = "failed" if fact.retry_delay_us is None else "retrying"
            data = {"step_id": fact.runnable_key, "status": word, "error": fact.error}
            return View("step_complete", data, fact.claim_id)
        case facts.MapExpanded():
            data = {"step_id": fact.runnable_key, "status": "mapping", "items": fact.items}
            return View("step_complete", data, fact.claim_id)
        case facts.CompensationBegun():
            return View("compensation_begun", {"step_id": fact.step})
        case facts.ToolRequested():
            return _called(fact)
        case facts.ToolAnswered():
            return _answered(fact)
        case facts.StepRecorded() if not fact.name.startswith(OURS):
            return _recorded(fact)
        case _:
            return None


def _called(fact: facts.ToolRequested) -> View | None:
    """A call that is begun again is the same call."""
    data = {"tool": fact.name, "args": fact.args, "tool_call_id": fact.call_id}
    return View("tool_call", data, fact.claim_id) if fact.tries == 0 else None


def _answered(fact: facts.ToolAnswered) -> View:
    result = fact.result if fact.shown is None else fact.shown
    data: dict[str, Any] = {"tool": fact.name, "result": result, "tool_call_id": fact.call_id}
    if fact.status == "failed":
        data |= {"result": fact.error, "is_error": True, "error_kind": fact.error_kind}
    return View("tool_result", data, fact.claim_id)


def _recorded(fact: facts.StepRecorded) -> View:
    if fact.status == "begun":
        return View("step_start", {"step_id": fact.name}, fact.claim_id, fact.attempt)
    data: dict[str, Any] = {"step_id": fact.name, "status": _STEP.get(fact.status, fact.status)}
    if fact.error is not None:
        data["error"] = fact.error
    return View("step_complete", data, fact.claim_id, fact.attempt)


def _started(fact: facts.AttemptClaimed) -> View:
    if fact.runnable_key != ROOT:
        return View("step_start", {"step_id": fact.runnable_key}, fact.claim_id, fact.attempt)
    return View("run_started", {"tick_id": fact.claim_id, "attempt": fact.attempt}, fact.claim_id, fact.attempt)


def _settled(fact: facts.TickSettled) -> View | None:
    match fact.outcome:
        case "ok":
            # A workflow's own tick ends while its steps go on.
            return None if fact.flow else View("run_idle", {}, fact.claim_id)
        case "wait" if fact.runnable_key != ROOT:
            data = {"step_id": fact.runnable_key, "status": "waiting", "delay_us": fact.delay_us}
            return View("step_complete", data, fact.claim_id)
        case "wait":
            awaits = {"awaits": fact.awaits} if fact.awaits else {}
            return View("run_waiting", {"until_us": fact.until_us, "delay_us": fact.delay_us, **awaits}, fact.claim_id)
        case "retry":
            return View("run_retrying", {"error": fact.error, "delay_us": fact.delay_us}, fact.claim_id)
        case _:
            return None


def _ended(fact: facts.RunTerminal) -> dict[str, Any]:
    data: dict[str, Any] = {"status": _DONE.get(fact.status, fact.status), "run_status": fact.status}
    if fact.status == "done":
        data["output"] = fact.output
    if fact.error is not None:
        data["error"] = fact.error
    return data
