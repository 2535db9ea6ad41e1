"""What deciders answer with, and the few judgements that all of them share."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec

from holdfast.errors import InvalidValue
from holdfast.moments import to_us
from holdfast.protocol import facts
from holdfast.protocol.commands import ClaimCommand, Settle
from holdfast.protocol.facts import ROOT, Fact
from holdfast.protocol.flows import joined
from holdfast.protocol.judging import judge_fence
from holdfast.protocol.outcomes import Wait
from holdfast.protocol.state import RunState

DURATION_MAX_US = 1 << 56
ERROR_LENGTH_MAX = 2_000


class Handoff(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What this commit means for another run, delivered there as a command of its own.

    `fact` is the index of the fact among the decided ones that holds the details.
    """

    target_run_id: str
    kind: str
    fact: int


class Decision(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Facts to commit; or a refusal with its reason; or a repeat of what `rev` already says."""

    facts: tuple[Fact, ...] = ()
    handoffs: tuple[Handoff, ...] = ()
    refusal: str | None = None
    repeat_rev: int | None = None


def refuse(state: RunState, reason: str, kind: str, command: Any) -> Decision:
    claim_id = getattr(command, "claim_id", "")
    if not state.exists or (reason, claim_id) in state.anomalies:
        return Decision(refusal=reason)
    step = getattr(command, "step", None) or ""
    runnable_key = getattr(command, "runnable_key", ROOT)
    anomaly = facts.Anomaly(reason=reason, entry_kind=kind, runnable_key=runnable_key, claim_id=claim_id, step=step)
    return Decision(facts=(anomaly,), refusal=reason)


def lost_fence(state: RunState, command: ClaimCommand, now: int) -> str | None:
    if not state.exists:
        return "stale_claim"
    if state.terminal:
        return "terminal_run"
    return judge_fence(state, command.runnable_key, command.claim_id, command.claim_token_hash, now)


def end(state: RunState, before: list[Fact], terminal: facts.RunTerminal) -> Decision:
    """The last entry, an `error` event before a failing one, and word to the parent and the open children."""
    decided = list(before)
    if terminal.status == "failed":
        data = {"message": terminal.error or "", "kind": terminal.error_kind}
        decided.append(facts.Event(type="error", data=data))
    decided.append(terminal)
    last = len(decided) - 1
    handoffs: list[Handoff] = []
    if state.parent_run_id is not None:
        handoffs.append(Handoff(target_run_id=state.parent_run_id, kind="child_finished", fact=last))
    if terminal.status == "cancelled":
        handoffs += [
            Handoff(target_run_id=child.child_run_id, kind="cancel", fact=last)
            for child in state.open_children()
            if child.on_cancel == "cancel"
        ]
    return Decision(facts=tuple(decided), handoffs=tuple(handoffs))


def claimed_rev(state: RunState, claim_id: str) -> int:
    """Where the tick's own entries begin. A slice that does not show the tick has nothing of it to drop."""
    tick = state.ticks.get(claim_id)
    return tick.claimed_rev if tick else state.rev


def kept(state: RunState, tick_id: str, more: list[list[int]] | None = None) -> list[list[int]]:
    """The ranges of the tick's events that stay: those of its finished steps, and what its holder names."""
    tick = state.ticks.get(tick_id)
    return [list(each) for each in joined([*(tick.kept if tick else ()), *(more or ())])]


def capped(text: str) -> str:
    return text if len(text) <= ERROR_LENGTH_MAX else text[: ERROR_LENGTH_MAX - 1] + "…"


def microseconds(duration: float | timedelta) -> int:
    seconds = duration.total_seconds() if isinstance(duration, timedelta) else duration
    if not 0 <= seconds * 1e6 <= DURATION_MAX_US:
        raise InvalidValue(f"a wait of {seconds} seconds cannot be kept; use 0 up to {DURATION_MAX_US // 10**6}")
    return round(seconds * 1e6)


def unsay(state: RunState, command: Settle) -> tuple[Fact, ...]:
    """A tick that spoke since it was claimed is marked: its words must not stand beside those of the next try."""
    since = claimed_rev(state, command.claim_id)
    if since == state.rev and not command.events:
        return ()
    dropped = facts.TickAbandoned(
        tick_id=command.claim_id,
        from_seq=since,
        reason="retry",
        runnable_key=command.runnable_key,
        keep=kept(state, command.claim_id, command.keep),
    )
    return (dropped,)


def sleep(wait: Wait) -> dict[str, Any]:
    """How long a tick that ended so rests, in the words of its fact."""
    if wait.until is not None:
        return {"until_us": max(to_us(wait.until), 0)}
    return {} if wait.seconds is None else {"delay_us": microseconds(wait.seconds)}
