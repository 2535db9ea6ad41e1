"""`evolve`: fold one fact into a run's state.

Total and pure. A fact that cannot be accepted (stale claim, later than terminal, conflicting duplicate) changes
nothing but `anomalies`; a duplicate of an accepted fact changes nothing at all. Every rule about what a run may do
next stands here, so a refold of the journal judges exactly as the commit did.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast

from immutables import Map
from msgspec.structs import replace

from holdfast.protocol import facts, ledger, runnables
from holdfast.protocol.audit import subject
from holdfast.protocol.facts import ROOT, Fact
from holdfast.protocol.flows import APPROVAL, STATUSES, awaited, is_satisfied, record, take, wake
from holdfast.protocol.judging import close_tick, judge_claim, judge_fence, judge_repeat, judge_result, refuse
from holdfast.protocol.lanes import queue_up
from holdfast.protocol.messages import is_message
from holdfast.protocol.state import (
    NEVER,
    TERMINAL,
    Boundary,
    Child,
    Claim,
    KeyUse,
    Refusal,
    RunState,
    Signal,
    Status,
    Step,
    Tick,
    Work,
)
from holdfast.protocol.storage import fold_writes
from holdfast.protocol.values import digest, fingerprint

SETTLED_OUTCOMES = frozenset({"ok", "continue", "wait", "retry"})
BEGUN = "begun"
"""The outcome of a tick that was begun for direct calls: it is nobody's claim and never ends."""
ON_CANCEL = frozenset({"cancel", "abandon"})
ACTIONS = {"pause": frozenset({"resume", "expire"}), "approval": frozenset({"approve", "reject", "expire"})}


def evolve(state: RunState, fact: Fact, at: int) -> RunState:
    """The run after this fact, entered at this instant."""
    state = replace(state, rev=state.rev + 1, at=at)
    if not state.exists and not isinstance(fact, facts.RunCreated):
        return refuse(state, fact, "malformed_entry")
    if state.terminal and type(fact) not in _AFTER_THE_END:
        return refuse(state, fact, "terminal_run")
    return queue_up(_restatus(_HANDLERS[type(fact)](state, fact, at)), at)


def fold(state: RunState, entries: Iterable[tuple[Fact, int]]) -> RunState:
    """The run after these facts, each with its instant."""
    for fact, at in entries:
        state = evolve(state, fact, at)
    return state


def _restatus(state: RunState) -> RunState:
    status = state.status if state.terminal else _resting_status(state)
    return state if status == state.status else replace(state, status=status)


def _resting_status(state: RunState) -> Status:
    if state.boundary:
        return "paused"
    status: Status = "idle"
    for work in state.work.values():
        if work.claim:
            return "active"
        if not work.waiting:
            status = "pending"
        elif status == "idle":
            status = "waiting"
    return status


def _created(state: RunState, fact: facts.RunCreated, at: int) -> RunState:
    body_digest = digest(fact.kind, facts.encode(fact)).hex()
    if state.exists:
        return state if state.created_digest == body_digest else refuse(state, fact, "conflicting_runnable_intent")
    state = replace(
        state,
        session_id=fact.session_id,
        user_id=fact.user_id,
        clog_id=fact.clog_id,
        queue=fact.queue,
        mode=fact.mode,
        lane=fact.lane,
        priority=fact.priority,
        max_attempts=fact.max_attempts,
        backoff_us=fact.backoff_us,
        backoff_max_us=fact.backoff_max_us,
        max_deliveries=fact.max_deliveries,
        resumable=fact.resumable,
        parent_run_id=fact.parent.run_id if fact.parent else None,
        created_digest=body_digest,
        created_key=None if fact.key is None else (fact.key, fact.key_digest or ""),
        created_at=at,
        spoken=is_message(fact),
    )
    if not fact.has_input:
        return state
    visible_at = at + fact.delay_us
    state = replace(state, wake_at=visible_at if fact.delay_us else None)
    return state.with_work(Work(visible_at=visible_at, input_rev=state.rev))


def _claimed(state: RunState, fact: facts.AttemptClaimed, at: int) -> RunState:
    refusal = judge_claim(state, fact.runnable_key, fact.claim_id, fact.claim_token_hash, at)
    if refusal:
        return refuse(state, fact, refusal)
    work = state.work[fact.runnable_key]
    if work.claim:
        if work.claim.claim_id == fact.claim_id:
            return state
        state = close_tick(state, work.claim.claim_id, "abandoned")
    tick = Tick(tick_id=fact.claim_id, key=work.key, claimed_rev=state.rev, started_at=at)
    state = replace(state, ticks=state.ticks.set(tick.tick_id, tick), started_at=_first(state.started_at, at))
    if work.key == ROOT:
        state = replace(state, wake_at=None)
    claim = Claim(fact.claim_id, fact.claim_token_hash, fact.owner_id, at + fact.lease_us)
    return state.with_work(replace(work, claim=claim, waiting=False, deliveries=work.deliveries + 1))


def _heartbeat(state: RunState, fact: facts.AttemptHeartbeat, at: int) -> RunState:
    refusal = judge_fence(state, fact.runnable_key, fact.claim_id, fact.claim_token_hash, at)
    if refusal:
        return refuse(state, fact, refusal)
    work = state.work[fact.runnable_key]
    assert work.claim is not None
    return state.with_work(replace(work, claim=replace(work.claim, lease_until=at + fact.lease_us)))


def _settled(state: RunState, fact: facts.TickSettled, at: int) -> RunState:
    if fact.runnable_key != ROOT:
        return runnables.rested(state, fact, at)
    if fact.outcome not in SETTLED_OUTCOMES:
        return refuse(state, fact, "malformed_entry")
    verdict = judge_result(state, fact, at)
    if verdict:
        return state if verdict == "repeat" else refuse(state, fact, verdict)
    work = replace(state.work[ROOT], claim=None, deliveries=0)
    state = replace(close_tick(state, fact.claim_id, fact.outcome, fact.result_digest), flow=state.flow or fact.flow)
    if fact.outcome == "retry":
        return _try_again(state, work, fact, at)
    state = ledger.close(state, ROOT)
    state = replace(_consume(state, fact.claim_id), last_error=None, error_kind=None, wake_at=None)
    return _deliver_mail(_rest(state, replace(work, attempt=0), fact, at), at)


def _try_again(state: RunState, work: Work, fact: facts.TickSettled, at: int) -> RunState:
    visible_at = at + (fact.delay_us or 0)
    state = replace(state, wake_at=visible_at, last_error=fact.error, error_kind=fact.error_kind)
    return state.with_work(replace(work, attempt=work.attempt + 1, visible_at=visible_at, waiting=False))


def _rest(state: RunState, work: Work, fact: facts.TickSettled, at: int) -> RunState:
    if fact.outcome == "ok":
        return replace(state.without_work(ROOT), attempt=0, deliveries=0, input_rev=None)
    if fact.outcome == "continue":
        return state.with_work(replace(work, visible_at=at, waiting=False, input_rev=state.rev))
    visible_at = runnables.wakes_at(fact, at)
    awaits = tuple(fact.awaits)
    if is_satisfied(state, awaits):
        return state.with_work(replace(work, visible_at=at, waiting=False, input_rev=None, awaits=()))
    state = replace(state, wake_at=None if visible_at == NEVER else visible_at)
    return state.with_work(replace(work, visible_at=visible_at, waiting=True, input_rev=None, awaits=awaits))


def _consume(state: RunState, tick_id: str) -> RunState:
    """The input of the tick that just ended is spent. A signal, always the mailbox's head, remembers who took it."""
    seq = state.mailbox[0] if state.mailbox else None
    if seq is None or seq != state.input_rev:
        return state
    spent = replace(state.signals[seq], tick_id=tick_id)
    return replace(state, mailbox=state.mailbox[1:], signals=state.signals.set(seq, spent))


def _deliver_mail(state: RunState, at: int) -> RunState:
    """Bind the oldest waiting signal to the next tick, unless an input is bound already or a person is asked first."""
    root = state.work.get(ROOT)
    if state.flow or not state.mailbox or state.boundary or (root and not (root.waiting and root.claim is None)):
        return state
    return replace(state, wake_at=None).with_work(Work(visible_at=at, input_rev=state.mailbox[0]))


def _abandoned(state: RunState, fact: facts.TickAbandoned, at: int) -> RunState:
    if fact.reason == "retry":
        return state
    if fact.reason not in ("expired", "released"):
        return refuse(state, fact, "malformed_entry")
    tick = state.ticks.get(fact.tick_id)
    if tick and tick.outcome in ("abandoned", "released"):
        return state
    claim_token_hash = fact.claim_token_hash if fact.reason == "released" else None
    verdict = judge_fence(state, fact.runnable_key, fact.tick_id, claim_token_hash, at)
    if fact.reason == "released":
        return refuse(state, fact, verdict) if verdict else _release(state, fact.runnable_key, at)
    if verdict != "expired_claim":
        return refuse(state, fact, verdict or "active_claim")
    work = state.work[fact.runnable_key]
    state = close_tick(state, fact.tick_id, "abandoned").with_work(replace(work, claim=None))
    return runnables.withdraw(state, work.key) if runnables.is_withdrawn(state, work.key) else state


def _release(state: RunState, key: str, at: int) -> RunState:
    """Give the claim back as if it had never been taken: at once claimable, no delivery counted."""
    work = state.work[key]
    assert work.claim is not None
    state = close_tick(state, work.claim.claim_id, "released")
    state = state.with_work(replace(work, claim=None, visible_at=at, deliveries=max(work.deliveries - 1, 0)))
    return runnables.withdraw(state, key) if runnables.is_withdrawn(state, key) else state


def _terminal(state: RunState, fact: facts.RunTerminal, at: int) -> RunState:
    if state.terminal:
        same = fact.claim_id and judge_repeat(state, fact.claim_id, fact.result_digest) == "repeat"
        return state if same else refuse(state, fact, "terminal_run")
    if fact.status not in TERMINAL:
        return refuse(state, fact, "malformed_entry")
    if fact.claim_id is not None:
        verdict = judge_result(state, fact, at)
        if verdict:
            return state if verdict == "repeat" else refuse(state, fact, verdict)
        state = close_tick(state, fact.claim_id, fact.outcome or fact.status, fact.result_digest)
        if fact.status != "cancelled":
            state = _consume(state, fact.claim_id)
    return _end(state, fact, at)


def _end(state: RunState, fact: facts.RunTerminal, at: int) -> RunState:
    """Fence everything that is left: no work, no boundary, no open tick."""
    for work in state.work.values():
        if work.claim and work.claim.claim_id != fact.claim_id:
            state = close_tick(state, work.claim.claim_id, "fenced")
    state = ledger.close(state)
    done = fact.status == "done"
    attempt = state.attempt + 1 if fact.outcome == "retry" else state.attempt
    return replace(
        state,
        status=cast(Status, fact.status),
        finished_at=at,
        attempt=0 if done else attempt,
        deliveries=0,
        output_rev=state.rev if done else None,
        ended_rev=state.rev,
        last_error=fact.error,
        error_kind=fact.error_kind,
        input_rev=None,
        wake_at=None,
        boundary=None,
        work=type(state.work)(),
    )


def _signal(state: RunState, fact: facts.SignalReceived, at: int) -> RunState:
    if fact.signal_id in state.signal_ids:
        return state
    signal = Signal(seq=state.rev, signal_id=fact.signal_id, name=fact.name, has_input=fact.has_input)
    state = replace(
        _remember_key(state, fact),
        mailbox=(*state.mailbox, signal.seq),
        signals=state.signals.set(signal.seq, signal),
        signal_ids=state.signal_ids.set(signal.signal_id, signal.seq),
        spoken=state.spoken or is_message(fact),
    )
    if state.terminal:
        return state
    root = state.work.get(ROOT)
    if fact.interrupt and root and root.claim is None and not root.waiting and not state.boundary:
        state = replace(state, wake_at=None).with_work(replace(root, visible_at=at))
    return _deliver_mail(wake(state, awaited(fact.name), at), at)


def _cancel(state: RunState, fact: facts.CancelRequested, at: int) -> RunState:
    return replace(state, cancel_requested_at=_first(state.cancel_requested_at, at))


def _paused(state: RunState, fact: facts.ManualStepPaused, at: int) -> RunState:
    if fact.boundary not in ACTIONS:
        return refuse(state, fact, "malformed_entry")
    if state.boundary:
        same = (state.boundary.step, state.boundary.kind) == (fact.step, fact.boundary)
        return state if same else refuse(state, fact, "active_manual_step")
    expires_at = None if fact.expires_us is None else at + fact.expires_us
    boundary = Boundary(
        step=fact.step,
        kind=fact.boundary,
        rev=state.rev,
        expires_at=expires_at,
        occurrence=fact.occurrence,
        flow=fact.flow,
        shown=fingerprint(fact.metadata),
        proposal=subject(fact.metadata) if fact.boundary == "approval" else None,
    )
    return replace(state, boundary=boundary)


def _resolved(state: RunState, fact: facts.ManualStepResolved, at: int) -> RunState:
    boundary = state.boundary
    if boundary is None or boundary.step != fact.step or fact.action not in ACTIONS[boundary.kind]:
        return refuse(state, fact, "stale_manual_resolution")
    state = replace(_remember_key(state, fact), boundary=None)
    if boundary.flow:
        answered = (f"{APPROVAL}{boundary.step}", boundary.occurrence)
        state = replace(state, steps=state.steps.set(answered, Step(rev=state.rev, status="done")))
    return _deliver_mail(wake(state, f"approval:{boundary.step}", at), at)


def _child_started(state: RunState, fact: facts.ChildRunStarted, at: int) -> RunState:
    logical = (fact.step, fact.clog_id, fact.child_key)
    known = state.children.get(fact.child_run_id)
    if known and (known.step, known.clog_id, known.child_key) == logical:
        return state
    if known or state.child_ids.get(logical, fact.child_run_id) != fact.child_run_id:
        return refuse(state, fact, "conflicting_child_run")
    if fact.on_cancel not in ON_CANCEL:
        return refuse(state, fact, "malformed_entry")
    child = Child(
        child_run_id=fact.child_run_id,
        clog_id=fact.clog_id,
        child_key=fact.child_key,
        step=fact.step,
        started_rev=state.rev,
        on_cancel=fact.on_cancel,
    )
    children = state.children.set(child.child_run_id, child)
    return replace(state, children=children, child_ids=state.child_ids.set(logical, child.child_run_id))


def _child_finished(state: RunState, fact: facts.ChildRunFinished, at: int) -> RunState:
    child = state.children.get(fact.child_run_id)
    if child is None or fact.status not in TERMINAL or child.status not in (None, fact.status):
        return refuse(state, fact, "conflicting_child_run")
    if child.status is not None:
        return state
    finished = replace(child, status=fact.status, finished_rev=state.rev)
    state = replace(state, children=state.children.set(child.child_run_id, finished))
    return wake(state, f"child:{child.child_run_id}", at)


def _wakeup(state: RunState, fact: facts.LiveWakeupEmitted, at: int) -> RunState:
    return state if fact.runnable_key in state.work else refuse(state, fact, "unknown_runnable_intent")


def _anomaly(state: RunState, fact: facts.Anomaly, at: int) -> RunState:
    return state.refuse(
        Refusal(
            reason=fact.reason,
            entry_kind=fact.entry_kind,
            rev=state.rev,
            runnable_key=fact.runnable_key,
            claim_id=fact.claim_id,
            step=fact.step,
        )
    )


def _event(state: RunState, fact: facts.Event, at: int) -> RunState:
    """The library speaks freely, an endpoint in its begun tick; a handler only while it holds its claim."""
    if fact.tick_id is None or (fact.tick_id in state.ticks and state.ticks[fact.tick_id].outcome == BEGUN):
        return _heard(state, fact)
    refusal = judge_fence(state, fact.runnable_key, fact.tick_id, fact.claim_token_hash, at)
    return refuse(state, fact, refusal) if refusal else _heard(state, fact)


def _heard(state: RunState, fact: Fact) -> RunState:
    return state if state.spoken or not is_message(fact) else replace(state, spoken=True)


def _forked(state: RunState, fact: facts.RunForked, at: int) -> RunState:
    """What is the original's stays there: its claims and ticks, parent, key, place, and unfinished children."""
    for key, work in state.work.items():
        if work.claim:
            state = _release(state, key, at)
    finished = {name: child for name, child in state.children.items() if child.status is not None}
    if len(finished) < len(state.children):
        names = {logical: name for logical, name in state.child_ids.items() if name in finished}
        state = replace(state, children=Map(finished), child_ids=Map(names))
    if state.ticket and (state.ticket.held or state.ticket.at != at):
        state = replace(state, ticket=None)
    return ledger.of_fork(replace(state, parent_run_id=None, created_key=None, ticks=Map()))


def _stored(state: RunState, fact: facts.StorageWritten, at: int) -> RunState:
    """A tick's writes come with its end, and once for each clog."""
    tick = state.ticks.get(fact.tick_id)
    if tick is None:
        return refuse(state, fact, "stale_claim")
    spent = f"w:{fact.clog_id}"
    if spent in tick.spent:
        return state
    if tick.outcome != BEGUN:
        refusal = judge_fence(state, tick.key, fact.tick_id, None, at)
        if refusal:
            return refuse(state, fact, refusal)
    return fold_writes(_spend(state, tick, [spent]), fact, at)


def _begun(state: RunState, fact: facts.TickBegun, at: int) -> RunState:
    if fact.tick_id in state.ticks:
        return state if state.ticks[fact.tick_id].outcome == BEGUN else refuse(state, fact, "active_claim")
    tick = Tick(tick_id=fact.tick_id, claimed_rev=state.rev, started_at=at, outcome=BEGUN)
    return replace(state, ticks=state.ticks.set(tick.tick_id, tick))


def _called(state: RunState, fact: facts.EndpointCalled, at: int) -> RunState:
    tick = state.ticks.get(fact.tick_id)
    if tick is None or tick.outcome != BEGUN:
        return refuse(state, fact, "stale_claim")
    return _spend(state, tick, fact.spent)


def _spend(state: RunState, tick: Tick, spent: Iterable[str]) -> RunState:
    used = tuple(sorted({*tick.spent, *spent}))
    if used == tick.spent:
        return state
    return replace(state, ticks=state.ticks.set(tick.tick_id, replace(tick, spent=used)))


def _lane_entered(state: RunState, fact: facts.LaneEntered, at: int) -> RunState:
    if state.ticket is None:
        return refuse(state, fact, "unknown_runnable_intent")
    return replace(state, ticket=replace(state.ticket, held=True))


def _step_recorded(state: RunState, fact: facts.StepRecorded, at: int) -> RunState:
    refusal = judge_fence(state, fact.runnable_key, fact.claim_id, fact.claim_token_hash, at)
    if refusal or fact.status not in STATUSES:
        return refuse(state, fact, refusal or "malformed_entry")
    return record(state, fact)


def _signal_taken(state: RunState, fact: facts.SignalTaken, at: int) -> RunState:
    refusal = judge_fence(state, fact.runnable_key, fact.claim_id, fact.claim_token_hash, at)
    if refusal:
        return refuse(state, fact, refusal)
    is_free = fact.seq in state.mailbox and fact.seq != state.input_rev
    if not is_free and (fact.step, fact.occurrence) not in state.steps:
        return refuse(state, fact, "malformed_entry")
    return take(state, fact)


def _tool_requested(state: RunState, fact: facts.ToolRequested, at: int) -> RunState:
    refusal = judge_fence(state, fact.runnable_key, fact.claim_id, fact.claim_token_hash, at)
    return refuse(state, fact, refusal) if refusal else ledger.ask(_heard(state, fact), fact, at)


def _tool_answered(state: RunState, fact: facts.ToolAnswered, at: int) -> RunState:
    refusal = judge_fence(state, fact.runnable_key, fact.claim_id, fact.claim_token_hash, at)
    known = state.tools.get(fact.slot)
    if refusal or known is None or fact.status not in ledger.ANSWERS:
        return refuse(state, fact, refusal or "malformed_entry")
    if known.status != "requested":
        return state if known.status == fact.status else refuse(state, fact, "conflicting_completion")
    return ledger.settle(state, fact)


def _deleted(state: RunState, fact: facts.RunDeleted, at: int) -> RunState:
    """Only what is over can be deleted: nobody's work, parent or lane is left behind."""
    return replace(state, deleted=True) if state.terminal else refuse(state, fact, "malformed_entry")


def _unchanged(state: RunState, fact: Fact, at: int) -> RunState:
    return state


def _remember_key(state: RunState, fact: Any) -> RunState:
    if fact.key is None or fact.key in state.keys:
        return state
    return replace(state, keys=state.keys.set(fact.key, KeyUse(fact.key_digest or "", state.rev)))


def _first(known: int | None, at: int) -> int:
    return at if known is None else known


_HANDLERS: dict[type[Fact], Callable[[RunState, Any, int], RunState]] = {
    facts.RunCreated: _created,
    facts.AttemptClaimed: _claimed,
    facts.AttemptHeartbeat: _heartbeat,
    facts.TickSettled: _settled,
    facts.TickAbandoned: _abandoned,
    facts.RunTerminal: _terminal,
    facts.SignalReceived: _signal,
    facts.CancelRequested: _cancel,
    facts.ManualStepPaused: _paused,
    facts.ManualStepResolved: _resolved,
    facts.ChildRunStarted: _child_started,
    facts.ChildRunFinished: _child_finished,
    facts.WorkflowStarted: runnables.started,
    facts.RunnablePlanned: runnables.planned,
    facts.AttemptScheduled: runnables.scheduled,
    facts.AttemptCompleted: runnables.completed,
    facts.MapExpanded: runnables.expanded,
    facts.AttemptFailed: runnables.failed,
    facts.RunnableApplied: runnables.applied,
    facts.CompensationBegun: runnables.compensation_begun,
    facts.LiveWakeupEmitted: _wakeup,
    facts.Anomaly: _anomaly,
    facts.Event: _event,
    facts.RunForked: _forked,
    facts.StorageWritten: _stored,
    facts.OutboxEnqueued: _unchanged,
    facts.TickBegun: _begun,
    facts.EndpointCalled: _called,
    facts.LaneEntered: _lane_entered,
    facts.StepRecorded: _step_recorded,
    facts.SignalTaken: _signal_taken,
    facts.ToolRequested: _tool_requested,
    facts.ToolAnswered: _tool_answered,
    facts.RunDeleted: _deleted,
}

_AFTER_THE_END = frozenset(
    {facts.SignalReceived, facts.RunTerminal, facts.Anomaly, facts.RunCreated, facts.RunForked, facts.RunDeleted}
)
"""Kinds that judge for themselves once the run is over: none of them changes how it ended."""
