"""`Inspection`: everything about one run at one instant, and the one reason why it is where it is.

Pure, and only for looking: what is stored for the program (inputs, outputs, storage) and the hashes of claim tokens
are not part of it.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, cast

import msgspec

from holdfast.moments import from_us
from holdfast.protocol.state import NEVER, Refusal, Runnable, RunState, Work
from holdfast.runtime.history import History, Receipt

_DISPATCH_KINDS = frozenset(
    {
        *("attempt_scheduled", "attempt_claimed", "attempt_heartbeat", "attempt_completed", "attempt_failed"),
        *("live_wakeup_emitted", "lane_entered", "tick_settled", "tick_abandoned", "event"),
        *("storage_written", "outbox_enqueued"),
    }
)
"""Kinds that speak of claims, ticks and queues: refused ones are anomalies of dispatch, others of the workflow."""


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One piece of work. `visible_at` is None while only a signal, a child or a person can make it due."""

    runnable_key: str
    step: str
    status: str
    attempt: int = 0
    deliveries: int = 0
    visible_at: datetime | None = None
    claim_id: str | None = None
    owner_id: str | None = None
    lease_until: datetime | None = None
    blocked: bool = False
    awaits: tuple[str, ...] = ()
    """What a flow waits for: `signal:<name>`, `child:<run id>`, `approval:<step>`."""
    handler: str = ""
    """What a worker must know to claim it: the clog, and the version of a flow that has begun."""


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """A workflow step with the entry that made it wait."""

    runnable_key: str
    step: str
    rev: int | None


class SeenTick(msgspec.Struct, frozen=True, kw_only=True):
    """One handler call; `outcome` is None while it runs."""

    tick_id: str
    runnable_key: str
    started_at: datetime
    claimed_rev: int
    outcome: str | None
    settled_rev: int | None


class SeenAnomaly(msgspec.Struct, frozen=True, kw_only=True):
    """A refusal on record: `source` is `dispatch` or `workflow`."""

    source: str
    reason: str
    entry_kind: str
    rev: int
    runnable_key: str
    claim_id: str
    step: str


class ManualState(msgspec.Struct, frozen=True, kw_only=True):
    """The open question to a person."""

    step: str
    kind: str
    rev: int
    expires_at: datetime | None
    metadata: dict[str, Any]


class ParentRun(msgspec.Struct, frozen=True, kw_only=True):
    run_id: str
    child_key: str
    step: str
    runnable_key: str
    attempt: int


class ChildRun(msgspec.Struct, frozen=True, kw_only=True):
    """`status` is None until the child's end was recorded here."""

    run_id: str
    clog_id: str
    child_key: str
    step: str
    status: str | None
    started_rev: int
    finished_rev: int | None
    on_cancel: str


class Inspection(msgspec.Struct, frozen=True, kw_only=True):
    """One run, seen at `seen_at` on the clock that judges leases."""

    run_id: str
    session_id: str
    clog_id: str
    queue: str
    lane: str | None
    status: str
    reason: str
    terminal: bool
    rev: int
    revisions: dict[str, int]
    seen_at: datetime
    created_at: datetime | None
    started_at: datetime | None
    updated_at: datetime
    finished_at: datetime | None
    cancel_requested_at: datetime | None
    attempt: int
    max_attempts: int
    deliveries: int
    max_deliveries: int
    last_error: str | None
    error_kind: str | None
    signals_waiting: int
    manual_state: ManualState | None
    command_history: tuple[Receipt, ...]
    planned_keys: tuple[str, ...]
    applied_keys: tuple[str, ...]
    pending_dispatches: tuple[Step, ...]
    pending_results: tuple[Step, ...]
    visible_attempts: tuple[Attempt, ...]
    scheduled_attempts: tuple[Attempt, ...]
    next_visible_at: datetime | None
    expired_claims: tuple[Attempt, ...]
    attempts: tuple[Attempt, ...]
    anomalies: tuple[SeenAnomaly, ...]
    parent_run: ParentRun | None
    child_runs: tuple[ChildRun, ...]
    replayed_from: str | None
    forked_from: str | None
    is_flow: bool
    ticks: tuple[SeenTick, ...]

    @property
    def claimed_attempts(self) -> tuple[Attempt, ...]:
        """Those whose holders may still act."""
        return tuple(item for item in self.attempts if item.status == "claimed" and item not in self.expired_claims)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; instants as RFC 3339 text."""
        return cast(dict[str, Any], msgspec.json.decode(msgspec.json.encode(self)))


def inspection(state: RunState, now: int, history: History) -> Inspection:
    """What a whole state shows at this instant."""
    parts = _parts(state, now)
    created = history.created
    return Inspection(
        run_id=state.run_id,
        session_id=state.session_id,
        clog_id=state.clog_id,
        queue=state.queue,
        lane=state.lane,
        status=state.status,
        reason=_reason(state, parts),
        terminal=state.terminal,
        rev=state.rev,
        revisions={f"run:{state.run_id}": state.rev},
        seen_at=from_us(now),
        created_at=_moment(state.created_at),
        started_at=_moment(state.started_at),
        updated_at=from_us(state.at),
        finished_at=_moment(state.finished_at),
        cancel_requested_at=_moment(state.cancel_requested_at),
        attempt=state.attempt,
        max_attempts=state.max_attempts,
        deliveries=state.deliveries,
        max_deliveries=state.max_deliveries,
        last_error=state.last_error,
        error_kind=state.error_kind,
        signals_waiting=len(state.mailbox),
        manual_state=_manual_state(state, history),
        command_history=history.receipts,
        parent_run=_parent(created.parent) if created and created.parent else None,
        child_runs=_children(state),
        replayed_from=created.replayed_from if created else None,
        forked_from=history.forked.source_run_id if history.forked else None,
        is_flow=state.flow,
        ticks=_ticks(state),
        anomalies=tuple(_anomaly(each) for each in sorted(state.anomalies.values(), key=lambda each: each.rev)),
        **parts,
    )


def _parts(state: RunState, now: int) -> dict[str, Any]:
    """Work and workflow steps, sorted by what they wait for."""
    runnables = sorted(state.runnables.values(), key=lambda each: each.planned_rev or each.scheduled_rev or 0)
    work = sorted(state.work.values(), key=lambda each: (each.visible_at, each.key))
    free = [each for each in work if each.claim is None and not each.blocked and state.boundary is None]
    later = [each for each in work if each.claim is None and now < each.visible_at]
    over = [each for each in runnables if each.status in ("completed", "failed")]
    next_at = min((each.visible_at for each in later if each.visible_at < NEVER), default=None)
    return {
        "planned_keys": tuple(each.key for each in runnables if each.planned_rev is not None),
        "applied_keys": tuple(each.key for each in runnables if each.applied_rev is not None),
        "pending_dispatches": tuple(_step(each, each.planned_rev) for each in runnables if each.status == "planned"),
        "pending_results": tuple(
            _step(each, each.result_rev)
            for each in runnables
            if each.status == "completed" and each.applied_rev is None
        ),
        "visible_attempts": tuple(_attempt(each, state) for each in free if each.visible_at <= now),
        "scheduled_attempts": tuple(_attempt(each, state) for each in later),
        "next_visible_at": _moment(next_at),
        "expired_claims": tuple(_attempt(each, state) for each in work if each.claim and not each.claim.holds(now)),
        "attempts": (*(_attempt(each, state) for each in work), *(_settled_attempt(each) for each in over)),
    }


_REASONS: tuple[tuple[str, Callable[[RunState, dict[str, Any]], object]], ...] = (
    ("terminal", lambda state, parts: state.terminal),
    ("manual_intervention_required", lambda state, parts: state.boundary),
    ("completed_result_pending_apply", lambda state, parts: parts["pending_results"]),
    ("planned_dispatch_pending_schedule", lambda state, parts: parts["pending_dispatches"]),
    ("expired_claim", lambda state, parts: parts["expired_claims"]),
    ("attempt_visible", lambda state, parts: parts["visible_attempts"]),
    ("attempt_claimed", lambda state, parts: any(work.claim for work in state.work.values())),
    ("attempt_scheduled_for_later", lambda state, parts: parts["scheduled_attempts"]),
    ("idle", lambda state, parts: state.status == "idle"),
)
"""What explains a run, the strongest first. A run whose work is due but hidden from claims matches none of them."""


def _reason(state: RunState, parts: dict[str, Any]) -> str:
    return next((word for word, applies in _REASONS if applies(state, parts)), "waiting_for_dispatch")


def _attempt(work: Work, state: RunState) -> Attempt:
    claim = work.claim
    waiting = "retry_scheduled" if work.attempt else "available"
    return Attempt(
        runnable_key=work.key,
        step=work.step,
        status="claimed" if claim else waiting,
        attempt=work.attempt,
        deliveries=work.deliveries,
        visible_at=None if work.visible_at >= NEVER else from_us(work.visible_at),
        claim_id=claim.claim_id if claim else None,
        owner_id=claim.owner_id if claim else None,
        lease_until=from_us(claim.lease_until) if claim else None,
        blocked=work.blocked,
        awaits=work.awaits,
        handler=work.handler or state.clog_id,
    )


def _settled_attempt(runnable: Runnable) -> Attempt:
    return Attempt(runnable_key=runnable.key, step=runnable.step, status=runnable.status)


def _step(runnable: Runnable, rev: int | None) -> Step:
    return Step(runnable_key=runnable.key, step=runnable.step, rev=rev)


def _ticks(state: RunState) -> tuple[SeenTick, ...]:
    return tuple(
        SeenTick(
            tick_id=tick.tick_id,
            runnable_key=tick.key,
            started_at=from_us(tick.started_at),
            claimed_rev=tick.claimed_rev,
            outcome=tick.outcome,
            settled_rev=tick.settled_rev,
        )
        for tick in sorted(state.ticks.values(), key=lambda tick: tick.claimed_rev)
    )


def _anomaly(refusal: Refusal) -> SeenAnomaly:
    return SeenAnomaly(
        source="dispatch" if refusal.entry_kind in _DISPATCH_KINDS else "workflow",
        reason=refusal.reason,
        entry_kind=refusal.entry_kind,
        rev=refusal.rev,
        runnable_key=refusal.runnable_key,
        claim_id=refusal.claim_id,
        step=refusal.step,
    )


def _manual_state(state: RunState, history: History) -> ManualState | None:
    boundary = state.boundary
    if boundary is None:
        return None
    return ManualState(
        step=boundary.step,
        kind=boundary.kind,
        rev=boundary.rev,
        expires_at=_moment(boundary.expires_at),
        metadata=history.boundary_metadata,
    )


def _parent(parent: Any) -> ParentRun:
    return ParentRun(**{name: getattr(parent, name) for name in ParentRun.__struct_fields__})


def _children(state: RunState) -> tuple[ChildRun, ...]:
    return tuple(
        ChildRun(
            run_id=child.child_run_id,
            clog_id=child.clog_id,
            child_key=child.child_key,
            step=child.step,
            status=child.status,
            started_rev=child.started_rev,
            finished_rev=child.finished_rev,
            on_cancel=child.on_cancel,
        )
        for child in sorted(state.children.values(), key=lambda child: child.started_rev)
    )


def _moment(value: int | None) -> datetime | None:
    return None if value is None else from_us(value)
