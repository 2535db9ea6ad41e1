"""`decide`: what a command means for a run, as facts. Pure, and blind to everything but the state it is given.

`now` is the database's clock when the state was read; it is never later than the instant of the commit, so a lease
that has ended at `now` has ended. A lease that still holds at `now` is judged again by the statement that writes.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, assert_never

import msgspec
from msgspec.structs import replace

from holdfast.errors import InvalidValue
from holdfast.moments import to_us
from holdfast.protocol import commands, facts
from holdfast.protocol.backoff import Backoff
from holdfast.protocol.commands import ClaimCommand, Command
from holdfast.protocol.evolve import ACTIONS, judge_claim, judge_fence, judge_repeat
from holdfast.protocol.facts import ROOT, Fact
from holdfast.protocol.outcomes import UNSET, Continue, Done, Fail, Ok, Outcome, Retry, Wait
from holdfast.protocol.state import RunState
from holdfast.protocol.values import digest, fingerprint

DURATION_MAX_US = 1 << 56
ERROR_LENGTH_MAX = 2_000


class Handoff(msgspec.Struct, frozen=True, kw_only=True):
    """What this commit means for another run, delivered there as a command of its own.

    `fact` is the index of the fact among the decided ones that holds the details.
    """

    target_run_id: str
    kind: str
    fact: int


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """Facts to commit; or a refusal with its reason; or a repeat of what `rev` already says."""

    facts: tuple[Fact, ...] = ()
    handoffs: tuple[Handoff, ...] = ()
    refusal: str | None = None
    repeat_rev: int | None = None


def decide(state: RunState, command: Command, now: int) -> Decision:
    """What the command does to the run. A refusal leaves one anomaly per (reason, claim) and changes nothing else."""
    if command.key is not None and command.key in state.keys:
        return _repeat_key(state, command)
    return _DECIDERS[type(command)](state, command, now)


def outcome_digest(outcome: Outcome) -> str:
    """Two outcomes are the same result exactly if this is equal."""
    return fingerprint([type(outcome).__name__, _plain(outcome)])


def _plain(outcome: Outcome) -> Any:
    return msgspec.to_builtins(outcome, enc_hook=str)


def _repeat_key(state: RunState, command: Command) -> Decision:
    assert command.key is not None
    use = state.keys[command.key]
    if use.body_digest == command.key_digest:
        return Decision(repeat_rev=use.rev)
    return Decision(refusal="key_reused")


def _refuse(state: RunState, reason: str, kind: str, command: Any) -> Decision:
    claim_id = getattr(command, "claim_id", "")
    if not state.exists or (reason, claim_id) in state.anomalies:
        return Decision(refusal=reason)
    step = getattr(command, "step", None) or ""
    runnable_key = getattr(command, "runnable_key", ROOT)
    anomaly = facts.Anomaly(reason=reason, entry_kind=kind, runnable_key=runnable_key, claim_id=claim_id, step=step)
    return Decision(facts=(anomaly,), refusal=reason)


def _fence(state: RunState, command: ClaimCommand, now: int) -> str | None:
    if not state.exists:
        return "stale_claim"
    if state.terminal:
        return "terminal_run"
    return judge_fence(state, command.runnable_key, command.claim_id, command.claim_token_hash, now)


def _create(state: RunState, command: commands.Create, now: int) -> Decision:
    if not state.exists:
        # A thread without a run: the run was deleted, and an id is never used twice.
        return Decision(refusal="id_reused") if state.created_digest else Decision(facts=(command.fact,))
    same = state.created_digest == digest(command.fact.kind, facts.encode(command.fact)).hex()
    return Decision(repeat_rev=1) if same else Decision(refusal="id_reused")


def _claim(state: RunState, command: commands.Claim, now: int) -> Decision:
    """Take over: close the tick that lost its lease, then claim — or end a run that must not be tried again."""
    if state.terminal:
        return Decision(refusal="terminal_run")
    refusal = judge_claim(state, command.runnable_key, command.claim_id, command.claim_token_hash, now)
    if refusal:
        return Decision(refusal=refusal)
    work = state.work[command.runnable_key]
    decided: list[Fact] = []
    if work.claim:
        from_seq = _claimed_rev(state, work.claim.claim_id)
        if work.claim.claim_id == command.claim_id:
            return Decision(repeat_rev=from_seq)
        decided.append(
            facts.TickAbandoned(tick_id=work.claim.claim_id, from_seq=from_seq, reason="expired", runnable_key=work.key)
        )
    if state.cancel_requested_at is not None:
        return _end(state, decided, facts.RunTerminal(status="cancelled", error_kind="cancelled"))
    if work.deliveries >= state.max_deliveries or (work.claim and not state.resumable):
        lost = f"the worker was lost {work.deliveries} times while working on this input"
        return _end(state, decided, facts.RunTerminal(status="failed", error=lost, error_kind="worker_lost"))
    claimed = facts.AttemptClaimed(
        runnable_key=work.key,
        claim_id=command.claim_id,
        claim_token_hash=command.claim_token_hash,
        owner_id=command.owner_id,
        lease_us=command.lease_us,
        attempt=work.attempt,
    )
    return Decision(facts=(*decided, claimed))


def _heartbeat(state: RunState, command: commands.Heartbeat, now: int) -> Decision:
    refusal = _fence(state, command, now)
    if refusal:
        return _refuse(state, refusal, "attempt_heartbeat", command)
    beat = facts.AttemptHeartbeat(
        runnable_key=command.runnable_key,
        claim_id=command.claim_id,
        claim_token_hash=command.claim_token_hash,
        lease_us=command.lease_us,
    )
    return Decision(facts=(beat,))


def _settle(state: RunState, command: commands.Settle, now: int) -> Decision:
    result_digest = outcome_digest(command.outcome)
    refusal = _fence(state, command, now)
    if refusal:
        known = judge_repeat(state, command.claim_id, result_digest)
        if known == "repeat":
            return Decision(repeat_rev=state.ticks[command.claim_id].settled_rev)
        return _refuse(state, known or refusal, "tick_settled", command)
    if state.cancel_requested_at is not None:
        return _end(state, [], _terminal(command, "cancelled", result_digest, error_kind="cancelled"))
    if command.runnable_key != ROOT:
        return _settle_step(state, command, result_digest)
    return _apply_outcome(state, command, command.outcome, result_digest)


def _apply_outcome(state: RunState, command: commands.Settle, outcome: Outcome, result_digest: str) -> Decision:
    match outcome:
        case Ok() if state.mode == "single":
            return _end(state, [], _terminal(command, "done", result_digest, outcome="ok"))
        case Ok():
            return Decision(facts=(_settled(command, "ok", result_digest),))
        case Done(output=output):
            return _end(state, [], _terminal(command, "done", result_digest, outcome="done", output=output))
        case Continue(input=given):
            has_input = given is not UNSET
            settled = _settled(
                command, "continue", result_digest, has_input=has_input, input=given if has_input else None
            )
            return Decision(facts=(settled,))
        case Wait():
            return Decision(facts=(_settled(command, "wait", result_digest, **_sleep(outcome)),))
        case Retry():
            return _retry(state, command, outcome, result_digest)
        case Fail(error=error, kind=kind):
            terminal = _terminal(
                command, "failed", result_digest, outcome="failed", error=_capped(error), error_kind=kind
            )
            return _end(state, [], terminal)
        case _:
            assert_never(outcome)


def _retry(state: RunState, command: commands.Settle, outcome: Retry, result_digest: str) -> Decision:
    attempt = state.attempt + 1
    error = _capped(outcome.error)
    if attempt >= state.max_attempts:
        terminal = _terminal(command, "failed", result_digest, outcome="retry", error=error, error_kind=outcome.kind)
        return _end(state, [], terminal)
    delay_us = _retry_delay_us(state, outcome, attempt)
    settled = _settled(command, "retry", result_digest, delay_us=delay_us, error=error, error_kind=outcome.kind)
    return Decision(facts=(settled, *_unsay(state, command)))


def _retry_delay_us(state: RunState, outcome: Retry, attempt: int) -> int:
    if outcome.after is not None:
        return _microseconds(outcome.after)
    return Backoff(state.backoff_us, state.backoff_max_us).delay_us(attempt)


def _unsay(state: RunState, command: commands.Settle) -> tuple[Fact, ...]:
    """A tick that spoke since it was claimed is marked: its words must not stand beside those of the next try."""
    claimed_rev = _claimed_rev(state, command.claim_id)
    if claimed_rev == state.rev:
        return ()
    dropped = facts.TickAbandoned(
        tick_id=command.claim_id,
        from_seq=claimed_rev,
        reason="retry",
        runnable_key=command.runnable_key,
        keep=command.keep,
    )
    return (dropped,)


def _claimed_rev(state: RunState, claim_id: str) -> int:
    """Where the tick's own entries begin. A slice that does not show the tick has nothing of it to drop."""
    tick = state.ticks.get(claim_id)
    return tick.claimed_rev if tick else state.rev


def _settle_step(state: RunState, command: commands.Settle, result_digest: str) -> Decision:
    """A workflow step has results and failures; what they mean for the run is the planner's business."""
    outcome = command.outcome
    fence: dict[str, Any] = {
        "runnable_key": command.runnable_key,
        "claim_id": command.claim_id,
        "claim_token_hash": command.claim_token_hash,
        "result_digest": result_digest,
        "repaired": command.repaired,
    }
    if isinstance(outcome, Retry | Fail):
        attempt = state.work[command.runnable_key].attempt + 1
        failed = facts.AttemptFailed(**fence, error=_capped(outcome.error), error_kind=outcome.kind)
        if isinstance(outcome, Fail) or attempt >= state.max_attempts:
            return Decision(facts=(failed,))
        again = replace(failed, retry_delay_us=_retry_delay_us(state, outcome, attempt))
        return Decision(facts=(again, *_unsay(state, command)))
    result = outcome.output if isinstance(outcome, Done) else None
    return Decision(facts=(facts.AttemptCompleted(**fence, result=result),))


def _end(state: RunState, before: list[Fact], terminal: facts.RunTerminal) -> Decision:
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
            Handoff(target_run_id=child.child_run_id, kind="cancel", fact=last) for child in state.open_children()
        ]
    return Decision(facts=tuple(decided), handoffs=tuple(handoffs))


def _release(state: RunState, command: commands.Release, now: int) -> Decision:
    tick = state.ticks.get(command.claim_id)
    if tick and tick.outcome == "released":
        return Decision(repeat_rev=tick.settled_rev)
    refusal = _fence(state, command, now)
    if refusal:
        return _refuse(state, refusal, "tick_abandoned", command)
    released = facts.TickAbandoned(
        tick_id=command.claim_id,
        from_seq=_claimed_rev(state, command.claim_id),
        reason="released",
        runnable_key=command.runnable_key,
        claim_token_hash=command.claim_token_hash,
        keep=command.keep,
    )
    if state.cancel_requested_at is not None and len(state.live_claims(now)) == 1:
        # The last holder lets go of a run that someone wants to stop: nobody else may begin on it.
        return _end(state, [released], facts.RunTerminal(status="cancelled", error_kind="cancelled"))
    return Decision(facts=(released,))


def _emit(state: RunState, command: commands.Emit, now: int) -> Decision:
    refusal = _fence(state, command, now)
    if refusal:
        return _refuse(state, refusal, "event", command)
    attempt = state.work[command.runnable_key].attempt
    decided = tuple(
        facts.Event(
            type=kind,
            data=data,
            tick_id=command.claim_id,
            runnable_key=command.runnable_key,
            attempt=attempt,
            repaired=command.repaired,
        )
        for kind, data in command.events
    )
    return Decision(facts=decided)


def _signal(state: RunState, command: commands.Signal, now: int) -> Decision:
    if not state.exists:
        return Decision(refusal="not_found")
    if command.signal_id in state.signal_ids:
        return Decision(repeat_rev=state.signal_ids[command.signal_id])
    received = facts.SignalReceived(
        signal_id=command.signal_id,
        name=command.name,
        has_input=command.has_input,
        input=command.input,
        key=command.key,
        key_digest=command.key_digest,
        interrupt=command.interrupt,
        repaired=command.repaired,
    )
    return Decision(facts=(received,), refusal="terminal" if state.terminal else None)


def _cancel(state: RunState, command: commands.Cancel, now: int) -> Decision:
    """The flag always; the end at once if nobody holds a live claim, or if forced."""
    if not state.exists:
        return Decision(refusal="not_found")
    if state.terminal:
        return Decision(repeat_rev=state.rev)
    decided: list[Fact] = []
    if state.cancel_requested_at is None:
        requested = facts.CancelRequested(
            reason=command.reason, actor=command.actor, force=command.force, repaired=command.repaired
        )
        decided.append(requested)
    if command.force or not state.live_claims(now):
        return _end(state, decided, facts.RunTerminal(status="cancelled", error_kind="cancelled"))
    return Decision(facts=tuple(decided), repeat_rev=None if decided else state.rev)


def _pause(state: RunState, command: commands.Pause, now: int) -> Decision:
    if not state.exists:
        return Decision(refusal="not_found")
    if state.terminal:
        return _refuse(state, "terminal_run", "manual_step_paused", command)
    if state.boundary:
        if (state.boundary.step, state.boundary.kind) == (command.step, command.boundary):
            return Decision(repeat_rev=state.boundary.rev)
        return _refuse(state, "active_manual_step", "manual_step_paused", command)
    paused = facts.ManualStepPaused(
        step=command.step,
        boundary=command.boundary,
        metadata=command.metadata,
        expires_us=command.expires_us,
        repaired=command.repaired,
    )
    return Decision(facts=(paused,))


def _resolve(state: RunState, command: commands.Resolve, now: int) -> Decision:
    boundary = state.boundary
    if not state.exists:
        return Decision(refusal="not_found")
    if state.terminal:
        return _refuse(state, "terminal_run", "manual_step_resolved", command)
    fits = boundary and command.step in (None, boundary.step) and command.action in ACTIONS[boundary.kind]
    named = command.action == "resume" or bool(command.actor)
    if boundary is None or not fits or not named:
        return _refuse(state, "stale_manual_resolution", "manual_step_resolved", command)
    resolved = facts.ManualStepResolved(
        step=boundary.step,
        action=command.action,
        actor=command.actor,
        comment=command.comment,
        edited=command.edited,
        key=command.key,
        key_digest=command.key_digest,
        repaired=command.repaired,
    )
    if command.action != "reject":
        return Decision(facts=(resolved,))
    error = command.comment or f"{boundary.step} was rejected by {command.actor}"
    return _end(
        state,
        [resolved],
        facts.RunTerminal(status="failed", error=_capped(error), error_kind="rejected"),
    )


def _start_child(state: RunState, command: commands.StartChild, now: int) -> Decision:
    refusal = _fence(state, command, now)
    if refusal:
        return _refuse(state, refusal, "child_run_started", command)
    logical = (command.step, command.clog_id, command.child_key)
    known = state.children.get(command.child_run_id)
    if known and (known.step, known.clog_id, known.child_key) == logical:
        return Decision(repeat_rev=known.started_rev)
    if known or state.child_ids.get(logical, command.child_run_id) != command.child_run_id:
        return _refuse(state, "conflicting_child_run", "child_run_started", command)
    started = facts.ChildRunStarted(
        child_run_id=command.child_run_id,
        clog_id=command.clog_id,
        child_key=command.child_key,
        step=command.step,
        runnable_key=command.runnable_key,
        attempt=state.work[command.runnable_key].attempt,
        start=command.start,
        metadata=command.metadata,
        repaired=command.repaired,
    )
    handoff = Handoff(target_run_id=command.child_run_id, kind="start", fact=0)
    return Decision(facts=(started,), handoffs=(handoff,))


def _finish_child(state: RunState, command: commands.FinishChild, now: int) -> Decision:
    if not state.exists or state.terminal:
        return Decision(repeat_rev=state.rev)
    child = state.children.get(command.child_run_id)
    if child is None:
        return _refuse(state, "conflicting_child_run", "child_run_finished", command)
    if child.status is not None:
        return Decision(repeat_rev=child.finished_rev)
    finished = facts.ChildRunFinished(
        child_run_id=command.child_run_id,
        status=command.status,
        output=command.output,
        error=command.error,
    )
    return Decision(facts=(finished,))


def _settled(command: commands.Settle, outcome: str, result_digest: str, **fields: Any) -> facts.TickSettled:
    return facts.TickSettled(
        claim_id=command.claim_id,
        claim_token_hash=command.claim_token_hash,
        outcome=outcome,
        result_digest=result_digest,
        repaired=command.repaired,
        **fields,
    )


def _terminal(command: commands.Settle, status: str, result_digest: str, **fields: Any) -> facts.RunTerminal:
    return facts.RunTerminal(
        status=status,
        runnable_key=command.runnable_key,
        claim_id=command.claim_id,
        claim_token_hash=command.claim_token_hash,
        result_digest=result_digest,
        repaired=command.repaired,
        **fields,
    )


def _sleep(wait: Wait) -> dict[str, Any]:
    if wait.until is not None:
        return {"until_us": max(to_us(wait.until), 0)}
    return {} if wait.seconds is None else {"delay_us": _microseconds(wait.seconds)}


def _microseconds(duration: float | timedelta) -> int:
    seconds = duration.total_seconds() if isinstance(duration, timedelta) else duration
    if not 0 <= seconds * 1e6 <= DURATION_MAX_US:
        raise InvalidValue(f"a wait of {seconds} seconds cannot be kept; use 0 up to {DURATION_MAX_US // 10**6}")
    return round(seconds * 1e6)


def _capped(text: str) -> str:
    return text if len(text) <= ERROR_LENGTH_MAX else text[: ERROR_LENGTH_MAX - 1] + "…"


_DECIDERS: dict[type[Command], Callable[[RunState, Any, int], Decision]] = {
    commands.Create: _create,
    commands.Claim: _claim,
    commands.Heartbeat: _heartbeat,
    commands.Settle: _settle,
    commands.Release: _release,
    commands.Emit: _emit,
    commands.Signal: _signal,
    commands.Cancel: _cancel,
    commands.Pause: _pause,
    commands.Resolve: _resolve,
    commands.StartChild: _start_child,
    commands.FinishChild: _finish_child,
}
