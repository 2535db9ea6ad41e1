"""The tables as data: names, keys, columns. Both databases build their row writes from this one description.

Every table here but those of `FACTS` is an index of `journal`, written in the same commit and rebuildable from it.
A *moment* column holds microseconds; a negative one is counted from the commit's own instant (see `moment`).
"""

from __future__ import annotations

import msgspec

PENDING = -(1 << 62)
"""What a time is counted from while its commit has no instant yet."""


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """One table. `columns` maps each name to its Postgres type, keys first; row tuples follow that order."""

    name: str
    key: tuple[str, ...]
    columns: dict[str, str]
    moments: frozenset[str] = frozenset()
    insert_only: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.columns)

    @property
    def values(self) -> tuple[str, ...]:
        return tuple(name for name in self.columns if name not in self.key)


def moment(value: int | None, at: int) -> int | None:
    """The instant that a moment column means, once the commit's instant is known."""
    return value if value is None or value >= 0 else value - PENDING + at


RUN_FIXED: dict[str, str] = {
    "run_id": "text",
    "session_id": "text",
    "user_id": "text",
    "clog_id": "text",
    "queue": "text",
    "mode": "text",
    "lane": "text",
    "priority": "int",
    "max_attempts": "int",
    "backoff_us": "bigint",
    "backoff_max_us": "bigint",
    "max_deliveries": "int",
    "resumable": "int",
    "parent_run_id": "text",
    "created_at": "bigint",
}
RUN_MOVING: dict[str, str] = {
    "spoken": "int",
    "status": "text",
    "rev": "int",
    "at": "bigint",
    "input_rev": "int",
    "wake_at": "bigint",
    "attempt": "int",
    "deliveries": "int",
    "output_rev": "int",
    "ended_rev": "int",
    "last_error": "text",
    "error_kind": "text",
    "cancel_requested_at": "bigint",
    "started_at": "bigint",
    "finished_at": "bigint",
    "boundary_step": "text",
    "boundary_kind": "text",
    "boundary_rev": "int",
    "boundary_expires_at": "bigint",
    "boundary_occurrence": "int",
    "boundary_flow": "int",
    "boundary_shown": "text",
    "boundary_proposal": "text",
    "flow": "int",
    "definition": "text",
    "definition_rev": "int",
    "undoing": "int",
}
BORN = slice(tuple(RUN_MOVING).index("attempt"))
"""What a creation sets. After it a new run has the values of `UNTOUCHED`."""
PLAIN = slice(tuple(RUN_MOVING).index("status"), tuple(RUN_MOVING).index("boundary_step"))
"""What most commits change. What stands before it and after it most leave as it is."""
ALL = slice(None)
"""The whole of it."""
UNTOUCHED = tuple(
    0 if name in ("attempt", "deliveries", "flow", "undoing") else None for name in tuple(RUN_MOVING)[BORN.stop :]
)
RUNS = Table(
    name="runs",
    key=("run_id",),
    columns={**RUN_FIXED, **RUN_MOVING},
    moments=frozenset(
        {
            "at",
            "created_at",
            "wake_at",
            "cancel_requested_at",
            "started_at",
            "finished_at",
            "boundary_expires_at",
        }
    ),
)

WORK = Table(
    name="work",
    key=("run_id", "key"),
    columns={
        "run_id": "text",
        "key": "text",
        "queue": "text",
        "clog_id": "text",
        "priority": "int",
        "step": "text",
        "visible_at": "bigint",
        "waiting": "int",
        "attempt": "int",
        "deliveries": "int",
        "input_rev": "int",
        "owner_id": "text",
        "claim_id": "text",
        "claim_token_hash": "text",
        "lease_until": "bigint",
        "blocked": "int",
        "awaits": "text",
    },
    moments=frozenset({"visible_at", "lease_until"}),
)
TICKS = Table(
    name="ticks",
    key=("tick_id",),
    columns={
        "tick_id": "text",
        "run_id": "text",
        "key": "text",
        "claimed_rev": "int",
        "started_at": "bigint",
        "outcome": "text",
        "result_digest": "text",
        "settled_rev": "int",
        "spent": "text",
        "kept": "text",
    },
    moments=frozenset({"started_at"}),
)
UNBOUND = (WORK.name, TICKS.name)
"""Tables of a run's rows that do not go by themselves when the run's own row goes."""
SIGNALS = Table(
    name="signals",
    key=("run_id", "seq"),
    columns={
        "run_id": "text",
        "seq": "int",
        "signal_id": "text",
        "name": "text",
        "has_input": "int",
        "tick_id": "text",
    },
)
CHILDREN = Table(
    name="children",
    key=("run_id", "child_run_id"),
    columns={
        "run_id": "text",
        "child_run_id": "text",
        "clog_id": "text",
        "child_key": "text",
        "step": "text",
        "started_rev": "int",
        "status": "text",
        "finished_rev": "int",
        "on_cancel": "text",
    },
)
RUNNABLES = Table(
    name="runnables",
    key=("run_id", "key"),
    columns={
        "run_id": "text",
        "key": "text",
        "step": "text",
        "planned_rev": "int",
        "scheduled_rev": "int",
        "intent_digest": "text",
        "status": "text",
        "result_digest": "text",
        "result_rev": "int",
        "applied_rev": "int",
        "skipped": "int",
        "map_key": "text",
        "items": "int",
        "next_item": "int",
        "remaining": "int",
    },
)
ANOMALIES = Table(
    name="anomalies",
    key=("run_id", "reason", "claim_id"),
    columns={
        "run_id": "text",
        "reason": "text",
        "claim_id": "text",
        "entry_kind": "text",
        "rev": "int",
        "runnable_key": "text",
        "step": "text",
    },
)
KEYS = Table(
    name="keys",
    key=("scope", "key"),
    columns={
        "scope": "text",
        "key": "text",
        "body_digest": "text",
        "run_id": "text",
        "rev": "int",
    },
    # Two callers with one key must collide, never overwrite each other.
    insert_only=True,
)
HANDOFFS = Table(
    name="handoffs",
    key=("target_run_id", "source_run_id", "kind"),
    columns={
        "target_run_id": "text",
        "source_run_id": "text",
        "kind": "text",
        "rev": "int",
    },
)

STEPS = Table(
    name="steps",
    key=("run_id", "name", "occurrence"),
    columns={
        "run_id": "text",
        "name": "text",
        "occurrence": "int",
        "rev": "int",
        "status": "text",
        "attempt": "int",
    },
)
TOOLS = Table(
    name="tools",
    key=("run_id", "slot"),
    columns={
        "run_id": "text",
        "slot": "text",
        "tool_key": "text",
        "name": "text",
        "args_sha256": "text",
        "vendor": "text",
        "parent_id": "text",
        "status": "text",
        "rev": "int",
        "asked_at": "bigint",
        "tries": "int",
        "calls": "int",
        "kept": "int",
    },
    moments=frozenset({"asked_at"}),
)
RUN_STORAGE = Table(
    name="run_storage",
    key=("run_id", "clog_id", "tick_id", "row_id"),
    columns={
        "run_id": "text",
        "clog_id": "text",
        "tick_id": "text",
        "row_id": "text",
        "rev": "int",
        "at": "bigint",
        "value": "text",
    },
    moments=frozenset({"at"}),
)
SHARED_STORAGE = Table(
    name="shared_storage",
    key=("name",),
    columns={
        "name": "text",
        "session_id": "text",
        "run_id": "text",
        "rev": "int",
        "value": "text",
    },
)
LANE_TICKETS = Table(
    name="lane_tickets",
    key=("run_id",),
    columns={
        "run_id": "text",
        "session_id": "text",
        "lane": "text",
        "at": "bigint",
        "rev": "int",
        "held": "int",
    },
    moments=frozenset({"at"}),
)
OUTBOX = Table(
    name="outbox",
    key=("outbox_id",),
    columns={
        "outbox_id": "text",
        "run_id": "text",
        "user_id": "text",
        "target_space": "text",
        "payload": "text",
        "payload_sha": "text",
        "idempotency_key": "text",
        "status": "text",
        "retry_count": "int",
        "next_attempt_at": "bigint",
        "created_at": "bigint",
        "settled_at": "bigint",
        "last_error": "text",
        "told": "int",
    },
    moments=frozenset({"next_attempt_at", "created_at", "settled_at"}),
    insert_only=True,
)
TURNS = Table(
    name="turns",
    key=("id", "validity", "asserted"),
    columns={
        "id": "text",
        "validity": "bigint",
        "asserted": "int",
        "created": "bigint",
        "digest": "text",
        "user_id": "text",
        "parent_id": "text",
        "message_id": "text",
        "kind": "text",
        "content": "text",
        "thread_id": "text",
    },
    insert_only=True,
)
TOOL_CALLS = Table(
    name="tool_calls",
    key=("request_id", "call_id", "validity", "asserted"),
    columns={
        "request_id": "text",
        "call_id": "text",
        "validity": "bigint",
        "asserted": "int",
        "created": "bigint",
        "digest": "text",
        "user_id": "text",
        "run_id": "text",
        "parent_id": "text",
        "vendor": "text",
        "tool_name": "text",
        "args_sha256": "text",
        "arguments_json": "text",
        "status": "text",
        "started_at": "bigint",
        "ended_at": "bigint",
        "latency_ms": "bigint",
        "outcome_sha256": "text",
        "outcome_json": "text",
        "error_kind": "text",
        "error_msg": "text",
    },
    moments=frozenset({"validity", "created", "started_at", "ended_at"}),
    insert_only=True,
)
PROPOSALS = Table(
    name="proposals",
    key=("request_id", "validity", "asserted"),
    columns={
        "request_id": "text",
        "validity": "bigint",
        "asserted": "int",
        "created": "bigint",
        "digest": "text",
        "user_id": "text",
        "diffs_json": "text",
        "confidence": "double precision",
        "status": "text",
        "actor": "text",
        "decided_at": "bigint",
        "applied_at": "bigint",
        "commit_hash": "text",
        "results_json": "text",
        "error_msg": "text",
    },
    insert_only=True,
)
FACTS: dict[str, Table] = {table.name: table for table in (TURNS, TOOL_CALLS, PROPOSALS)}
"""Tables of facts with validity. They are no index: nothing updates a row, and a row is the truth."""

TOMBSTONES = Table(
    name="tombstones",
    key=("run_id",),
    columns={
        "run_id": "text",
        "session_id": "text",
        "user_id": "text",
        "rev": "int",
        "at": "bigint",
    },
    moments=frozenset({"at"}),
)

INDEXES: dict[str, Table] = {
    table.name: table
    for table in (
        WORK,
        TICKS,
        SIGNALS,
        CHILDREN,
        RUNNABLES,
        ANOMALIES,
        KEYS,
        HANDOFFS,
        STEPS,
        TOOLS,
        RUN_STORAGE,
        SHARED_STORAGE,
        LANE_TICKETS,
        OUTBOX,
        TOOL_CALLS,
        TOMBSTONES,
    )
}
"""Tables that a member of a commit may put rows into or drop rows from, besides its own row in `runs`."""
