"""The texts of the outbox's own statements: claim, renew, settle, and what they are told in batches.

A batch is one JSON list (`$1`), because both databases can read that as rows. Whoever holds a row is judged in the
statement that writes: pending, the same holder, the same token if one is given, and a lease that still runs.
"""

from __future__ import annotations

from typing import NamedTuple

from holdfast.store.types import Change

COLUMNS = (
    *("outbox_id", "run_id", "user_id", "target_space", "payload", "payload_sha", "idempotency_key", "status"),
    *("retry_count", "max_retries", "next_attempt_at", "created_at", "settled_at", "locked_by", "locked_at"),
    *("lease_until", "deliveries", "attempts_made", "last_error", "error_kind", "result_ref", "requeued_from"),
)
AUDIT_COLUMNS = ("audit_id", "outbox_id", "at", "action", "reason", "status", "evidence")

_HELD = {"outbox_id": "text", "worker_id": "text", "token_hash": "text"}
_RENEWED = {**_HELD, "begins": "bigint"}
_TOLD = {"audit_id": "text", "action": "text", "reason": "text", "audit_status": "text", "evidence": "text"}
_SETTLED = {
    **_HELD,
    "status": "text",
    "counted": "bigint",
    "next_attempt_at": "bigint",
    "error": "text",
    "error_kind": "text",
    "result_ref": "text",
    **_TOLD,
}


class Renewal(NamedTuple):
    """A row whose lease begins anew. `begins`: 1 if a delivery is about to begin."""

    outbox_id: str
    worker_id: str
    token_hash: str | None
    begins: int = 0


class AuditRow(NamedTuple):
    """What became of a try. `evidence` is JSON."""

    audit_id: str
    action: str
    reason: str
    status: str
    evidence: str


class Settlement(NamedTuple):
    """How a holder lets go of a row: sent, dead, or pending again (`counted` 1 for a failed try)."""

    outbox_id: str
    worker_id: str
    token_hash: str | None
    status: str
    counted: int = 0
    next_attempt_at: int | None = None
    error: str | None = None
    error_kind: str | None = None
    result_ref: str | None = None
    audit: AuditRow | None = None
    claim_id: str | None = None

    def flat(self) -> list[object]:
        return [*self[: len(_SETTLED) - len(_TOLD)], *(self.audit or (None,) * len(_TOLD))]


def _sqlite_rows(columns: dict[str, str]) -> str:
    fields = ", ".join(f"json_extract(e.value, '$[{place}]') AS {name}" for place, name in enumerate(columns))
    return f"x AS (SELECT {fields} FROM json_each($1) AS e)"


def _postgres_rows(columns: dict[str, str]) -> str:
    named = enumerate(columns.items())
    fields = ", ".join(f"CAST(e.value ->> {place} AS {kind}) AS {name}" for place, (name, kind) in named)
    return f"x AS MATERIALIZED (SELECT {fields} FROM json_array_elements(CAST($1 AS json)) AS e (value))"


# At most `$1` rows in the order of due time, age and arrival; of twins the first. Leases last as their holders said.
CLAIM = """
    WITH t AS MATERIALIZED (SELECT {now} AS now),
    due AS MATERIALIZED (
        SELECT o.outbox_id, o.target_space, o.payload_sha, o.next_attempt_at, o.created_at, o.seq
        FROM {s}outbox o
        WHERE o.status = 'pending'
          AND o.next_attempt_at <= (SELECT now FROM t)
          AND (o.lease_until IS NULL OR o.lease_until <= (SELECT now FROM t))
          AND NOT EXISTS (
              SELECT 1 FROM {s}outbox twin
              WHERE twin.target_space = o.target_space AND twin.payload_sha = o.payload_sha
                AND twin.locked_by IS NOT NULL AND twin.outbox_id <> o.outbox_id
          )
          {spaces}
        ORDER BY o.next_attempt_at, o.created_at, o.seq
        LIMIT $1
        {skip_locked}
    ),
    numbered AS (
        SELECT outbox_id, row_number() OVER (
            PARTITION BY target_space, payload_sha ORDER BY next_attempt_at, created_at, seq
        ) AS twin
        FROM due
    )
    UPDATE {s}outbox
    SET locked_by = $2, locked_at = (SELECT now FROM t), lease_us = $3, lease_until = (SELECT now FROM t) + $3,
        claim_id = $4, claim_token_hash = $5, deliveries = deliveries + 1
    WHERE outbox_id IN (SELECT outbox_id FROM numbered WHERE twin = 1)
    RETURNING next_attempt_at, created_at, seq, {columns}
"""

_FENCE = """
    o.outbox_id = x.outbox_id AND o.status = 'pending' AND o.locked_by = x.worker_id
    AND (x.token_hash IS NULL OR o.claim_token_hash = x.token_hash)
    AND o.lease_until > {clock}
"""
_SET = """
    status = x.status,
    retry_count = retry_count + x.counted,
    next_attempt_at = coalesce(x.next_attempt_at, o.next_attempt_at),
    last_error = coalesce(x.error, o.last_error),
    error_kind = coalesce(x.error_kind, o.error_kind),
    result_ref = x.result_ref,
    settled_at = CASE WHEN x.status = 'pending' THEN NULL ELSE {clock} END,
    locked_by = NULL,
    locked_at = NULL,
    lease_us = NULL,
    lease_until = NULL,
    claim_token_hash = NULL
"""
_RENEWAL = """
    locked_at = {clock}, lease_until = {clock} + lease_us, attempts_made = attempts_made + x.begins
"""
# In one order, so that two batches with the same rows never wait for each other in a ring. The rest of the statement
# looks at this list alone: two lists that are joined would cost the product of their lengths.
_LOCKED = """l AS MATERIALIZED (
        SELECT x.*
        FROM x
        JOIN {s}outbox o ON o.outbox_id = ANY (ARRAY[x.outbox_id])
        ORDER BY o.outbox_id
        FOR UPDATE OF o
    )"""
RENEW = Change(
    sqlite=(
        f"""
        WITH {_sqlite_rows(_RENEWED)}
        UPDATE outbox AS o SET {_RENEWAL.format(clock="{now}")}
        FROM x
        WHERE {_FENCE.format(clock="{now}")}
        RETURNING outbox_id
        """,
    ),
    postgres=f"""
        WITH t AS MATERIALIZED (SELECT {{now}} AS now),
        {_postgres_rows(_RENEWED)},
        {_LOCKED}
        UPDATE {{s}}outbox AS o SET {_RENEWAL.format(clock="(SELECT now FROM t)")}
        FROM l AS x
        WHERE {_FENCE.format(clock="(SELECT now FROM t)")}
        RETURNING o.outbox_id
    """,
)

_AUDITS = f"INSERT INTO {{s}}outbox_audits ({', '.join(AUDIT_COLUMNS)})"
_SQLITE_SETTLED = f"""
    WITH {_sqlite_rows(_SETTLED)}
    UPDATE outbox AS o SET {_SET.format(clock="{now}")}
    FROM x
    WHERE {_FENCE.format(clock="{now}")}
    RETURNING outbox_id
"""
_POSTGRES_SETTLED = f"""
    WITH t AS MATERIALIZED (SELECT {{now}} AS now),
    {_postgres_rows(_SETTLED)},
    {_LOCKED},
    u AS (
        UPDATE {{s}}outbox AS o SET {_SET.format(clock="(SELECT now FROM t)")}
        FROM l AS x
        WHERE {_FENCE.format(clock="(SELECT now FROM t)")}
        RETURNING o.outbox_id, x.audit_id, x.action, x.reason, x.audit_status, x.evidence
    )
"""
SETTLE = Change((_SQLITE_SETTLED,), f"{_POSTGRES_SETTLED} SELECT outbox_id FROM u")
SETTLE_AND_NOTE = Change(
    sqlite=(
        f"""
        WITH {_sqlite_rows(_SETTLED)}
        {_AUDITS}
        SELECT x.audit_id, x.outbox_id, {{now}}, x.action, x.reason, x.audit_status, x.evidence
        FROM x
        JOIN outbox o ON {_FENCE.format(clock="{now}")}
        WHERE x.audit_id IS NOT NULL
        ON CONFLICT DO NOTHING
        """,
        _SQLITE_SETTLED,
    ),
    postgres=f"""{_POSTGRES_SETTLED},
        a AS (
            {_AUDITS}
            SELECT audit_id, outbox_id, (SELECT now FROM t), action, reason, audit_status, evidence
            FROM u
            WHERE audit_id IS NOT NULL
            ON CONFLICT DO NOTHING
        )
        SELECT outbox_id FROM u
    """,
)

ENQUEUE = """
    INSERT INTO {s}outbox (
        outbox_id, user_id, target_space, payload, payload_sha, idempotency_key, max_retries, next_attempt_at,
        created_at
    )
    VALUES ($1, $2, $3, $4, $5, $6, $7, {now}, {now})
    ON CONFLICT DO NOTHING
    RETURNING outbox_id
"""
REQUEUE = """
    INSERT INTO {s}outbox (
        outbox_id, run_id, user_id, target_space, payload, payload_sha, max_retries, next_attempt_at, created_at,
        requeued_from
    )
    SELECT CAST($1 AS text), run_id, user_id, target_space, payload, payload_sha, max_retries, {now}, {now}, outbox_id
    FROM {s}outbox
    WHERE outbox_id = $2 AND status = 'dead'
    ON CONFLICT DO NOTHING
    RETURNING outbox_id
"""
FREE = """
    UPDATE {s}outbox
    SET locked_by = NULL, locked_at = NULL, lease_us = NULL, lease_until = NULL, claim_token_hash = NULL,
        claim_id = NULL, next_attempt_at = {now} + $3
    WHERE outbox_id = $1 AND status = 'pending' AND lease_until <= {now} AND locked_at <= {now} - $2
    RETURNING outbox_id
"""
NOTE = f"""
    {_AUDITS}
    VALUES ($1, $2, {{now}}, $3, $4, $5, $6)
    ON CONFLICT DO NOTHING
    RETURNING audit_id
"""


_OLD = """
    SELECT outbox_id FROM {s}outbox
    WHERE run_id IS NULL AND settled_at <= {now} - $1 AND user_id = coalesce(CAST($2 AS text), user_id)
    ORDER BY settled_at, outbox_id
    LIMIT $3
"""
_DROP_AUDITS = "DELETE FROM {s}outbox_audits WHERE outbox_id IN "
_DROP_ROWS = "DELETE FROM {s}outbox WHERE outbox_id IN "
FORGET = Change(
    sqlite=(f"{_DROP_AUDITS} ({_OLD})", f"{_DROP_ROWS} ({_OLD}) RETURNING outbox_id"),
    postgres=f"""
        WITH old AS MATERIALIZED ({_OLD}),
        a AS ({_DROP_AUDITS} (SELECT outbox_id FROM old))
        {_DROP_ROWS} (SELECT outbox_id FROM old)
        RETURNING outbox_id
    """,
)


def same(text: str) -> Change:
    """One text for both."""
    return Change((text,), text)
