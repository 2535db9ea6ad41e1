"""The end of a tick: what each outcome means for the run, and what the tick wanted beside it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any, assert_never

import msgspec
from msgspec.structs import replace

from holdfast.protocol import commands, facts, storage
from holdfast.protocol.backoff import Backoff
from holdfast.protocol.decisions import (
    Decision,
    Handoff,
    capped,
    end,
    lost_fence,
    microseconds,
    refuse,
    sleep,
    unsay,
)
from holdfast.protocol.facts import ROOT, Fact
from holdfast.protocol.judging import judge_repeat
from holdfast.protocol.outcomes import UNSET, Continue, Done, Fail, Ok, Outcome, Retry, Wait
from holdfast.protocol.planning import look, settle_step
from holdfast.protocol.state import RunState

STORAGE_CONFLICT = "STORAGE_CONFLICT"
WORKFLOW_TICK = "workflow_tick"
_encoder = msgspec.json.Encoder(enc_hook=str, order="sorted")


def outcome_digest(outcome: Outcome) -> str:
    """Two outcomes are the same result exactly if this is equal."""
    return hashlib.sha256(_encoder.encode([type(outcome).__name__, outcome])).hexdigest()


def settle(state: RunState, command: commands.Settle, now: int) -> Decision:
    result_digest = outcome_digest(command.outcome)
    refusal = lost_fence(state, command, now)
    if refusal:
        known = judge_repeat(state, command.claim_id, result_digest)
        if known == "repeat":
            return Decision(repeat_rev=state.ticks[command.claim_id].settled_rev)
        return refuse(state, known or refusal, "tick_settled", command)
    said = last_words(state, command)
    if state.cancel_requested_at is not None:
        return end(state, said, _terminal(command, "cancelled", result_digest, error_kind="cancelled"))
    if _speaks_for_planner(state, command):
        return Decision(refusal=WORKFLOW_TICK)
    outcome, staged = command.outcome, command.staged
    if storage.has_changed(state, command.claim_id, staged.storage):
        # Nothing of the tick is kept: it judged by rows that are no longer so.
        outcome, staged = Retry(STORAGE_CONFLICT, kind=STORAGE_CONFLICT), commands.Staged()
    before = [*said, *storage.facts_of(command.claim_id, command.runnable_key, staged.storage)]
    starts = stage(state, command, staged, before)
    if command.runnable_key != ROOT:
        decided = settle_step(state, command, outcome, result_digest)
    elif command.plan is not None and command.plan.looks and isinstance(outcome, Ok):
        decided = look(state, command, result_digest)
    else:
        decided = _apply_outcome(state, command, outcome, result_digest)
    if command.traceparent is not None:
        decided = _traced(decided, command.traceparent)
    return _together(state, before, starts, decided, staged.deletes)


def _traced(decided: Decision, traceparent: str) -> Decision:
    """The fact that ends the tick names its span, so that the next attempt can point back at it."""
    named = [
        replace(fact, traceparent=traceparent) if isinstance(fact, facts.Settling) else fact for fact in decided.facts
    ]
    return replace(decided, facts=tuple(named))


def _speaks_for_planner(state: RunState, command: commands.Settle) -> bool:
    """A workflow's own tick is ended by its planner; whoever else holds it may only give up on it."""
    is_planners = state.definition is not None and command.runnable_key == ROOT
    return is_planners and command.plan is None and not isinstance(command.outcome, Retry | Fail)


def stage(
    state: RunState, command: commands.Settle | commands.RecordStep, staged: commands.Staged, before: list[Fact]
) -> list[Handoff]:
    """Add the outbox rows and the children that are new; answer how the children are started."""
    if not (staged.outbox or staged.children):
        return []
    before += enqueued(command.claim_id, staged.outbox)
    children = [child for child in staged.children if child.child_run_id not in state.children]
    starts = [
        Handoff(target_run_id=child.child_run_id, kind="start", fact=len(before) + place)
        for place, child in enumerate(children)
    ]
    before += [_child_started(state, command, child) for child in children]
    return starts


def _together(
    state: RunState, before: list[Fact], starts: list[Handoff], decided: Decision, deletes: tuple[str, ...]
) -> Decision:
    """One commit: what the tick staged, then its outcome. Deletions follow as handoffs to the run itself."""
    if not before and not deletes:
        return decided
    handoffs = [*starts, *(replace(handoff, fact=handoff.fact + len(before)) for handoff in decided.handoffs)]
    handoffs += deletions(state, deletes, last=len(before) + len(decided.facts) - 1)
    return Decision(facts=(*before, *decided.facts), handoffs=tuple(handoffs))


def deletions(state: RunState, deletes: tuple[str, ...], *, last: int) -> tuple[Handoff, ...]:
    """What a clog deletes goes after the commit that says so."""
    return tuple(Handoff(target_run_id=state.run_id, kind=f"delete_{what}", fact=last) for what in deletes)


def last_words(state: RunState, command: commands.Settle | commands.Emit | commands.RecordStep) -> list[Fact]:
    attempt = state.work[command.runnable_key].attempt
    return [
        facts.Event(
            type=kind,
            data=data,
            tick_id=command.claim_id,
            runnable_key=command.runnable_key,
            attempt=attempt,
            repaired=place in command.repairs or (command.repaired and isinstance(command, commands.Emit)),
        )
        for place, (kind, data) in enumerate(command.events)
    ]


def enqueued(tick_id: str, rows: Iterable[commands.OutboxRow]) -> list[Fact]:
    return [
        facts.OutboxEnqueued(
            tick_id=tick_id,
            outbox_id=row.outbox_id,
            target_space=row.target_space,
            payload=row.payload,
            payload_sha=row.payload_sha,
            idempotency_key=row.idempotency_key,
            repaired=row.repaired,
        )
        for row in rows
    ]


def _child_started(state: RunState, command: commands.Settle | commands.RecordStep, child: commands.ChildStart) -> Fact:
    return facts.ChildRunStarted(
        child_run_id=child.child_run_id,
        clog_id=child.clog_id,
        child_key=child.child_key,
        step=child.step,
        runnable_key=command.runnable_key,
        attempt=state.work[command.runnable_key].attempt,
        start=child.start,
        metadata=child.metadata,
        on_cancel=child.on_cancel,
        repaired=child.repaired,
    )


def _apply_outcome(state: RunState, command: commands.Settle, outcome: Outcome, result_digest: str) -> Decision:
    match outcome:
        case Ok() if state.mode == "single":
            return end(state, [], _terminal(command, "done", result_digest, outcome="ok"))
        case Ok():
            return Decision(facts=(_settled(command, "ok", result_digest),))
        case Done(output=output):
            return end(state, [], _terminal(command, "done", result_digest, outcome="done", output=output))
        case Continue(input=given):
            has_input = given is not UNSET
            settled = _settled(
                command, "continue", result_digest, has_input=has_input, input=given if has_input else None
            )
            return Decision(facts=(settled,))
        case Wait():
            settled = _settled(command, "wait", result_digest, awaits=list(command.awaits), **sleep(outcome))
            return Decision(facts=(settled,))
        case Retry():
            return _retry(state, command, outcome, result_digest)
        case Fail(error=error, kind=kind):
            terminal = _terminal(
                command, "failed", result_digest, outcome="failed", error=capped(error), error_kind=kind
            )
            return end(state, [], terminal)
        case _:
            assert_never(outcome)


def _retry(state: RunState, command: commands.Settle, outcome: Retry, result_digest: str) -> Decision:
    attempt = state.attempt + 1
    error = capped(outcome.error)
    if attempt >= state.max_attempts:
        terminal = _terminal(command, "failed", result_digest, outcome="retry", error=error, error_kind=outcome.kind)
        return end(state, [], terminal)
    delay_us = _retry_delay_us(state, outcome, attempt)
    settled = _settled(command, "retry", result_digest, delay_us=delay_us, error=error, error_kind=outcome.kind)
    return Decision(facts=(settled, *unsay(state, command)))


def _retry_delay_us(state: RunState, outcome: Retry, attempt: int) -> int:
    if outcome.after is not None:
        return microseconds(outcome.after)
    return Backoff(state.backoff_us, state.backoff_max_us).delay_us(attempt)


def _settled(command: commands.Settle, outcome: str, result_digest: str, **fields: Any) -> facts.TickSettled:
    return facts.TickSettled(
        claim_id=command.claim_id,
        claim_token_hash=command.claim_token_hash,
        outcome=outcome,
        result_digest=result_digest,
        flow=command.flow,
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
