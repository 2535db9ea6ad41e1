"""`Explanation`: why a run is where it is, in words for people and in words for programs. Pure."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, cast

import msgspec

from holdfast.runtime.history import repeats
from holdfast.runtime.inspection import Attempt, Inspection

_NEXT_ACTIONS: dict[str, tuple[str, ...]] = {
    "terminal": ("inspect_terminal_run",),
    "manual_intervention_required": ("resolve_manual_step",),
    "completed_result_pending_apply": ("apply_pending_result",),
    "planned_dispatch_pending_schedule": ("schedule_pending_dispatch",),
    "expired_claim": ("recover_expired_claim",),
    "attempt_visible": ("wait_for_worker_claim",),
    "no_handler_here": ("wait_for_worker_claim",),
    "attempt_claimed": ("wait_for_attempt_completion",),
    "attempt_scheduled_for_later": ("wait_until_attempt_visible",),
    "idle": ("wait_for_new_runnables",),
    "waiting_for_dispatch": ("inspect_dispatch_state",),
}
_ORDINALS = ("", "first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """One reason, a summary for people, the facts behind it, and what would move the run on."""

    run_id: str
    status: str
    reason: str
    summary: str
    details: dict[str, Any]
    next_actions: tuple[str, ...]
    evidence: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; instants as RFC 3339 text."""
        return cast(dict[str, Any], msgspec.json.decode(msgspec.json.encode(self)))


def explanation(seen: Inspection, *, known_clogs: frozenset[str] | None, lane_place: int | None) -> Explanation:
    """Explain what was seen. `known_clogs` are what this process can claim, None if that is not known."""
    due = {"attempt_visible": seen.visible_attempts, "expired_claim": seen.expired_claims}.get(seen.reason, ())
    unserved = known_clogs is not None and bool(due) and all(item.handler not in known_clogs for item in due)
    reason = "no_handler_here" if unserved else seen.reason
    return Explanation(
        run_id=seen.run_id,
        status=seen.status,
        reason=reason,
        summary=" ".join([_SUMMARIES[reason](seen, lane_place), *_asides(seen)]),
        details=_details(seen, lane_place),
        next_actions=_NEXT_ACTIONS[reason],
        evidence=_evidence(seen),
    )


def _details(seen: Inspection, lane_place: int | None) -> dict[str, Any]:
    """What the summary was made from; only what is there."""
    found: dict[str, Any] = {
        "manual_state": seen.manual_state,
        "pending_results": seen.pending_results,
        "pending_dispatches": seen.pending_dispatches,
        "expired_claims": seen.expired_claims,
        "claimed_attempts": seen.claimed_attempts,
        "visible_attempts": seen.visible_attempts,
        "scheduled_attempts": seen.scheduled_attempts,
        "next_visible_at": seen.next_visible_at,
        "lane": None if lane_place is None else {"name": seen.lane, "place": lane_place},
        "signals_waiting": seen.signals_waiting,
        "open_children": [child.run_id for child in seen.child_runs if child.status is None],
        "cancel_requested_at": seen.cancel_requested_at,
        "last_error": seen.last_error,
        "error_kind": seen.error_kind,
        "finished_at": seen.finished_at,
    }
    kept = {name: value for name, value in found.items() if value not in (None, 0, (), [])}
    return {"clog_id": seen.clog_id, "queue": seen.queue, **kept}


def _evidence(seen: Inspection) -> dict[str, Any]:
    commands: dict[str, int] = {}
    for receipt in seen.command_history:
        commands[receipt.command] = commands.get(receipt.command, 0) + 1
    return {
        "seen_at": seen.seen_at,
        "revisions": seen.revisions,
        "counts": {
            "attempts": len(seen.attempts),
            "ticks": len(seen.ticks),
            "signals_waiting": seen.signals_waiting,
            "anomalies": len(seen.anomalies),
            "child_runs": len(seen.child_runs),
            "commands": commands,
        },
        "duplicate_commands": repeats(seen.command_history),
    }


def _ended(seen: Inspection, lane_place: int | None) -> str:
    when = _when(seen.finished_at)
    if seen.status == "done":
        return f"The run is done since {when}."
    if seen.status == "failed":
        kind = f" ({seen.error_kind})" if seen.error_kind and seen.error_kind != "error" else ""
        return f"The run failed at {when}{kind} because: {seen.last_error or 'no error was given'}."
    order = next((each for each in seen.command_history if each.command == "cancel"), None)
    by = f" by {order.actor}" if order and order.actor else ""
    why = f" because: {order.comment}" if order and order.comment else ""
    return f"The run was cancelled{by} at {when}{why}."


def _asks(seen: Inspection, lane_place: int | None) -> str:
    asked = seen.manual_state
    assert asked is not None
    until = f"; the question expires at {_when(asked.expires_at)}" if asked.expires_at else ""
    if asked.kind == "approval":
        return f"It needs approval: someone must approve or reject step {asked.step!r}{until}."
    return f"It is paused at step {asked.step!r} until someone resumes it{until}."


def _unapplied(seen: Inspection, lane_place: int | None) -> str:
    return f"{_steps(seen.pending_results)} finished, but the result is not part of the run yet."


def _unscheduled(seen: Inspection, lane_place: int | None) -> str:
    return f"{_steps(seen.pending_dispatches)} was planned, but nobody can claim it yet."


def _lost(seen: Inspection, lane_place: int | None) -> str:
    item = seen.expired_claims[0]
    ago = span(seen.seen_at - item.lease_until) if item.lease_until else ""
    next_up = (
        "the next worker of its queue takes it over"
        if item.deliveries < seen.max_deliveries
        else "it was lost too often, so the next claim fails the run"
    )
    return f"Worker {item.owner_id} let its lease end {ago} ago{_of_step(item)}; {next_up}."


def _due(seen: Inspection, lane_place: int | None) -> str:
    item = seen.visible_attempts[0]
    return f"It is due since {_when(item.visible_at)}{_of_step(item)} and waits for a worker of queue {seen.queue!r}."


def _unserved(seen: Inspection, lane_place: int | None) -> str:
    _, _, version = (*seen.visible_attempts, *seen.expired_claims)[0].handler.partition("/")
    if version:
        return (
            f"It is due, but no worker here knows version {version} of flow {seen.clog_id!r}; keep a process that does "
            f"on queue {seen.queue!r} until the runs of that version are over."
        )
    return (
        f"It is due, but there is no handler for clog {seen.clog_id!r} here; a process that registers it has to "
        f"serve queue {seen.queue!r}."
    )


def _held(seen: Inspection, lane_place: int | None) -> str:
    item = next(iter(seen.claimed_attempts))
    left = span(item.lease_until - seen.seen_at) if item.lease_until else ""
    return f"It is held by worker {item.owner_id} with a lease of {left}{_of_step(item)}."


def _later(seen: Inspection, lane_place: int | None) -> str:
    first = seen.scheduled_attempts[0]
    if seen.is_flow and first.status != "retry_scheduled":
        return _flow_waits(seen, first.awaits)
    if seen.next_visible_at is None:
        return "It waits for a signal; nothing else is planned."
    until = f"until {_when(seen.next_visible_at)}, in {span(seen.next_visible_at - seen.seen_at)}"
    if first.status == "retry_scheduled":
        why = f": {seen.last_error}" if seen.last_error else ""
        return f"It waits {until}, before try {first.attempt + 1} of {seen.max_attempts}{_of_step(first)}{why}."
    return f"It waits {until}{_of_step(first)}; a signal may come first."


def _flow_waits(seen: Inspection, awaits: tuple[str, ...]) -> str:
    """A flow is woken by what it waits for and by nothing else."""
    waits = [_awaited(*what.split(":", 1)) for what in awaits]
    if seen.next_visible_at is not None:
        waits.append(f"until {_when(seen.next_visible_at)}, in {span(seen.next_visible_at - seen.seen_at)}")
    return f"It waits {' or '.join(waits)}."


def _awaited(kind: str, name: str) -> str:
    words = {"child": f"for child run {name}", "approval": f"for an answer to {name!r}"}
    return words.get(kind) or (f"for signal {name!r}" if name else "for a signal")


def _rests(seen: Inspection, lane_place: int | None) -> str:
    return "It rests: there is nothing left to do until a signal arrives."


def _queues(seen: Inspection, lane_place: int | None) -> str:
    if lane_place is None:
        return "It has work, but no worker can claim it yet."
    return f"It is {_ordinal(lane_place)} in its lane {seen.lane!r} and starts when those before it rest or end."


_SUMMARIES: dict[str, Callable[[Inspection, int | None], str]] = {
    "terminal": _ended,
    "manual_intervention_required": _asks,
    "completed_result_pending_apply": _unapplied,
    "planned_dispatch_pending_schedule": _unscheduled,
    "expired_claim": _lost,
    "attempt_visible": _due,
    "no_handler_here": _unserved,
    "attempt_claimed": _held,
    "attempt_scheduled_for_later": _later,
    "idle": _rests,
    "waiting_for_dispatch": _queues,
}


def _asides(seen: Inspection) -> list[str]:
    """What else a reader should know, whatever the reason."""
    said: list[str] = []
    if not seen.terminal and seen.cancel_requested_at:
        said.append(f"Cancel was requested at {_when(seen.cancel_requested_at)}; the next outcome ends the run.")
    waiting = [child.run_id for child in seen.child_runs if child.status is None]
    if waiting and not seen.terminal:
        said.append(f"Of its child runs {len(waiting)} {'is' if len(waiting) == 1 else 'are'} not over.")
    if seen.signals_waiting and seen.reason in ("manual_intervention_required", "terminal"):
        fate = "will not be delivered" if seen.terminal else "are kept until then"
        said.append(f"Signals in its mailbox: {seen.signals_waiting}; they {fate}.")
    return said


def _steps(steps: tuple[Any, ...]) -> str:
    others = f" (and {len(steps) - 1} more)" if len(steps) > 1 else ""
    return f"Step {steps[0].step!r}{others}"


def _of_step(item: Attempt) -> str:
    return f" (step {item.step!r})" if item.step else ""


def _ordinal(number: int) -> str:
    return _ORDINALS[number] if number < len(_ORDINALS) else f"number {number}"


def _when(moment: datetime | None) -> str:
    return "an unknown time" if moment is None else f"{moment:%Y-%m-%d %H:%M:%S} UTC"


def span(span: timedelta) -> str:
    """A length of time as people say it: one number, one unit."""
    seconds = max(span.total_seconds(), 0.0)
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 1 or seconds == 0 else f"{seconds * 1_000:.0f} ms"
