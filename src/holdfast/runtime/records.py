"""What callers get to see: plain frozen records, times as aware datetimes."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from holdfast.moments import from_us
from holdfast.protocol.facts import ROOT
from holdfast.protocol.state import NEVER, RunState


class RunInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A run at one revision."""

    run_id: str
    session_id: str
    clog_id: str
    status: str
    attempt: int
    max_attempts: int
    deliveries: int
    wake_at: datetime | None
    pending_input: Any
    last_error: str | None
    error_kind: str | None
    output: Any
    locked_by: str | None
    lock_expires_at: datetime | None
    cancel_requested_at: datetime | None
    created_at: datetime | None
    started_at: datetime | None
    updated_at: datetime
    finished_at: datetime | None
    parent_run_id: str | None
    queue: str
    lane: str | None
    rev: int


class SignalReceipt(msgspec.Struct, frozen=True):
    """Whether a signal will reach the run, why not, and the entry that holds it."""

    accepted: bool
    reason: str | None
    rev: int | None


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """The right to work on one item until `lease_until`. The token is known to this holder alone."""

    run_id: str
    runnable_key: str
    tick_id: str
    claim_id: str
    token: str
    lease_until: datetime
    attempt: int
    input: Any

    def __repr__(self) -> str:
        return f"Claim(run_id={self.run_id!r}, claim_id={self.claim_id!r}, token=<hidden>)"


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Something that watchers of a run see. `seq` is the revision of its entry."""

    seq: int
    type: str
    data: Any
    at: datetime
    tick_id: str | None = None
    attempt: int | None = None


def run_info(state: RunState, *, pending_input: Any, output: Any) -> RunInfo:
    root = state.work.get(ROOT)
    claim = root.claim if root else None
    return RunInfo(
        run_id=state.run_id,
        session_id=state.session_id,
        clog_id=state.clog_id,
        status=state.status,
        attempt=state.attempt,
        max_attempts=state.max_attempts,
        deliveries=state.deliveries,
        wake_at=_moment(_wake_at(state)),
        pending_input=pending_input,
        last_error=state.last_error,
        error_kind=state.error_kind,
        output=output,
        locked_by=claim.owner_id if claim else None,
        lock_expires_at=_moment(claim.lease_until) if claim else None,
        cancel_requested_at=_moment(state.cancel_requested_at),
        created_at=_moment(state.created_at),
        started_at=_moment(state.started_at),
        updated_at=from_us(state.at),
        finished_at=_moment(state.finished_at),
        parent_run_id=state.parent_run_id,
        queue=state.queue,
        lane=state.lane,
        rev=state.rev,
    )


def _wake_at(state: RunState) -> int | None:
    """When the run goes on by itself. A workflow that waits goes on with the first of its steps."""
    if state.definition is None or state.status != "waiting":
        return state.wake_at
    return min((work.visible_at for work in state.work.values() if work.visible_at < NEVER), default=None)


def without_hashes(data: Any) -> Any:
    """An entry's data as anybody may see it: what the journal knows of a claim's token stays there."""
    if not isinstance(data, dict):
        return data
    return {name: value for name, value in data.items() if name != "claim_token_hash"}


def _moment(value: int | None) -> datetime | None:
    return None if value is None else from_us(value)
