"""Commands that look back: `as-of`, `diff`."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import RenderableType

from holdfast.audit.instants import At
from holdfast.cli.app import Desk, Run, on_runs
from holdfast.cli.output import pairs, table
from holdfast.errors import NotFound
from holdfast.facade import Holdfast
from holdfast.runtime.travel import Difference, Moment, PastApproval, PastCall

_INSTANT = "NOW, a time like 2026-11-16T12:00:00Z, or microseconds since the epoch."
Instant = Annotated[str, typer.Argument(metavar="T", help=_INSTANT, show_default=False)]
LINE_LENGTH = 80


@on_runs("as-of")
async def as_of(desk: Desk, hf: Holdfast, *, run: Run, at: Instant) -> None:
    """Show a run as it was at an instant: status, conversation, tool calls, approvals, claims."""
    found = await hf.as_of(run, _instant(at))
    if found is None:
        raise NotFound(f"there was no run {run} at {at}")
    if desk.out.json:
        desk.out.tell(found.to_dict())
    else:
        desk.out.show(*_picture(found))


@on_runs()
async def diff(desk: Desk, hf: Holdfast, *, run: Run, earlier: Instant, later: Instant) -> None:
    """Show what happened to a run after one instant and up to another."""
    found = await hf.diff(run, _instant(earlier), _instant(later))
    if desk.out.json:
        desk.out.tell(found.to_dict())
    else:
        desk.out.show(*_changes(found))


def _instant(text: str) -> At:
    return int(text) if text.isdigit() else text


def _picture(found: Moment) -> list[RenderableType]:
    run = found.run
    head = {
        "run": run.run_id,
        "at": found.at,
        "status": run.status,
        "rev": run.rev,
        "clog": run.clog_id,
        "session": run.session_id,
        "attempt": run.attempt,
        "error": run.last_error,
        "output": run.output,
    }
    claims = [(each.owner_id, each.claim_id, each.lease_until) for each in found.claims]
    turns = [(turn.created_at, turn.kind, _line(turn.content)) for turn in found.conversation]
    parts = [
        table(("worker", "claim", "lease until"), claims, title="\nClaims") if claims else None,
        table(("at", "who", "said"), turns, title="\nConversation") if turns else None,
        _calls(found.tool_calls),
        _approvals(found.approvals),
    ]
    return [pairs(head), *(part for part in parts if part is not None)]


def _changes(found: Difference) -> list[RenderableType]:
    fields = [(name, then, now) for name, (then, now) in found.run.items()]
    turns = [(turn.created_at, turn.kind, _line(turn.content)) for turn in found.conversation]
    entries = [(entry.rev, entry.at, entry.kind, entry.event) for entry in found.entries]
    parts = [
        table(("field", "then", "now"), fields) if fields else "nothing changed",
        table(("at", "who", "said"), turns, title="\nConversation") if turns else None,
        _calls(found.tool_calls),
        _approvals(found.approvals),
        table(("rev", "at", "entry", "event"), entries, title="\nEntries") if entries else None,
    ]
    return [part for part in parts if part is not None]


def _calls(calls: tuple[PastCall, ...]) -> RenderableType | None:
    rows = [
        (
            *(each.request.tool_name, each.request.status, each.request.started_at),
            *((each.done.latency_ms, each.done.error_kind) if each.done else (None, None)),
        )
        for each in calls
    ]
    return table(("tool", "status", "started", "ms", "error"), rows, title="\nTool calls") if rows else None


def _approvals(approvals: tuple[PastApproval, ...]) -> RenderableType | None:
    rows = [(each.step, each.kind, each.asked_at, each.action or "open", each.actor) for each in approvals]
    return table(("step", "kind", "asked", "answer", "by"), rows, title="\nApprovals") if rows else None


def _line(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= LINE_LENGTH else f"{flat[: LINE_LENGTH - 1]}…"
