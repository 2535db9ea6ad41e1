"""However many facts there are, every reader finds its own by an index."""

from __future__ import annotations

import pytest

from holdfast import Holdfast
from holdfast.audit.queries import snapshot_text, status_text, statuses_text
from tests.audit.builders import PARENT

CHUNK = 100_000
AT, LIMIT = 1_900_000_000_000_000, 50
SERIES = {
    "postgres": "SELECT n FROM generate_series($1::bigint, $2::bigint) AS x (n)",
    "sqlite": "WITH RECURSIVE x (n) AS (SELECT $1 UNION ALL SELECT n + 1 FROM x WHERE n < $2) SELECT n FROM x",
}
# Each call is two facts: its request, and a second later its end. Fifty calls have one parent.
CALLS = """
    INSERT INTO {s}tool_calls (request_id, call_id, validity, asserted, created, digest, user_id, parent_id, vendor,
        tool_name, args_sha256, status, started_at)
    SELECT 'r' || (n / 2 % 1000), 'c' || (n / 2), 1000000 * (n / 2) + n % 2, 1, 1000000 * (n / 2), '', 'local',
        'p' || (n / 100), 'openai', 't' || (n % 7), 'sha256:',
        CASE WHEN n % 2 = 0 THEN 'requested' ELSE 'completed' END, 1000000 * (n / 2)
    FROM ({series}) y
"""
TURNS = """
    INSERT INTO {s}turns (id, validity, asserted, created, digest, user_id, message_id, kind, content, thread_id)
    SELECT 'i' || (n / 2), 1000000 * (n / 2) + n % 2, 1, 1000000 * (n / 2), '', 'local', 'm' || (n / 2), 'user',
        'words', 't' || (n / 500)
    FROM ({series}) y
"""
PROPOSALS = """
    INSERT INTO {s}proposals (request_id, validity, asserted, created, digest, user_id, diffs_json, status)
    SELECT 'r' || (n / 2), 1000000 * (n / 2) + n % 2, 1, 1000000 * (n / 2), '', 'local', '[]',
        CASE WHEN n % 2 = 0 THEN 'pending' WHEN n % 1000 = 1 THEN 'stale' ELSE 'approved' END
    FROM ({series}) y
"""
# The readers' own texts, by the index that must answer them.
QUESTIONS = {
    "tool_calls_by_parent": (snapshot_text("tool_calls", ["b.parent_id = $3"]), (PARENT,)),
    "tool_calls_pkey": (snapshot_text("tool_calls", ["b.request_id = $3", "b.call_id = $4"]), ("r1", "c1")),
    "tool_calls_by_status": (status_text("tool_calls"), ("failed",)),
    "tool_calls_by_time": (snapshot_text("tool_calls", ["b.created >= $3"], newest_first=False), (10**12,)),
    "proposals_by_status": (statuses_text("proposals", 2), ("failed", "stale")),
    "turns_by_thread": (snapshot_text("turns", ["b.thread_id = $3", "b.created >= $4"], newest_first=False), ("t1", 1)),
    "turns_by_time": (snapshot_text("turns", ["b.created >= $3"], newest_first=False), (10**12,)),
    "turns_by_message": (snapshot_text("turns", ["b.message_id = $3"]), ("m1",)),
}

LISTS = frozenset({"tool_calls_by_parent", "tool_calls_by_time", "turns_by_thread", "turns_by_time"})
"""Those that may be long and so must come in order, not be put in it."""


async def fill(hf: Holdfast, facts: int, dialect: str) -> None:
    for text in (CALLS, TURNS, PROPOSALS):
        for start in range(0, facts, CHUNK):
            numbers = (start, min(start + CHUNK, facts) - 1)
            await hf.journal.store.execute((text.replace("{series}", SERIES[dialect]), numbers))
    await hf.journal.store.execute(("ANALYZE", ()))


async def plan(hf: Holdfast, text: str, values: tuple[object, ...], dialect: str) -> list[str]:
    word = "EXPLAIN QUERY PLAN " if dialect == "sqlite" else "EXPLAIN "
    return [str(row[-1]) for row in await hf.audit.raw_query(word + text, (AT, LIMIT, *values))]


def _reads_all(step: str) -> bool:
    is_part = step in ("SCAN s0", "SCAN s1")  # what one status found, not a table
    return "Seq Scan" in step or (step.startswith("SCAN ") and "INDEX" not in step and not is_part)


async def check(hf: Holdfast, configuration: str, facts: int) -> None:
    dialect = "postgres" if configuration == "postgres" else "sqlite"
    await fill(hf, facts, dialect)
    for index, (text, values) in QUESTIONS.items():
        steps = await plan(hf, text, values, dialect)
        named = "sqlite_autoindex_tool_calls_1" if dialect == "sqlite" and index.endswith("_pkey") else index
        assert any(named in step for step in steps), (index, steps)
        assert not any(_reads_all(step) for step in steps), steps
        if index in LISTS:
            assert not any("Sort" in step or "TEMP B-TREE" in step for step in steps), steps


@pytest.mark.clause("P-25", "P-09", "P-36")
async def test_every_reader_is_answered_by_an_index(another_hf: Holdfast, configuration: str) -> None:
    await check(another_hf, configuration, 20_000)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.clause("P-25", "P-09")
async def test_a_million_facts_are_read_by_the_same_indexes(another_hf: Holdfast, configuration: str) -> None:
    await check(another_hf, configuration, 1_000_000)
    found = await another_hf.audit.list_tool_calls_by_parent("p777", 50, at=AT)
    assert len(found) == 50
