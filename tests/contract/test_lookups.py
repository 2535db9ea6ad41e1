"""Questions by key on Postgres: their plans are kept, so they must be good whatever size the tables had at first."""

from __future__ import annotations

import ast
import asyncio
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Holdfast
from holdfast.runtime.following import standing, standings
from holdfast.store.postgres import _as_one
from holdfast.store.postgres_pool import BY_KEY
from tests.contract.test_postgres_specifics import generic_plan, nodes

NAME = "fetch_by_key"
LEADING = """
    SELECT c.relname, a.attname
    FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
    JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
    WHERE c.relnamespace = $1::text::regnamespace
"""
"""An index that is not searched by its first column is read from end to end."""
SOURCES = Path(holdfast.__file__).parent


@pytest.fixture
def configuration() -> str:
    return "postgres"


def askers() -> set[str]:
    """The functions that ask by key, as the sources have them."""
    found = set()
    for path in SOURCES.rglob("*.py"):
        for part in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef) and part.name != NAME:
                calls = (node.func for node in ast.walk(part) if isinstance(node, ast.Call))
                if any(isinstance(called, ast.Attribute) and called.attr == NAME for called in calls):
                    found.add(part.name)
    return found


async def tour(hf: Holdfast) -> None:
    """Something of everything that asks by key."""
    store = hf.journal.store
    mine = hf.as_user("u")
    run = await mine.create_run(session_id="s", clog_id="chat", input=1, key="k")
    await mine.find_run(key="k")
    await hf.cancel(run.run_id, "enough")
    for runtime in (hf, mine):
        assert [event async for event in runtime.events(run.run_id, follow=True)]
        assert not [event async for event in runtime.events(run.run_id, 1_000, follow=True)]
        with pytest.raises(holdfast.RunCancelled):
            await runtime.result(run.run_id)
    await mine.signal(run.run_id, 1)
    thread = f"run:{run.run_id}"
    await standing(hf.journal, run.run_id, "u")
    await standings(hf.journal, [run.run_id, "gone"])
    await store.heads([thread])
    await store.cancelled_among([run.run_id, "gone"])
    await store.gone_among([run.run_id, "gone"])
    await store.load_checkpoint(thread)
    await store.used_among([run.run_id, "gone"])
    await store.run_rows(run.run_id)
    await store.thread("notes")


async def test_every_question_by_key_finds_its_rows_by_their_keys(
    hf: Holdfast, stranger: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = hf.journal.store
    asked: dict[str, set[str]] = {}
    snapshots: list[str] = []

    async def heard(sql: str, *params: Any) -> Any:
        asked.setdefault(sys._getframe(1).f_code.co_name, set()).add(sql.replace("{s}", store._database.prefix))
        return await real(sql, *params)

    async def seen_at_once(queries: Sequence[tuple[str, tuple[Any, ...]]]) -> Any:
        *short, (last, _) = queries
        snapshots.extend([last, _as_one(tuple((text, len(params)) for text, params in short))])
        return await at_once(queries)

    real, at_once = store.fetch_by_key, store._database.fetch_snapshot
    monkeypatch.setattr(store, NAME, heard)
    monkeypatch.setattr(store._database, "fetch_snapshot", seen_at_once)
    async with asyncio.timeout(60):
        await tour(hf)

    assert set(asked) == askers()
    leading = dict(await stranger.fetch(LEADING, store._database.prefix.strip('".')))
    await stranger.execute(f"{BY_KEY} ANALYZE")
    for text in set().union(snapshots, *asked.values()):
        scans = [node for node in nodes(await generic_plan(stranger, text)) if "Relation Name" in node]
        assert scans, text
        for scan in scans:
            assert scan["Node Type"] in ("Index Scan", "Index Only Scan"), text
            assert re.search(rf"\b{leading[scan['Index Name']]} = ", scan["Index Cond"]), text


async def test_queries_of_one_snapshot_answer_what_each_answers_alone(hf: Holdfast) -> None:
    database = hf.journal.store._database
    queries: list[tuple[str, tuple[Any, ...]]] = [
        (
            "SELECT n, CAST($2 AS text) || n, CAST(NULL AS bytea) FROM generate_series(1, CAST($1 AS int)) n",
            (12, "€$1 "),
        ),
        ("SELECT 1 WHERE CAST($1 AS text) = 'x'", ("y",)),
        ("SELECT CAST($1 AS bytea), true, 1.5 :: float8 ORDER BY 1", (b"\0\xff",)),
        ("SELECT n FROM generate_series(1, CAST($1 AS bigint)) n ORDER BY n DESC", (3,)),
    ]

    together = await database.fetch_snapshot(queries)

    assert together == [await database.fetch(text, *params) for text, params in queries]
    assert [len(rows) for rows in together] == [12, 0, 1, 3]
    assert together[2:] == [[(b"\0\xff", True, 1.5)], [(3,), (2,), (1,)]]
