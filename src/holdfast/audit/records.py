"""What readers of the audit get: facts as people and programs know them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from holdfast.audit.instants import Validity
from holdfast.moments import from_us
from holdfast.protocol.audit import OVER, AuditFact, Proposal, ToolCall, Turn


class ConversationTurn(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was said. `created_at` is when it was said first, `validity` since when it reads so."""

    id: str
    message_id: str
    kind: str
    content: str
    parent_id: str | None
    thread_id: str | None
    validity: Validity
    created_at: datetime


class ToolCallRequested(msgspec.Struct, frozen=True, kw_only=True):
    """The request of a call, with the validity of its first fact."""

    request_id: str
    call_id: str
    parent_id: str | None
    vendor: str
    tool_name: str
    args_sha256: str
    arguments_json: Any
    status: str
    started_at_ms: int
    run_id: str | None
    validity: Validity

    @property
    def started_at(self) -> datetime:
        return from_us(self.started_at_ms * 1_000)


class ToolCallDone(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a call."""

    request_id: str
    call_id: str
    status: str
    ended_at_ms: int
    latency_ms: int
    outcome_json: Any
    error_kind: str | None
    error_msg: str | None
    validity: Validity

    @property
    def ended_at(self) -> datetime:
        return from_us(self.ended_at_ms * 1_000)


class EditProposal(msgspec.Struct, frozen=True, kw_only=True):
    """A proposed edit as it stands. `error_msg` says why it is failed or stale."""

    request_id: str
    diffs_json: Any
    confidence: float | None
    status: str
    actor: str | None
    created_at: datetime
    decided_at: datetime | None
    applied_at: datetime | None
    commit_hash: str | None
    results_json: Any
    error_msg: str | None
    validity: Validity


Pair = tuple[ToolCallRequested, ToolCallDone | None]
Record = ConversationTurn | EditProposal | Pair


def turn_record(fact: Turn) -> ConversationTurn:
    return ConversationTurn(
        id=fact.id,
        message_id=fact.message_id,
        kind=fact.kind,
        content=fact.content,
        parent_id=fact.parent_id,
        thread_id=fact.thread_id,
        validity=_validity(fact),
        created_at=from_us(fact.created),
    )


def call_record(first: ToolCall, last: ToolCall) -> Pair:
    """Request and end, from a call's first fact and its latest. The time of the request is the first one's."""
    arguments = last.arguments_json if last.arguments_json is not None else first.arguments_json
    request = ToolCallRequested(
        request_id=first.request_id,
        call_id=first.call_id,
        parent_id=first.parent_id,
        vendor=last.vendor,
        tool_name=last.tool_name,
        args_sha256=first.args_sha256,
        arguments_json=_value(arguments),
        status=last.status,
        started_at_ms=first.started_at // 1_000,
        run_id=first.run_id,
        validity=Validity(first.created),
    )
    return request, _done(first, last) if last.status in OVER else None


def _done(first: ToolCall, last: ToolCall) -> ToolCallDone:
    ended_at = last.ended_at or last.validity
    latency = last.latency_ms if last.latency_ms is not None else max(0, ended_at - first.started_at) // 1_000
    return ToolCallDone(
        request_id=last.request_id,
        call_id=last.call_id,
        status=last.status,
        ended_at_ms=ended_at // 1_000,
        latency_ms=latency,
        outcome_json=_value(last.outcome_json),
        error_kind=last.error_kind,
        error_msg=last.error_msg,
        validity=_validity(last),
    )


def proposal_record(fact: Proposal) -> EditProposal:
    return EditProposal(
        request_id=fact.request_id,
        diffs_json=_value(fact.diffs_json),
        confidence=fact.confidence,
        status=fact.status,
        actor=fact.actor,
        created_at=from_us(fact.created),
        decided_at=_moment(fact.decided_at),
        applied_at=_moment(fact.applied_at),
        commit_hash=fact.commit_hash,
        results_json=_value(fact.results_json),
        error_msg=fact.error_msg,
        validity=_validity(fact),
    )


def changed_row(fact: AuditFact) -> dict[str, Any]:
    """A fact as a callback gets it: every field by its name, JSON as values."""
    row = msgspec.structs.asdict(fact)
    row["validity"] = Validity(row["validity"], bool(row.pop("asserted")))
    for name in ("created", "digest", "user_id"):
        row.pop(name)
    return {name: _value(value) if name.endswith("_json") else value for name, value in row.items()}


def _validity(fact: Turn | ToolCall | Proposal) -> Validity:
    return Validity(fact.validity, bool(fact.asserted))


def _value(text: str | None) -> Any:
    return None if text is None else msgspec.json.decode(text)


def _moment(us: int | None) -> datetime | None:
    return None if us is None else from_us(us)
