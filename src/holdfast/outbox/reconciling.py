"""Put right what a crash, or a worker that keeps no audits, left behind; and the outbox in numbers.

Two things can be amiss: a row that is sent or dead without an audit that says so, and a lock that nobody came back for.
The second heals by itself, since an expired lease can be claimed; freeing it says so, and makes it visible.
"""

from __future__ import annotations

from typing import Any

from holdfast.identity import new_id
from holdfast.moments import from_us
from holdfast.outbox.leases import Leases
from holdfast.outbox.records import (
    DEAD,
    STALE,
    SUCCESS,
    OutboxReport,
    OutboxRow,
    ReconcileReport,
    new_audit,
    row_of,
)
from holdfast.store import Row, Store
from holdfast.store.outbox_sql import COLUMNS

WINDOW_S = 24 * 3_600
STALE_S = 600
BATCH = 100
SOURCE = "reconcile_outbox"
_SECOND = 1_000_000

_UNTOLD = f"""
    SELECT {", ".join(f"o.{name}" for name in COLUMNS)}
    FROM {{s}}outbox o
    WHERE o.settled_at >= $1
      AND (o.settled_at > $2 OR (o.settled_at = $2 AND o.outbox_id > $3))
      AND (CAST($5 AS text) IS NULL OR o.user_id = $5)
      AND NOT EXISTS (
          SELECT 1 FROM {{s}}outbox_audits a
          WHERE a.outbox_id = o.outbox_id
            AND a.reason IN ('outbox_flush_success', 'outbox_flush_dedup_hit', 'outbox_flush_dead')
      )
    ORDER BY o.settled_at, o.outbox_id
    LIMIT $4
"""
_STALE = f"""
    SELECT {", ".join(COLUMNS)}
    FROM {{s}}outbox
    WHERE locked_by IS NOT NULL AND status = 'pending' AND lease_until <= $1 AND locked_at <= $2 AND outbox_id > $3
      AND (CAST($5 AS text) IS NULL OR user_id = $5)
    ORDER BY outbox_id
    LIMIT $4
"""


async def reconcile(
    leases: Leases,
    store: Store[Any],
    *,
    report: bool,
    user_id: str | None = None,
    window_s: float = WINDOW_S,
    stale_s: float = STALE_S,
    delay_s: float = 0,
    batch: int = BATCH,
) -> ReconcileReport:
    """What ended within the window, and locks older than `stale_s`: found, and repaired unless only reported.

    With `user_id` only among the rows of that user.
    """
    now = await store.now()
    correlation_id = new_id()
    untold = await _untold(store, now - round(window_s * _SECOND), batch, user_id)
    stale = await _stale(store, now, now - round(stale_s * _SECOND), batch, user_id)
    fixed = 0
    if not report:
        for row in untold:
            reason = SUCCESS if row.status == "sent" else DEAD
            fixed += await leases.note(row.outbox_id, new_audit(reason, _evidence(row, correlation_id)))
        for row in stale:
            fixed += await _free(leases, store, row, correlation_id, stale_s=stale_s, delay_s=delay_s)
    return ReconcileReport(
        found=len(untold) + len(stale),
        fixed=fixed,
        missing_audits=tuple(row.outbox_id for row in untold),
        stale_locks=tuple(row.outbox_id for row in stale),
    )


async def _free(
    leases: Leases, store: Store[Any], row: OutboxRow, correlation_id: str, *, stale_s: float, delay_s: float
) -> bool:
    """True also if somebody took the row meanwhile: then its lock is no longer stale."""
    times = {"stale_us": round(stale_s * _SECOND), "delay_us": round(delay_s * _SECOND)}
    if await store.outbox.free(row.outbox_id, **times):
        await leases.note(row.outbox_id, new_audit(STALE, _evidence(row, correlation_id)))
    return True


async def _untold(store: Store[Any], since: int, batch: int, user_id: str | None) -> list[OutboxRow]:
    found: list[Row] = []
    at, outbox_id = -1, ""
    while page := await store.fetch(_UNTOLD, since, at, outbox_id, batch, user_id):
        found += page
        at, outbox_id = page[-1][COLUMNS.index("settled_at")], page[-1][0]
    return [row_of(row) for row in found]


async def _stale(store: Store[Any], now: int, locked_by: int, batch: int, user_id: str | None) -> list[OutboxRow]:
    found: list[Row] = []
    while page := await store.fetch(_STALE, now, locked_by, found[-1][0] if found else "", batch, user_id):
        found += page
    return [row_of(row) for row in found]


def _evidence(row: OutboxRow, correlation_id: str) -> dict[str, Any]:
    return {
        "outbox_id": row.outbox_id,
        "source": SOURCE,
        "correlation_id": correlation_id,
        "payload_sha": row.payload_sha,
        "target_space": row.target_space,
        "memory_id": row.result_ref,
        "retry_count": row.retry_count,
        "worker_id": row.locked_by,
        "attempt_id": None,
        "intended_action": "reconcile",
        "reconciled": True,
        "observed_status": row.status,
        "observed_locked_by": row.locked_by,
        "observed_last_error": row.last_error,
    }


async def report(store: Store[Any], user_id: str | None = None) -> OutboxReport:
    """Counts of now, of one moment each, of everybody's rows or of one user's."""
    mine, whose = ("1 = 1", ()) if user_id is None else ("user_id = $1", (user_id,))
    told = "1 = 1" if user_id is None else "outbox_id IN (SELECT outbox_id FROM {s}outbox WHERE user_id = $1)"

    async def counts(word: str, table: str, where: str) -> dict[str, int]:
        sql = f"SELECT {word}, count(*) FROM {{s}}{table} WHERE {where} GROUP BY {word}"
        return {str(found): int(count) for found, count in await store.fetch(sql, *whose)}

    held = f"SELECT count(*) FROM {{s}}outbox WHERE locked_by IS NOT NULL AND {mine}"
    first = f"SELECT min(created_at) FROM {{s}}outbox WHERE status = 'pending' AND {mine}"
    ((locked,),) = await store.fetch(held, *whose)
    ((oldest,),) = await store.fetch(first, *whose)
    return OutboxReport(
        statuses={"pending": 0, "sent": 0, "dead": 0, **await counts("status", "outbox", mine)},
        actions={"allow": 0, "redirect": 0, "reject": 0, **await counts("action", "outbox_audits", told)},
        reasons=await counts("reason", "outbox_audits", told),
        locked=locked,
        oldest_pending_at=None if oldest is None else from_us(oldest),
    )
