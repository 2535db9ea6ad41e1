"""Following several threads at once: each by its own revision, so nothing is missed and nothing comes twice."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import pytest

from holdfast import Holdfast, JournalEntry
from holdfast.protocol.values import canonical, digest
from tests.contract.builders import idle, note, texts

THREADS = ("a", "b", "c")


class Follower:
    """A reader with a cursor per thread."""

    def __init__(self, hf: Holdfast, *threads: str) -> None:
        self._hf = hf
        self._cursors = dict.fromkeys(threads, 0)
        self.seen: dict[str, list[JournalEntry]] = {thread: [] for thread in threads}

    async def catch_up(self, limit: int = 1_000) -> int:
        """Read until nothing is new; answer how much was."""
        count = 0
        while found := await self._hf.journal.tail(self._cursors, limit):
            for each in found:
                assert each.rev == self._cursors[each.thread] + 1
                self._cursors[each.thread] = each.rev
                self.seen[each.thread].append(each)
            count += len(found)
        return count


@pytest.mark.clause("C-11", "O-63")
async def test_a_follower_of_busy_threads_misses_nothing_and_sees_nothing_twice(hf: Holdfast) -> None:
    run = await idle(hf)
    follower = Follower(hf, *THREADS, f"run:{run.run_id}")
    done = asyncio.Event()

    async def write(thread: str) -> None:
        for i in range(10):
            await hf.journal.append(thread, [note(i)] * (1 + i % 3))

    async def follow() -> None:
        while not done.is_set():
            await follower.catch_up(limit=4)
            await asyncio.sleep(0)

    reading = asyncio.create_task(follow())
    await asyncio.gather(*(write(thread) for thread in THREADS), *(hf.signal(run.run_id, i) for i in range(10)))
    done.set()
    await reading
    await follower.catch_up()

    for thread, seen in follower.seen.items():
        assert seen == await hf.journal.read(thread)


@pytest.mark.clause("C-11")
async def test_a_limit_cuts_no_thread_in_two(hf: Holdfast) -> None:
    for i in range(6):
        await asyncio.gather(*(hf.journal.append(thread, [note((thread, i))]) for thread in THREADS))

    whole = await hf.journal.tail(dict.fromkeys(THREADS, 0))
    positions = [each.position for each in whole]
    assert positions == sorted(positions)
    for limit in range(1, 19):
        assert await hf.journal.tail(dict.fromkeys(THREADS, 0), limit) == whole[:limit]


async def test_more_threads_than_one_statement_takes_are_followed_too(hf: Holdfast) -> None:
    threads = [f"thread {i}" for i in range(230)]
    await asyncio.gather(*(hf.journal.append(thread, [note(thread)]) for thread in threads))

    found = await hf.journal.tail(dict.fromkeys(threads, 0))

    assert sorted(texts(found)) == sorted(threads)


@pytest.mark.parametrize("configuration", ["postgres"])
@pytest.mark.clause("C-11", "C-18")
async def test_an_entry_whose_position_is_older_but_commits_later_is_not_missed(
    hf: Holdfast, database_url: str, schema: str
) -> None:
    follower = Follower(hf, "slow", "quick")
    slow, quick = await asyncpg.connect(database_url), await asyncpg.connect(database_url)
    try:
        open_commit = slow.transaction()
        await open_commit.start()
        await write_line(slow, schema, "slow")
        await write_line(quick, schema, "quick")

        before = await follower.catch_up()
        await open_commit.commit()
        after = await follower.catch_up()
    finally:
        await slow.close()
        await quick.close()

    assert (before, after) == (1, 1)
    (late,), (early,) = follower.seen["slow"], follower.seen["quick"]
    assert late.position < early.position


async def write_line(connection: Any, schema: str, thread: str) -> None:
    """The first entry of a thread, as a commit of another process leaves it."""
    data = canonical({"text": thread})
    await connection.execute(
        f"""
        WITH head AS (INSERT INTO "{schema}".threads (thread, rev, at) VALUES ($1, 1, 0))
        INSERT INTO "{schema}".journal (thread, rev, kind, data, at, digest, commit_id)
        VALUES ($1, 1, 'note', $2, 0, $3, 1)
        """,
        thread,
        data,
        digest("note", data),
    )
