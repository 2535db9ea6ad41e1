"""A server that kills our connections all the time, or crashes and comes back: every call still ends exactly once."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence

import asyncpg
import pytest

from holdfast import Holdfast
from tests.crash.doubts import Doubts
from tests.crash.restarts import Restartable, restartable
from tests.crash.traffic import Claimer, Committer, Diary
from tests.crash.verdict import judge

SECONDS = 5.0
KILL_EVERY_S = 0.2
RESTARTS = 3
KILL = """
    SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
    WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Restartable]:
    with restartable(tmp_path_factory.mktemp("faulty")) as found:
        yield found


async def traffic(runtimes: Sequence[Holdfast], seconds: float) -> list[Diary]:
    """Four callers on each runtime, all at once."""
    kinds = (Committer, Committer, Committer, Claimer)
    callers = [
        kind(runtime, f"{kind.__name__.lower()}{place}{number}", 10 * place + number)
        for place, runtime in enumerate(runtimes)
        for number, kind in enumerate(kinds)
    ]
    return await asyncio.gather(*(caller.work(seconds) for caller in callers))


async def killer(url: str) -> int:
    """Kill every connection but our own, again and again, until cancelled; how many were killed."""
    connection = await asyncpg.connect(url)
    killed = 0
    try:
        while True:
            killed += await connection.fetchval(KILL)
            await asyncio.sleep(KILL_EVERY_S)
    except asyncio.CancelledError:
        return killed
    finally:
        await connection.close()


async def restarter(server: Restartable) -> int:
    """Crash the server a few times, each time after it has worked for a moment."""
    for _ in range(RESTARTS):
        await asyncio.sleep(SECONDS / (RESTARTS + 1))
        await asyncio.to_thread(server.restart)
    return RESTARTS


def summed(diaries: Sequence[Diary]) -> Counter[str]:
    return sum((Counter(diary.counts) for diary in diaries), Counter())


async def check(url: str, schema: str, diaries: Sequence[Diary]) -> None:
    counts = summed(diaries)
    print(dict(counts), f"{sum(len(diary.told) + len(diary.calls) for diary in diaries)} answers")
    assert [name for name in counts if name.startswith("error")] == []
    assert all(diary.counts["turns"] > 0 for diary in diaries)
    async with Holdfast(url, schema=schema) as beside:
        assert await judge(beside, diaries) == []


@pytest.mark.clause("S-08", "S-09")
async def test_connections_killed_all_the_time_lose_and_double_nothing(
    server: Restartable, monkeypatch: pytest.MonkeyPatch
) -> None:
    doubts = Doubts(monkeypatch)
    async with Holdfast(server.url, schema="killed") as one, Holdfast(server.url, schema="killed") as other:
        nemesis = asyncio.create_task(killer(server.url))
        diaries = await traffic([one, other], SECONDS)
        nemesis.cancel()
        killed = await nemesis

    print(f"{killed} connections killed, {len(doubts.commit_ids)} outcomes unknown")
    assert killed >= 2 * SECONDS / KILL_EVERY_S
    assert doubts.commit_ids
    await check(server.url, "killed", diaries)


@pytest.mark.clause("S-08", "S-09")
async def test_a_server_that_crashes_and_comes_back_loses_and_doubles_nothing(server: Restartable) -> None:
    async with Holdfast(server.url, schema="crashed") as one, Holdfast(server.url, schema="crashed") as other:
        nemesis = asyncio.create_task(restarter(server))
        diaries = await traffic([one, other], SECONDS)
        assert await nemesis == RESTARTS

    await check(server.url, "crashed", diaries)
