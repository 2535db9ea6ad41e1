"""`decide`: what a command means for a run, as facts. Pure, and blind to everything but the state it is given.

`now` is the database's clock when the state was read; it is never later than the instant of the commit, so a lease
that has ended at `now` has ended. A lease that still holds at `now` is judged again by the statement that writes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.protocol import commands, facts, tools
from holdfast.protocol.commands import Command
from holdfast.protocol.decisions import Decision, Handoff, capped, claimed_rev, end, kept, lost_fence, refuse
from holdfast.protocol.evolve import ACTIONS, BEGUN
from holdfast.protocol.facts import ROOT, Fact
from holdfast.protocol.flows import RECEIVE, UNANSWERED, joined, oldest_signal
from holdfast.protocol.judging import judge_claim
from holdfast.protocol.lanes import its_turn
from holdfast.protocol.planning import is_left_half_done, look_again
from holdfast.protocol.runnables import is_withdrawn
from holdfast.protocol.settle import STORAGE_CONFLICT, deletions, enqueued, last_words, settle, stage
from holdfast.protocol.state import Boundary, RunState, Work, counted
from holdfast.protocol.storage import facts_of, has_changed
from holdfast.protocol.values import digest

WRITTEN_ALREADY = "STORAGE_WRITE_ALREADY_CALLED"
REV_MOVED = "rev_moved"


def decide(state: RunState, command: Command, now: int) -> Decision:
    """What the command does to the run. A refusal leaves one anomaly per (reason, claim) and changes nothing else."""
    if command.key is not None and command.key in state.keys:
        return _repeat_key(state, command)
    return _DECIDERS[type(command)](state, command, now)


def _repeat_key(state: RunState, command: Command) -> Decision:
    assert command.key is not None
    use = state.keys[command.key]
    if use.body_digest == command.key_digest:
        return Decision(repeat_rev=use.rev)
    return Decision(refusal="key_reused")


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
        from_seq = claimed_rev(state, work.claim.claim_id)
        if work.claim.claim_id == command.claim_id:
            return Decision(repeat_rev=from_seq)
        decided.append(
            facts.TickAbandoned(
                tick_id=work.claim.claim_id,
                from_seq=from_seq,
                reason="expired",
                runnable_key=work.key,
                keep=kept(state, work.claim.claim_id),
            )
        )
    if state.cancel_requested_at is not None:
        return end(state, decided, facts.RunTerminal(status="cancelled", error_kind="cancelled"))
    if state.undoing and is_withdrawn(state, work.key):
        return Decision(facts=(*decided, *look_again(state)), refusal="terminal_attempt")
    if work.deliveries >= state.max_deliveries or (work.claim and not state.resumable):
        lost = f"the worker was lost {work.deliveries} times while working on this input"
        if work.key != ROOT and state.definition is not None:
            # The step failed, not the run: whether that is routed or undone is for the planner to say.
            return Decision(facts=(*decided, *_lost_step(work, command, lost), *look_again(state)))
        return end(state, decided, facts.RunTerminal(status="failed", error=lost, error_kind="worker_lost"))
    claimed = facts.AttemptClaimed(
        runnable_key=work.key,
        claim_id=command.claim_id,
        claim_token_hash=command.claim_token_hash,
        owner_id=command.owner_id,
        lease_us=command.lease_us,
        attempt=work.attempt,
    )
    return Decision(facts=(*decided, claimed))


def _lost_step(work: Work, command: commands.Claim, error: str) -> tuple[Fact, ...]:
    """A claim that ends as it begins: nobody is called, and the attempt has its failure."""
    fence: dict[str, Any] = {
        "runnable_key": work.key,
        "claim_id": command.claim_id,
        "claim_token_hash": command.claim_token_hash,
    }
    claimed = facts.AttemptClaimed(**fence, owner_id=command.owner_id, lease_us=command.lease_us, attempt=work.attempt)
    failed = facts.AttemptFailed(**fence, error=error, error_kind="worker_lost", result_digest="worker_lost")
    return claimed, failed


def _heartbeat(state: RunState, command: commands.Heartbeat, now: int) -> Decision:
    refusal = lost_fence(state, command, now)
    if refusal:
        return refuse(state, refusal, "attempt_heartbeat", command)
    beat = facts.AttemptHeartbeat(
        runnable_key=command.runnable_key,
        claim_id=command.claim_id,
        claim_token_hash=command.claim_token_hash,
        lease_us=command.lease_us,
    )
    return Decision(facts=(beat,))


def _release(state: RunState, command: commands.Release, now: int) -> Decision:
    tick = state.ticks.get(command.claim_id)
    if tick and tick.outcome == "released":
        return Decision(repeat_rev=tick.settled_rev)
    refusal = lost_fence(state, command, now)
    if refusal:
        return refuse(state, refusal, "tick_abandoned", command)
    released = facts.TickAbandoned(
        tick_id=command.claim_id,
        from_seq=claimed_rev(state, command.claim_id),
        reason="released",
        runnable_key=command.runnable_key,
        claim_token_hash=command.claim_token_hash,
        keep=kept(state, command.claim_id, command.keep),
    )
    if state.cancel_requested_at is not None and len(state.live_claims(now)) == 1:
        # The last holder lets go of a run that someone wants to stop: nobody else may begin on it.
        return end(state, [released], facts.RunTerminal(status="cancelled", error_kind="cancelled"))
    return Decision(facts=(released, *(look_again(state) if state.undoing else ())))


def _emit(state: RunState, command: commands.Emit, now: int) -> Decision:
    refusal = lost_fence(state, command, now)
    if refusal:
        return refuse(state, refusal, "event", command)
    if command.expected_rev not in (None, state.rev):
        # No anomaly: whoever compares is prepared for the difference.
        return Decision(refusal=REV_MOVED)
    return Decision(facts=tuple(last_words(state, command)))


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
        return end(state, decided, facts.RunTerminal(status="cancelled", error_kind="cancelled"))
    return Decision(facts=tuple(decided), repeat_rev=None if decided else state.rev)


def _pause(state: RunState, command: commands.Pause, now: int) -> Decision:
    if not state.exists:
        return Decision(refusal="not_found")
    if state.terminal:
        return refuse(state, "terminal_run", "manual_step_paused", command)
    if state.boundary:
        if (state.boundary.step, state.boundary.kind) == (command.step, command.boundary):
            return Decision(repeat_rev=state.boundary.rev)
        return refuse(state, "active_manual_step", "manual_step_paused", command)
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
        return refuse(state, "terminal_run", "manual_step_resolved", command)
    named = command.action == "resume" or bool(command.actor)
    if boundary is None or not named or not _answers(command, boundary, now):
        return refuse(state, "stale_manual_resolution", "manual_step_resolved", command)
    resolved = facts.ManualStepResolved(
        step=boundary.step,
        action=command.action,
        actor=command.actor,
        comment=command.comment,
        edited=command.edited,
        shown_sha=boundary.shown if boundary.kind == "approval" else None,
        key=command.key,
        key_digest=command.key_digest,
        repaired=command.repaired,
    )
    if command.action != "reject" or boundary.flow:
        # A flow hears the answer, whatever it is.
        return Decision(facts=(resolved,))
    error = command.comment or f"{boundary.step} was rejected by {command.actor}"
    return end(
        state,
        [resolved],
        facts.RunTerminal(status="failed", error=capped(error), error_kind="rejected"),
    )


def _answers(command: commands.Resolve, boundary: Boundary, now: int) -> bool:
    """Is this an answer to the open question: to its step, of its kind, by someone who saw it, and in time?"""
    in_time = boundary.expires_at is None or now < counted(boundary.expires_at, now)
    saw_it = command.seen_rev is None or command.seen_rev >= boundary.rev
    return command.step in (None, boundary.step) and command.action in ACTIONS[boundary.kind] and saw_it and in_time


def _start_child(state: RunState, command: commands.StartChild, now: int) -> Decision:
    refusal = lost_fence(state, command, now)
    if refusal:
        return refuse(state, refusal, "child_run_started", command)
    logical = (command.step, command.clog_id, command.child_key)
    known = state.children.get(command.child_run_id)
    if known and (known.step, known.clog_id, known.child_key) == logical:
        return Decision(repeat_rev=known.started_rev)
    if known or state.child_ids.get(logical, command.child_run_id) != command.child_run_id:
        return refuse(state, "conflicting_child_run", "child_run_started", command)
    started = facts.ChildRunStarted(
        child_run_id=command.child_run_id,
        clog_id=command.clog_id,
        child_key=command.child_key,
        step=command.step,
        runnable_key=command.runnable_key,
        attempt=state.work[command.runnable_key].attempt,
        start=command.start,
        metadata=command.metadata,
        on_cancel=command.on_cancel,
        repaired=command.repaired,
    )
    handoff = Handoff(target_run_id=command.child_run_id, kind="start", fact=0)
    return Decision(facts=(started,), handoffs=(handoff,))


def _finish_child(state: RunState, command: commands.FinishChild, now: int) -> Decision:
    if not state.exists or state.terminal:
        return Decision(repeat_rev=state.rev)
    child = state.children.get(command.child_run_id)
    if child is None:
        return refuse(state, "conflicting_child_run", "child_run_finished", command)
    if child.status is not None:
        return Decision(repeat_rev=child.finished_rev)
    finished = facts.ChildRunFinished(
        child_run_id=command.child_run_id,
        status=command.status,
        output=command.output,
        error=command.error,
    )
    return Decision(facts=(finished,))


def _record_step(state: RunState, command: commands.RecordStep, now: int) -> Decision:
    refusal = lost_fence(state, command, now)
    if refusal:
        return refuse(state, refusal, "step_recorded", command)
    known = state.steps.get((command.name, command.occurrence))
    if known and known.status not in UNANSWERED:
        return Decision(repeat_rev=known.rev)
    before = last_words(state, command)
    said = list(command.said)
    if before:
        said.append((state.rev + 1, state.rev + len(before)))
    starts = stage(state, command, command.staged, before)
    recorded = facts.StepRecorded(
        runnable_key=command.runnable_key,
        claim_id=command.claim_id,
        claim_token_hash=command.claim_token_hash,
        name=command.name,
        occurrence=command.occurrence,
        status=command.status,
        result=command.result,
        error=None if command.error is None else capped(command.error),
        error_kind=command.error_kind,
        attempt=command.attempt,
        said=[list(each) for each in joined(said)],
        irreversible=command.irreversible,
        repaired=command.repaired,
    )
    return Decision(facts=(*before, recorded), handoffs=tuple(starts))


def _take_signal(state: RunState, command: commands.TakeSignal, now: int) -> Decision:
    refusal = lost_fence(state, command, now)
    if refusal:
        return refuse(state, refusal, "signal_taken", command)
    step = f"{RECEIVE}{command.name or ''}"
    known = state.steps.get((step, command.occurrence))
    if known:
        return Decision(repeat_rev=known.rev)
    seq = oldest_signal(state, command.name)
    if seq is None:
        return Decision(refusal="no_signal")
    taken = facts.SignalTaken(
        runnable_key=command.runnable_key,
        claim_id=command.claim_id,
        claim_token_hash=command.claim_token_hash,
        seq=seq,
        step=step,
        occurrence=command.occurrence,
    )
    return Decision(facts=(taken,))


def _open_boundary(state: RunState, command: commands.OpenBoundary, now: int) -> Decision:
    """One question at a time: another that is due waits until this one is answered."""
    refusal = lost_fence(state, command, now)
    if refusal:
        return refuse(state, refusal, "manual_step_paused", command)
    if state.undoing:
        # Nobody is asked about a run that has failed.
        return Decision(refusal="terminal_attempt")
    if state.boundary:
        same = (state.boundary.step, state.boundary.occurrence) == (command.step, command.occurrence)
        return Decision(repeat_rev=state.boundary.rev) if same else Decision(refusal="active_manual_step")
    paused = facts.ManualStepPaused(
        step=command.step,
        boundary=command.boundary,
        metadata=command.metadata,
        expires_us=command.expires_us,
        occurrence=command.occurrence,
        flow=True,
        repaired=command.repaired,
    )
    return Decision(facts=(paused,))


def _expire_boundary(state: RunState, command: commands.ExpireBoundary, now: int) -> Decision:
    """Nobody answered: a flow hears that, a pause goes on, and any other approval counts as rejected."""
    boundary = state.boundary
    if state.terminal or boundary is None or boundary.expires_at is None or now < counted(boundary.expires_at, now):
        return Decision(repeat_rev=state.rev)
    resolved = facts.ManualStepResolved(step=boundary.step, action="expire")
    if boundary.flow or boundary.kind == "pause":
        return Decision(facts=(resolved,))
    error = f"nobody answered {boundary.step} in time"
    return end(state, [resolved], facts.RunTerminal(status="failed", error=error, error_kind="approval_expired"))


def _begin_tick(state: RunState, command: commands.BeginTick, now: int) -> Decision:
    if not state.exists:
        return Decision(refusal="not_found")
    tick = state.ticks.get(command.tick_id)
    if tick:
        return Decision(repeat_rev=tick.claimed_rev) if tick.outcome == BEGUN else Decision(refusal="tick_active")
    if state.terminal:
        return Decision(refusal="terminal_run")
    return Decision(facts=(facts.TickBegun(tick_id=command.tick_id),))


def _speak(state: RunState, command: commands.Speak, now: int) -> Decision:
    refusal = not_begun(state, command.tick_id)
    if refusal:
        return Decision(refusal=refusal)
    said = (
        facts.Event(
            type=kind, data=data, tick_id=command.tick_id, repaired=command.repaired or place in command.repairs
        )
        for place, (kind, data) in enumerate(command.events)
    )
    return Decision(facts=tuple(said))


def not_begun(state: RunState, tick_id: str) -> str | None:
    """Why nobody may call endpoints in this tick, or None if it was begun for that."""
    if not state.exists:
        return "not_found"
    if state.terminal:
        return "terminal_run"
    tick = state.ticks.get(tick_id)
    if tick is None:
        return "not_found"
    return None if tick.outcome == BEGUN else "tick_active"


def _call_endpoint(state: RunState, command: commands.CallEndpoint, now: int) -> Decision:
    """The call is over: its writes count if the rows are still as it read them, what it used up counts always."""
    refusal = not_begun(state, command.tick_id)
    if refusal:
        return Decision(refusal=refusal)
    written = command.staged.storage
    if any(f"w:{part.clog_id}" in state.ticks[command.tick_id].spent for part in written):
        return Decision(refusal=WRITTEN_ALREADY)
    changed = has_changed(state, command.tick_id, written)
    called = facts.EndpointCalled(
        tick_id=command.tick_id,
        clog_id=command.clog_id,
        method=command.method,
        spent=list(command.spent),
        error=STORAGE_CONFLICT if changed else command.error,
    )
    if changed:
        return Decision(facts=(called,), refusal=STORAGE_CONFLICT)
    decided = (*facts_of(command.tick_id, ROOT, written), *enqueued(command.tick_id, command.staged.outbox), called)
    return Decision(facts=decided, handoffs=deletions(state, command.staged.deletes, last=len(decided) - 1))


def _enter_lane(state: RunState, command: commands.EnterLane, now: int) -> Decision:
    return Decision(facts=its_turn(state), repeat_rev=state.rev)


def _note_wakeup(state: RunState, command: commands.NoteWakeup, now: int) -> Decision:
    """Told too late is told in vain: the work may be done, and a hint is never the truth."""
    if state.terminal or command.runnable_key not in state.work:
        return Decision(refusal="terminal_run" if state.terminal else "unknown_runnable_intent")
    return Decision(facts=(facts.LiveWakeupEmitted(runnable_key=command.runnable_key),))


def _note_dead_letter(state: RunState, command: commands.NoteDeadLetter, now: int) -> Decision:
    """The run hears of it and goes on; what that means is for its handlers to say."""
    if not state.exists or state.terminal:
        return Decision(refusal="terminal_run" if state.exists else "not_found")
    data = {
        "outbox_id": command.outbox_id,
        "target_space": command.target_space,
        "error": command.error,
        "error_kind": command.error_kind,
    }
    return Decision(facts=(facts.Event(type="outbox_dead", data=data),))


def _delete(state: RunState, command: commands.Delete, now: int) -> Decision:
    if not state.exists:
        return Decision(refusal="not_found")
    if state.live_claims(now) and not command.force:
        return Decision(refusal="run_active")
    deleted = facts.RunDeleted(actor=command.actor)
    if state.terminal:
        return Decision(facts=(deleted,))
    ended = end(state, [], facts.RunTerminal(status="cancelled", error_kind="cancelled"))
    return Decision(facts=(*ended.facts, deleted), handoffs=ended.handoffs)


def _recover(state: RunState, command: commands.Recover, now: int) -> Decision:
    """Missing intents first, so that nothing planned is lost; then results, in the order in which they came."""
    if not state.exists or state.terminal:
        return Decision(refusal=None if state.exists else "not_found", repeat_rev=state.rev)
    if state.definition is not None:
        # What a workflow's steps are followed by, and which of them wait for room, is for its planner to say.
        again = look_again(state) if is_left_half_done(state) else ()
        return Decision(facts=again, repeat_rev=None if again else state.rev)
    planned = [item for item in state.runnables.values() if item.scheduled_rev is None and item.status == "planned"]
    # One that was planned a moment ago is left alone: nobody has looked up its input.
    unscheduled = [item for item in planned if item.key in command.inputs]
    unapplied = [item for item in state.runnables.values() if item.status == "completed" and item.applied_rev is None]
    decided: list[Fact] = [
        facts.AttemptScheduled(
            runnable_key=item.key, step=item.step, idempotency_key=item.key, input=command.inputs[item.key]
        )
        for item in sorted(unscheduled, key=lambda item: item.planned_rev or 0)
    ]
    decided += [
        facts.RunnableApplied(runnable_key=item.key, result_digest=item.result_digest or "")
        for item in sorted(unapplied, key=lambda item: item.result_rev or 0)
    ]
    return Decision(facts=tuple(decided), repeat_rev=None if decided else state.rev)


_DECIDERS: dict[type[Command], Callable[[RunState, Any, int], Decision]] = {
    commands.Create: _create,
    commands.Claim: _claim,
    commands.Heartbeat: _heartbeat,
    commands.Settle: settle,
    commands.Release: _release,
    commands.Emit: _emit,
    commands.Signal: _signal,
    commands.Cancel: _cancel,
    commands.Pause: _pause,
    commands.Resolve: _resolve,
    commands.StartChild: _start_child,
    commands.FinishChild: _finish_child,
    commands.RecordStep: _record_step,
    commands.TakeSignal: _take_signal,
    tools.RequestTool: tools.request,
    tools.AnswerTool: tools.answer,
    commands.OpenBoundary: _open_boundary,
    commands.ExpireBoundary: _expire_boundary,
    commands.BeginTick: _begin_tick,
    commands.Speak: _speak,
    commands.CallEndpoint: _call_endpoint,
    commands.EnterLane: _enter_lane,
    commands.NoteWakeup: _note_wakeup,
    commands.NoteDeadLetter: _note_dead_letter,
    commands.Delete: _delete,
    commands.Recover: _recover,
}
