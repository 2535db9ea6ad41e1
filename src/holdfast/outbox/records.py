"""What the outbox shows: rows, audits, reports, and the codes of what can become of a try."""

from __future__ import annotations

from datetime import datetime
from functools import lru_cache
from typing import Any, Literal

import msgspec

from holdfast.identity import new_id
from holdfast.moments import from_us
from holdfast.protocol.values import canonical
from holdfast.store import Row
from holdfast.store.outbox_sql import AUDIT_COLUMNS, COLUMNS, AuditRow

Status = Literal["pending", "sent", "dead"]

SUCCESS = "outbox_flush_success"
RETRY = "outbox_flush_retry"
DEAD = "outbox_flush_dead"
CONFLICT = "outbox_flush_conflict"
DEDUP_HIT = "outbox_flush_dedup_hit"
DB_TIMEOUT = "outbox_flush_db_timeout"
DB_ERROR = "outbox_flush_db_error"
RESULT_CODES = (SUCCESS, RETRY, DEAD, CONFLICT, DEDUP_HIT, DB_TIMEOUT, DB_ERROR)
"""What can become of one try to deliver."""
STALE = "outbox_stale"
"""The one code that no try has: reconcile freed a lock that nobody came back for."""
FAILED_CODES = frozenset(RESULT_CODES) - {SUCCESS, DEDUP_HIT}

_MEANINGS = {SUCCESS: ("allow", "success"), DEDUP_HIT: ("allow", "success"), DEAD: ("reject", "failed")}
_LATER = ("redirect", "redirected")


class OutboxRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the outbox. `token` is there only for whoever just claimed it.

    `last_error` of a sent row shows what it became, as `memory_id=<ref>`. Fields can be read by name: `row["status"]`.
    """

    outbox_id: str
    run_id: str | None
    user_id: str
    target_space: str
    payload: Any
    payload_sha: str
    idempotency_key: str | None
    status: Status
    retry_count: int
    max_retries: int | None
    next_attempt_at: datetime
    created_at: datetime
    settled_at: datetime | None
    locked_by: str | None
    locked_at: datetime | None
    lease_until: datetime | None
    deliveries: int
    attempts_made: int
    last_error: str | None
    error_kind: str | None
    result_ref: str | None
    requeued_from: str | None
    token: str | None = None

    @property
    def memory_id(self) -> str | None:
        """What the receiver calls it, in the words of the lease protocol."""
        return self.result_ref

    def __repr__(self) -> str:
        names = [name for name in self.__struct_fields__ if name != "token"]
        shown = [f"{name}={getattr(self, name)!r}" for name in names]
        return f"OutboxRow({', '.join(shown)}, token={'None' if self.token is None else '<hidden>'})"

    def __getitem__(self, name: str) -> Any:
        if name not in self.__struct_fields__ and name != "memory_id":
            raise KeyError(name)
        return getattr(self, name)


class Audit(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one try: `reason` is one of the result codes, `evidence` says who, what and why."""

    audit_id: str
    outbox_id: str
    at: datetime
    action: str
    reason: str
    status: str
    evidence: dict[str, Any]


class ReconcileReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was amiss, and how much of it was put right. `ok` means that nothing is amiss any more."""

    found: int
    fixed: int
    missing_audits: tuple[str, ...]
    stale_locks: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return self.found == self.fixed


class OutboxReport(msgspec.Struct, frozen=True, kw_only=True):
    """The outbox in numbers: rows by status, audits by action and by reason, and what waits."""

    statuses: dict[str, int]
    actions: dict[str, int]
    reasons: dict[str, int]
    locked: int
    oldest_pending_at: datetime | None


# The rows of a claim share their instants.
_moment = lru_cache(maxsize=256)(from_us)
_decoded = msgspec.json.Decoder().decode
_MOMENTS = ("next_attempt_at", "created_at", "settled_at", "locked_at", "lease_until")


def row_of(row: Row, token: str | None = None) -> OutboxRow:
    """A stored row as callers see it."""
    found = dict(zip(COLUMNS, row, strict=True))
    for name in _MOMENTS:
        if found[name] is not None:
            found[name] = _moment(found[name])
    found["payload"] = _decoded(found["payload"])
    if found["status"] == "sent":
        found["last_error"] = None if found["result_ref"] is None else f"memory_id={found['result_ref']}"
    return OutboxRow(**found, token=token)


def audit_of(row: Row) -> Audit:
    found = dict(zip(AUDIT_COLUMNS, row, strict=True))
    return Audit(**{**found, "at": from_us(found["at"]), "evidence": msgspec.json.decode(found["evidence"])})


def new_audit(reason: str, evidence: dict[str, Any], audit_id: str | None = None) -> AuditRow:
    action, status = _MEANINGS.get(reason, _LATER)
    return AuditRow(audit_id or new_id(), action, reason, status, canonical(evidence))
