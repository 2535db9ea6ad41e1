"""Those who come back from one commit together: one half is written while the other is answered."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest

from holdfast import Holdfast, SignalReceipt
from holdfast.errors import DatabaseError
from holdfast.store import committer
from holdfast.store.committer import CROWD_MIN
from holdfast.store.types import Member, Written
from tests.conftest import IN_PROCESS
from tests.contract.builders import create, kinds

pytestmark = pytest.mark.parametrize("configuration", IN_PROCESS)

CROWD = 2 * CROWD_MIN
LONG = "x" * 100_000
Write = Callable[[Sequence[Member], int, Sequence[str]], Awaitable[list[Written]]]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy the machine is, commits are quick here."""
    monkeypatch.setattr(committer, "CROWD_FLIGHT_S", 10.0)


class Watched:
    """Commits of a database that takes its time, as they begin and end, and whatever else is noted in between."""

    def __init__(self, hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[str] = []
        self.sizes: list[int] = []
        self.broken: int | None = None
        """Which commit fails, at once."""
        self.refused: int | None = None
        """Which commit accepts nobody, at once."""
        self._write: Write = hf._store.committer._database.write
        monkeypatch.setattr(hf._store.committer._database, "write", self.write)

    async def write(self, members: Sequence[Member], commit_id: int, news: Sequence[str] = ()) -> list[Written]:
        self.sizes.append(len(members))
        if len(self.sizes) == self.broken:
            raise DatabaseError("Postgres refused the work: its disk is full; make room", code="disk_full")
        if len(self.sizes) == self.refused:
            return [Written(None, member.expected_rev) for member in members]
        self.seen.append("begun")
        for _ in range(5):
            await asyncio.sleep(0)
        written = await self._write(members, commit_id, news)
        self.seen.append("ended")
        return written


async def crowd(hf: Holdfast, many: int = CROWD) -> list[str]:
    runs = await hf.create_runs([{"session_id": "s1", "clog_id": "chat"} for _ in range(many)])
    return [run.run_id for run in runs]


async def test_one_half_is_written_while_the_other_works(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(hf, monkeypatch)

    async def twice() -> None:
        await create(hf)
        watched.seen.append("answered")
        await create(hf)

    await asyncio.gather(*(twice() for _ in range(CROWD)))

    half = ["answered"] * (CROWD // 2)
    if hf._store.committer._database.is_apart:
        assert watched.seen[: CROWD + 4] == ["begun", "ended", *half, "begun", *half, "ended"]
        assert watched.sizes[:3] == [CROWD, CROWD // 2, CROWD // 2]
    else:
        # Nobody could work meanwhile, so there is nothing to gain.
        assert watched.seen == ["begun", "ended", *half, *half, "begun", "ended"]


async def test_a_few_are_answered_at_once(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(hf, monkeypatch)

    async def twice() -> None:
        await create(hf)
        await create(hf)

    await asyncio.gather(*(twice() for _ in range(CROWD_MIN - 1)))

    assert watched.sizes == [CROWD_MIN - 1] * 2


async def test_nobody_waits_twice_for_a_slow_disk(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committer, "CROWD_FLIGHT_S", 0.0)
    watched = Watched(hf, monkeypatch)

    async def twice() -> None:
        await create(hf)
        await create(hf)

    await asyncio.gather(*(twice() for _ in range(CROWD)))

    assert watched.sizes == [CROWD] * 2


async def test_a_crowd_that_wants_nothing_more_is_answered(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = await crowd(hf)
    watched = Watched(hf, monkeypatch)

    receipts = await asyncio.gather(*(hf.signal(run_id, 1) for run_id in runs))

    assert receipts == [SignalReceipt(True, None, 2)] * CROWD
    assert watched.sizes == [CROWD]


async def test_what_is_on_disk_is_no_failure_of_what_follows(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    """Long bodies travel in several commits. The second one fails before anybody of the first is told."""
    runs = await crowd(hf)
    watched = Watched(hf, monkeypatch)
    watched.broken = 2

    answers = await asyncio.gather(*(hf.signal(run_id, LONG) for run_id in runs), return_exceptions=True)

    first = watched.sizes[0]
    assert CROWD_MIN <= first < CROWD
    assert answers[:first] == [SignalReceipt(True, None, 2)] * first
    assert all(isinstance(answer, DatabaseError) for answer in answers[first:])
    assert [await kinds(hf, run_id) for run_id in runs[first:]] == [["run_created"]] * (CROWD - first)


async def test_a_crowd_in_several_commits_loses_nobody(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = await crowd(hf, 2 * CROWD)
    watched = Watched(hf, monkeypatch)

    receipts = await asyncio.gather(*(hf.signal(run_id, LONG) for run_id in runs))

    assert len(watched.sizes) > 2
    assert receipts == [SignalReceipt(True, None, 2)] * (2 * CROWD)


async def test_those_who_are_held_are_not_forgotten_for_those_who_lose(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = await crowd(hf)
    watched = Watched(hf, monkeypatch)
    watched.refused = 2

    receipts = await asyncio.wait_for(asyncio.gather(*(hf.signal(run_id, LONG) for run_id in runs)), 10)

    assert receipts == [SignalReceipt(True, None, 2)] * CROWD


async def test_closing_waits_for_both_halves(hf: Holdfast) -> None:
    runs = await crowd(hf)
    told = [asyncio.ensure_future(hf.signal(run_id, 1)) for run_id in runs]
    await asyncio.sleep(0)

    await hf._store.committer.close()
    await asyncio.sleep(0)

    assert await asyncio.wait_for(asyncio.gather(*told), 5) == [SignalReceipt(True, None, 2)] * CROWD
