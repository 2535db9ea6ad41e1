"""Rows that were lost, made again from the journal's entry and from what the audits say became of them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from holdfast.moments import to_us
from holdfast.outbox.records import DEAD, DEDUP_HIT, RETRY, SUCCESS
from holdfast.store import Row, Store
from holdfast.store.tables import OUTBOX

_AUDITS = "SELECT reason, at, evidence FROM {s}outbox_audits WHERE outbox_id = $1 ORDER BY at, audit_id"
_ADDED = ("result_ref", "error_kind")
_PUT = f"""
    INSERT INTO {{s}}outbox ({", ".join((*OUTBOX.names, *_ADDED))})
    VALUES ({", ".join(f"${place}" for place in range(1, len(OUTBOX.names) + len(_ADDED) + 1))})
    ON CONFLICT DO NOTHING
"""
_CORRECT = """
    UPDATE {s}outbox SET run_id = $2, target_space = $3, payload = $4, payload_sha = $5 WHERE outbox_id = $1
"""


async def restore(store: Store[Any], asked: Row) -> None:
    """Put back a row that an entry asked for. Unless an audit tells of its end it is due again, with its key."""
    row = dict(zip(OUTBOX.names, asked, strict=True)) | dict.fromkeys(_ADDED)
    for reason, at, text in await store.fetch(_AUDITS, row["outbox_id"]):
        _follow(row, reason, at, msgspec.json.decode(text))
    await store.execute((_PUT, tuple(row.values())))


async def correct(store: Store[Any], asked: Row) -> None:
    """Make a row say what its entry says; what became of it stays."""
    row = dict(zip(OUTBOX.names, asked, strict=True))
    names = ("outbox_id", "run_id", "target_space", "payload", "payload_sha")
    await store.execute((_CORRECT, tuple(row[name] for name in names)))


async def drop(store: Store[Any], outbox_id: str) -> None:
    """Remove a row that no entry asked for."""
    await store.execute(("DELETE FROM {s}outbox WHERE outbox_id = $1", (outbox_id,)))


def _follow(row: dict[str, Any], reason: str, at: int, evidence: dict[str, Any]) -> None:
    if reason in (SUCCESS, DEDUP_HIT):
        row.update(status="sent", settled_at=at, result_ref=evidence.get("memory_id"))
    elif reason in (DEAD, RETRY):
        row.update(last_error=evidence.get("error"), error_kind=evidence.get("error_kind"))
    if reason == DEAD:
        # Whether its run was told is in the run's own entries, which were not lost.
        row.update(status="dead", settled_at=at, told=1)
    if reason == RETRY:
        due_at = to_us(datetime.fromisoformat(evidence["next_attempt_at"]))
        row.update(retry_count=evidence["retry_count"], next_attempt_at=due_at)
