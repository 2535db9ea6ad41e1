"""Who is measured: what each side needs, what it can do, and where its durable work can be counted."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

DONE, CREATED, EVENTS = "done", "created", "events"


@dataclass(frozen=True)
class Side:
    """One contender. `counts` are the questions its own tables answer; what is not on disk is not counted."""

    name: str
    title: str
    module: str
    scenarios: frozenset[str]
    counts: Mapping[str, str] = field(default_factory=dict)
    mode: str = ""
    packages: tuple[str, ...] = ()
    """Pinned; none where our own environment serves."""
    npm: tuple[str, ...] = ()
    rate_guess: int = 1_000
    """No-op runs a second, roughly: how much work a slice needs so that it does not run dry."""
    warm_s: float = 0.0
    """What it needs beyond the others before it is warm."""
    database: str = "postgres"
    """Where it keeps its tables, unless a scenario says otherwise."""
    note: str = ""

    def question(self, counted: str, kind: str, *, has_schemas: bool = True) -> str:
        """What to ask its tables; some count differently for some work."""
        sql = self.counts.get(f"{counted}:{kind}", self.counts[counted])
        return sql if has_schemas else re.sub(r"FROM \w+\.", "FROM ", sql)


def _on(text: str) -> frozenset[str]:
    return frozenset(text.split())


_NEW = "run_id >= '01'"
"""Not of a copied history (`growing.py`), whose ids begin with the number of the copy: to count a million finished runs
while a side works takes a core away from it for half a second."""
HOLDFAST = Side(
    "holdfast",
    "Holdfast",
    "benchmarks.peers.holdfast",
    _on(
        "A A2 A2-held A-live B B2 W2 enqueue batch fan-out C C-warm C-here C-here-warm idle D D-live E-0 E-100k E-1m"
        " E-old F-A F-B slow SSE-live SSE-1000"
    ),
    counts={
        DONE: f"SELECT count(*) FROM holdfast.runs WHERE status = 'done' AND {_NEW}",
        f"{DONE}:fan_out": "SELECT count(*) FROM holdfast.runs WHERE status = 'done' AND clog_id = 'leaf'",
        CREATED: "SELECT count(*) FROM holdfast.runs",
        EVENTS: "SELECT coalesce(max(rev), 0) FROM holdfast.runs",
    },
    rate_guess=12_000,
)
_RAW = {
    DONE: f"SELECT count(*) FROM runs WHERE status = 'done' AND {_NEW}",
    CREATED: "SELECT count(*) FROM runs",
    EVENTS: "SELECT coalesce(max(rev), 0) FROM runs",
}
RAW_EACH = Side(
    "raw_each",
    "raw, 1 tx per transition",
    "benchmarks.peers.raw_postgres",
    _on("A A2 A-live B enqueue C C-warm D slow"),
    counts=_RAW,
    mode="each",
    rate_guess=12_000,
)
RAW_GROUP = Side(
    "raw_group",
    "raw, group commit",
    "benchmarks.peers.raw_postgres",
    _on("A A2 A-live B B2 enqueue batch C C-warm D E-0 E-100k E-1m E-old slow"),
    counts=_RAW,
    mode="group",
    rate_guess=40_000,
)
RAW_SQLITE_EACH = Side(
    "raw_sqlite_each",
    "raw SQLite, 1 tx per transition",
    "benchmarks.peers.raw_sqlite",
    _on("F-A F-B"),
    counts=_RAW,
    mode="each",
    rate_guess=4_000,
    database="sqlite",
)
RAW_SQLITE_GROUP = Side(
    "raw_sqlite_group",
    "raw SQLite, group commit",
    "benchmarks.peers.raw_sqlite",
    _on("F-A F-B"),
    counts=_RAW,
    mode="group",
    rate_guess=100_000,
    database="sqlite",
)

DBOS = Side(
    "dbos",
    "DBOS",
    "benchmarks.peers.dbos",
    _on("A A2 A-live B enqueue batch fan-out C C-here idle D D-live F-A F-B slow"),
    counts={
        DONE: "SELECT count(*) FROM dbos.workflow_status WHERE status = 'SUCCESS'",
        f"{DONE}:fan_out": "SELECT count(*) FROM dbos.workflow_status WHERE status = 'SUCCESS' AND name = 'leaf'",
        CREATED: "SELECT count(*) FROM dbos.workflow_status",
        EVENTS: "SELECT count(*) FROM dbos.streams",
    },
    packages=("dbos==3.3.0",),
    rate_guess=600,
    warm_s=1.5,
)
ABSURD = Side(
    "absurd",
    "Absurd",
    "benchmarks.peers.absurd",
    _on("A A2 A-live B enqueue batch fan-out C idle slow"),
    counts={
        DONE: "SELECT count(*) FROM absurd.t_default WHERE state = 'completed'",
        f"{DONE}:fan_out": "SELECT count(*) FROM absurd.t_default WHERE state = 'completed' AND task_name = 'leaf'",
        CREATED: "SELECT count(*) FROM absurd.t_default",
    },
    packages=("absurd-sdk==0.5.1", "absurdctl==0.5.1"),
    rate_guess=1_600,
)
PROCRASTINATE = Side(
    "procrastinate",
    "procrastinate",
    "benchmarks.peers.procrastinate",
    _on("A A2 A-live enqueue batch C idle"),
    counts={
        DONE: "SELECT count(*) FROM procrastinate_jobs WHERE status = 'succeeded'",
        CREATED: "SELECT count(*) FROM procrastinate_jobs",
    },
    packages=("procrastinate==3.10.0", "psycopg[binary]==3.3.8"),
    rate_guess=800,
)
PGQUEUER = Side(
    "pgqueuer",
    "PgQueuer",
    "benchmarks.peers.pgqueuer",
    _on("A A2 A-live enqueue batch C idle E-0 E-100k E-1m E-old"),
    counts={
        DONE: "SELECT count(*) FROM pgqueuer_log WHERE status = 'successful'",
        CREATED: "SELECT count(*) FROM pgqueuer",
    },
    packages=("pgqueuer[asyncpg]==1.6.0", "uvloop==0.23.0"),
    rate_guess=25_000,
)
RESTATE = Side(
    "restate",
    "Restate",
    "benchmarks.peers.restate",
    _on("A A-live B enqueue fan-out C"),
    counts={
        DONE: "SELECT count(*) AS n FROM sys_invocation WHERE status = 'completed'",
        f"{DONE}:fan_out": "SELECT count(*) AS n FROM sys_invocation "
        "WHERE status = 'completed' AND target_handler_name = 'leaf'",
        CREATED: "SELECT count(*) AS n FROM sys_invocation",
    },
    packages=("restate-sdk==1.2.0", "hypercorn==0.18.0", "httpx==0.28.1"),
    npm=("@restatedev/restate-server@1.7.12",),
    rate_guess=2_000,
    warm_s=1.5,
    database="restate",
    note="keeps its own log on the same disk, not Postgres",
)
_STEP_OF = "(metadata->>'step')::int"
_LANGGRAPH = ("langgraph==1.2.20", "langgraph-checkpoint-postgres==3.2.0", "langgraph-checkpoint-sqlite==3.1.2")
LANGGRAPH = Side(
    "langgraph",
    "LangGraph",
    "benchmarks.peers.langgraph",
    _on("A B"),
    counts={
        DONE: f"SELECT count(*) FROM checkpoints WHERE {_STEP_OF} = 1",
        f"{DONE}:steps": f"SELECT count(*) FROM checkpoints WHERE {_STEP_OF} = 3",
    },
    packages=(*_LANGGRAPH, "psycopg[binary,pool]==3.3.8"),
    rate_guess=100_000,
    warm_s=1.0,
    note="has no queue: what it runs it was called with",
)
LANGGRAPH_SQLITE = replace(
    LANGGRAPH,
    name="langgraph_sqlite",
    scenarios=_on("F-A F-B"),
    counts={
        DONE: "SELECT count(*) FROM checkpoints WHERE json_extract(metadata, '$.step') = 1",
        f"{DONE}:steps": "SELECT count(*) FROM checkpoints WHERE json_extract(metadata, '$.step') = 3",
    },
    database="sqlite",
)
HUEY = Side(
    "huey",
    "huey",
    "benchmarks.peers.huey",
    _on("F-A"),
    counts={DONE: "SELECT count(*) FROM kv"},
    packages=("huey==3.5.4",),
    rate_guess=2_000,
    database="sqlite",
)
DRAWING = Side("plots", "plots", "benchmarks.plots", frozenset(), packages=("matplotlib==3.11.2",))
"""No contender: what draws the plots. It has an environment of its own too, since nothing else needs it."""

SIDES = {
    side.name: side
    for side in (
        HOLDFAST,
        RAW_EACH,
        RAW_GROUP,
        DBOS,
        ABSURD,
        PROCRASTINATE,
        PGQUEUER,
        RESTATE,
        LANGGRAPH,
        RAW_SQLITE_EACH,
        RAW_SQLITE_GROUP,
        LANGGRAPH_SQLITE,
        HUEY,
    )
}
