"""Through PgBouncer in transaction mode, where no session outlives its transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import asyncpg
import pytest

from holdfast import Holdfast
from tests.crash.pooler import transaction_pooler
from tests.crash.traffic import Claimer, Committer, Diary
from tests.crash.verdict import judge
from tests.schemas import CARETAKER

SECONDS = 2.0
SERVER_CONNECTIONS = 3
BACKENDS = """
    SELECT count(*) FROM pg_stat_activity
    WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() AND application_name <> $1
"""


@pytest.fixture
def pooler_url(postgres_url: str) -> Iterator[str]:
    with transaction_pooler(postgres_url, server_connections=SERVER_CONNECTIONS) as url:
        yield url


async def traffic(holdfast: Holdfast) -> list[Diary]:
    kinds = (Committer, Committer, Committer, Claimer, Claimer)
    callers = [kind(holdfast, f"{kind.__name__.lower()}{seed}", seed) for seed, kind in enumerate(kinds)]
    return await asyncio.gather(*(caller.work(SECONDS) for caller in callers))


def errors(diaries: list[Diary]) -> list[str]:
    return [name for diary in diaries for name in diary.counts if name.startswith("error")]


async def one_of_everything(holdfast: Holdfast) -> None:
    run = await holdfast.create_run(session_id="s", clog_id="noop", queue="q", key="k", input=1)
    await holdfast.signal(run.run_id, 2, key="again")
    await holdfast.pause(run.run_id, "review", "approval")
    await holdfast.approve(run.run_id, actor="ada")
    (claim,) = await holdfast.claim_next("q")
    await holdfast.heartbeat(claim)
    await holdfast.emit(claim, "thought", "hm")
    await holdfast.complete(claim, {"answer": 42})
    await holdfast.journal.append(f"run:{run.run_id}", [{"kind": "event", "data": {"type": "note", "data": 1}}])
    await holdfast.journal.append("notes", [{"kind": "note", "data": 1}], 0)
    await holdfast.journal.save_checkpoint("notes", 1, {"sum": 1})
    assert await holdfast.journal.load_checkpoint("notes") == (1, {"sum": 1})
    assert (await holdfast.rebuild()).ok


async def test_everything_works_through_a_transaction_pooler(postgres_url: str, pooler_url: str, schema: str) -> None:
    async with Holdfast(f"{pooler_url}&pooler=transaction", schema=schema) as holdfast:
        await one_of_everything(holdfast)
        diaries = await traffic(holdfast)

        beside = await asyncpg.connect(postgres_url)
        backends = await beside.fetchval(BACKENDS, CARETAKER)
        await beside.close()
        assert errors(diaries) == []
        assert all(diary.counts["turns"] > 0 for diary in diaries)
        assert 0 < backends <= SERVER_CONNECTIONS
        assert await judge(holdfast, diaries) == []


async def test_the_pooler_breaks_a_runtime_that_was_not_told_of_it(pooler_url: str, schema: str) -> None:
    async with Holdfast(pooler_url, schema=schema) as holdfast:
        diaries = await traffic(holdfast)

    assert errors(diaries) != []
