"""The inbox and its clock cost what is asked: twenty thousand runs that ask nothing do not make them dearer."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from typing import Any

import asyncpg
import pytest

from holdfast import Holdfast
from holdfast.audit.boundaries import asking
from holdfast.runtime.listing import cursor_at
from holdfast.store import Timers
from tests.contract.test_postgres_specifics import nodes
from tests.worker.test_claim_cost import RUNS, SERIES

MANY = 20_000
OPEN = 40
PAGE = 20
STEPS_EACH = 25
"""Of SQLite's machine, for each open question."""
ASKS = """
    UPDATE {s}runs SET status = 'paused', boundary_step = 'go', boundary_kind = 'approval', boundary_rev = 2,
        boundary_expires_at = created_at + 1000000000, boundary_occurrence = 0, boundary_flow = 0, boundary_shown = 'x',
        boundary_proposal = run_id
    WHERE run_id LIKE 'asks-%'
"""
Question = tuple[str, tuple[Any, ...]]
QUESTIONS: dict[str, Callable[[Holdfast], Awaitable[Any]]] = {
    "inbox": lambda hf: hf.approvals(limit=PAGE),
    "of a clog": lambda hf: hf.approvals(clog_id="chat", limit=PAGE),
    "of a session": lambda hf: hf.approvals(session_id="s", limit=PAGE),
    "of a user": lambda hf: hf.as_user("u").approvals(limit=PAGE),
    "with pauses": lambda hf: hf.approvals(kind=None, limit=PAGE),
    "second page": lambda hf: hf.approvals(limit=PAGE, cursor=cursor_at(20, "asks-20")),
    "about a proposal": lambda hf: asking(hf.journal.store, "asks-20", None),
    "about a user's proposal": lambda hf: asking(hf.journal.store, "asks-20", "u"),
    "next expiry": lambda hf: hf.journal.store.next_timers(),
    "expired": lambda hf: hf.journal.sweep(),
}


def crowd(dialect: str, prefix: str) -> list[str]:
    """Runs that are over, younger than those that ask: a list by age comes to them first."""
    told = {"s": prefix, "rev": 3, "finished": "NULL"}
    series = {count: SERIES[dialect].format(count=count) for count in (OPEN, MANY)}
    over = RUNS.format(**told, series=series[MANY], name="over", status="done").replace(
        "1, i, 'done'", f"1, i + {MANY}, 'done'"
    )
    asks = RUNS.format(**told, series=series[OPEN], name="asks", status="paused")
    return [f"INSERT INTO {prefix}sessions (session_id, user_id) VALUES ('s', 'u')", over, asks, ASKS.format(s=prefix)]


async def asked(hf: Holdfast, ask: Callable[[Holdfast], Awaitable[Any]], monkeypatch: pytest.MonkeyPatch) -> Question:
    """The statement about open questions that this call sends."""
    sent: list[Question] = []
    fetch = hf.journal.store.fetch

    async def heard(sql: str, *params: Any) -> Any:
        if "boundary" not in sql:
            return await fetch(sql, *params)
        sent.append((sql, params))
        return [(1, *[None] * (len(Timers._fields) - 1))] if "min(" in sql else []

    with monkeypatch.context() as patch:
        patch.setattr(hf.journal.store, "fetch", heard)
        await ask(hf)
    return sent[-1]


class TestSQLite:
    @pytest.fixture
    def configuration(self) -> str:
        return "file"

    async def test_a_crowd_costs_no_step(
        self, hf: Holdfast, database_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        questions = {name: await asked(hf, ask, monkeypatch) for name, ask in QUESTIONS.items()}
        with closing(sqlite3.connect(database_url)) as connection:
            for statement in crowd("sqlite", ""):
                connection.execute(statement)
            steps = {name: self._steps(connection, *question) for name, question in questions.items()}

        print(steps)
        assert all(taken < STEPS_EACH * OPEN for taken in steps.values()), steps

    def _steps(self, connection: sqlite3.Connection, sql: str, params: tuple[Any, ...]) -> int:
        steps = 0

        def step() -> int:
            nonlocal steps
            steps += 1
            return 0

        text = sql.format(s="")
        plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {text}", params)]
        assert not [line for line in plan if "TEMP B-TREE" in line or line == "SCAN runs"], plan
        connection.set_progress_handler(step, 1)
        connection.execute(text, params).fetchall()
        connection.set_progress_handler(None, 1)
        return steps


class TestPostgres:
    @pytest.fixture
    def configuration(self) -> str:
        return "postgres"

    @pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
    async def test_a_crowd_costs_no_row(
        self, hf: Holdfast, postgres_url: str, schema: str, mode: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        questions = {name: await asked(hf, ask, monkeypatch) for name, ask in QUESTIONS.items()}
        connection = await asyncpg.connect(postgres_url)
        try:
            await connection.execute("SET session_replication_role = replica")
            for statement in crowd("postgres", f'"{schema}".'):
                await connection.execute(statement)
            await connection.execute(f'ANALYZE "{schema}".runs')
            await connection.execute(f"SET plan_cache_mode = {mode}")
            read = {name: await self._rows(connection, schema, *asked) for name, asked in questions.items()}
        finally:
            await connection.close()

        print(mode, read)
        assert all(rows <= OPEN for rows in read.values()), read

    async def _rows(self, connection: Any, schema: str, sql: str, params: tuple[Any, ...]) -> int:
        text = sql.format(s=f'"{schema}".')
        explained = json.loads((await connection.fetch(f"EXPLAIN (ANALYZE, FORMAT JSON) {text}", *params))[0][0])
        scans = [node for node in nodes(explained[0]["Plan"]) if "Scan" in node["Node Type"]]
        assert not [n for n in scans if (n["Node Type"], n.get("Relation Name")) == ("Seq Scan", "runs")], explained
        return sum(int(node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) for node in scans)
