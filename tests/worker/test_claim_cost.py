"""A claim costs what there is to claim: a hundred thousand runs that are over, or asleep, do not make it dearer."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import asyncpg
import pytest

from holdfast import Holdfast
from holdfast.identity import hash_token
from holdfast.store import ClaimRequest
from holdfast.store.sqlite_claims import DUE as DUE_TEXT
from holdfast.store.sqlite_claims import LEVELS, claim
from tests.contract.test_postgres_specifics import claim_body, nodes

MANY = 100_000
DUE = 20
NOW = 1_000_000_000
CLAIMS = tuple(f"claim-{number}" for number in range(10))
REQUEST = ClaimRequest(
    ("default",), ("chat",), CLAIMS, tuple(map(hash_token, CLAIMS)), "worker", 30_000_000, due_by=None, passed=()
)

SERIES = {
    "sqlite": "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count})",
    "postgres": "WITH n (i) AS (SELECT generate_series(1, {count}))",
}
RUNS = """
    {series} INSERT INTO {s}runs (run_id, session_id, user_id, clog_id, queue, mode, priority, max_attempts, backoff_us,
        backoff_max_us, max_deliveries, resumable, created_at, status, rev, at, attempt, deliveries, finished_at)
    SELECT '{name}-' || i, 's', 'u', 'chat', 'default', 'tick', 0, 3, 1,
        1, 5, 1, i, '{status}', {rev}, i, 0, 0, {finished}
    FROM n
"""
WORK = """
    {series} INSERT INTO {s}work (run_id, key, queue, clog_id, priority, step, visible_at, waiting, attempt, deliveries)
    SELECT '{name}-' || i, '', 'default', 'chat', 0, '', {due}, 0, 0, 0 FROM n
"""
TICKS = """
    {series} INSERT INTO {s}ticks (tick_id, run_id, key, claimed_rev, started_at, outcome, settled_rev)
    SELECT 'tick-' || i, '{name}-' || i, '', 2, i, 'done', 3 FROM n
"""
JOURNAL = """
    {series} INSERT INTO {s}journal (thread, rev, kind, data, at, digest, commit_id)
    SELECT 'run:{name}-' || i, 1, 'event', '{{}}', i, {digest}, 1 FROM n
"""


def script(crowd: str, dialect: str, prefix: str) -> Iterator[str]:
    """Statements that leave a database with runs to claim, beside a crowd of others."""

    def text(template: str, name: str, count: int, **values: Any) -> str:
        digest = "'\\x00'::bytea" if dialect == "postgres" else "x'00'"
        defaults = {"status": "pending", "rev": 1, "finished": "NULL", "due": "i", "digest": digest}
        series = SERIES[dialect].format(count=count)
        return template.format(s=prefix, series=series, name=name, **{**defaults, **values})

    yield f"INSERT INTO {prefix}sessions (session_id, user_id) VALUES ('s', 'u')"
    if crowd == "finished":
        yield text(RUNS, "over", MANY, status="done", rev=3, finished="i")
        # They were work once; what they left in the indexes must not be in the way.
        yield text(WORK, "over", MANY)
        yield text(TICKS, "over", MANY)
        yield text(JOURNAL, "over", MANY)
        yield f"DELETE FROM {prefix}work"
    if crowd == "asleep":
        yield text(RUNS, "asleep", MANY, status="waiting")
        yield text(WORK, "asleep", MANY, due=f"{NOW} + i")
    yield text(RUNS, "due", DUE)
    yield text(WORK, "due", DUE)


class Cost(NamedTuple):
    """What one claim did: steps or rows, and on Postgres the blocks it touched."""

    claimed: int
    rows: int
    blocks: int


class TestSQLite:
    @pytest.fixture
    def configuration(self) -> str:
        return "file"

    async def test_claims_find_their_rows_by_index(self, hf: Holdfast, database_url: str) -> None:
        with closing(sqlite3.connect(database_url)) as connection:
            due = DUE_TEXT.format(clogs="AND w.clog_id IN ('chat')", passed="", sticky="")
            values = {"queue": "default", "priority": 0, "now": NOW, "limit": 10}
            plans = [row[3] for sql in (LEVELS, due) for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}", values)]

        searches = [plan for plan in plans if plan.startswith("SEARCH")]
        assert searches[-2:] == [
            "SEARCH w USING INDEX work_due (queue=? AND priority=? AND due_at<?)",
            "SEARCH r USING INDEX sqlite_autoindex_runs_1 (run_id=?)",
        ]
        assert [plan for plan in plans if plan.startswith("SCAN")] == ["SCAN levels", "SCAN levels"]
        assert not [plan for plan in plans if "TEMP B-TREE" in plan]

    async def test_a_crowd_costs_no_step(self, hf: Holdfast, tmp_path: Path) -> None:
        await hf.close()
        costs = {}
        for crowd in ("nobody", "finished", "asleep"):
            path = tmp_path / f"{crowd}.db"
            async with Holdfast(str(path)):
                pass
            costs[crowd] = self._cost(path, crowd)
        print(costs)

        assert costs["nobody"].claimed == len(CLAIMS)
        for crowd in ("finished", "asleep"):
            assert costs[crowd].claimed == len(CLAIMS)
            # A probe more at the end of what is due; a counter that is there already.
            assert costs[crowd].rows <= costs["nobody"].rows + 20

    def _cost(self, path: Path, crowd: str) -> Cost:
        steps = 0

        def step() -> int:
            nonlocal steps
            steps += 1
            return 0

        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.row_factory = sqlite3.Row
            connection.execute("BEGIN")
            for statement in script(crowd, "sqlite", ""):
                connection.execute(statement)
            connection.execute("COMMIT")
            connection.execute("BEGIN IMMEDIATE")
            connection.set_progress_handler(step, 1)
            claimed = claim(connection, REQUEST, NOW, 1)
            connection.set_progress_handler(None, 1)
            connection.execute("ROLLBACK")
        return Cost(len(claimed), steps, 0)


class TestPostgres:
    @pytest.fixture
    def configuration(self) -> str:
        return "postgres"

    async def test_a_crowd_costs_no_row_and_hardly_a_block(self, hf: Holdfast, postgres_url: str, schema: str) -> None:
        connection = await asyncpg.connect(postgres_url)
        costs: dict[str, list[Cost]] = {}
        # The rows are as they should be; proving their references would take most of the time.
        await connection.execute("SET session_replication_role = replica")
        try:
            for crowd in ("nobody", "finished", "asleep"):
                prefix = f'"{schema}".'
                names = ", ".join(f"{prefix}{name}" for name in ("runs", "work", "ticks", "sessions", "journal"))
                await connection.execute(f"TRUNCATE {names} CASCADE")
                for statement in script(crowd, "postgres", prefix):
                    await connection.execute(statement)
                # The server does this by itself, a minute later.
                await connection.execute(f"VACUUM {prefix}work")
                costs[crowd] = [await self._cost(connection, schema) for _ in range(3)]
        finally:
            await connection.close()
        for crowd, found in costs.items():
            print(crowd, found)

        nobody = costs["nobody"][-1]
        assert nobody.claimed == len(CLAIMS)
        for crowd in ("finished", "asleep"):
            assert {cost.rows for cost in costs[crowd]} == {nobody.rows}
            # Taller trees: a few blocks for each row that is found or written.
            assert costs[crowd][-1].blocks <= nobody.blocks + 10 * len(CLAIMS)

    async def _cost(self, connection: Any, schema: str) -> Cost:
        """Run the claim's own statement and take it back."""
        body = await claim_body(connection, schema)
        arguments = (
            *(REQUEST.queues, REQUEST.clogs, REQUEST.claim_ids, REQUEST.claim_token_hashes, REQUEST.owner_id),
            *(REQUEST.lease_us, 1, NOW, None, ()),
        )
        transaction = connection.transaction()
        await transaction.start()
        try:
            text = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {body}"
            explained = json.loads((await connection.fetch(text, *arguments))[0][0])[0]["Plan"]
        finally:
            await transaction.rollback()
        scans = [node for node in nodes(explained) if "Index Name" in node or node["Node Type"] == "Seq Scan"]
        assert not [node["Relation Name"] for node in scans if node["Node Type"] == "Seq Scan"]
        filtered = sum(node.get("Rows Removed by Filter", 0) for node in scans)
        rows = sum(node["Actual Rows"] * node["Actual Loops"] for node in scans) + filtered
        blocks = explained["Shared Hit Blocks"] + explained["Shared Read Blocks"]
        return Cost(explained["Actual Rows"], int(rows), blocks)
