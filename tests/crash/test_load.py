"""Two processes that commit and two that claim, on one database: no work is two workers', and nobody waits for ever."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import asyncpg
import msgspec
import pytest

from holdfast import Holdfast
from tests.crash.syscalls import ROOT
from tests.crash.traffic import Diary
from tests.crash.verdict import judge

ROLES = ("committer", "committer", "claimer", "claimer")
STOP_S = 60.0
DEADLOCKS = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"

seconds = pytest.mark.parametrize(
    "seconds", [pytest.param(5.0, id="short"), pytest.param(60.0, id="long", marks=pytest.mark.slow)]
)


class Place(NamedTuple):
    """A database that several processes share."""

    url: str
    schema: str


def load(place: Place, folder: Path, seconds: float) -> list[Diary]:
    """Let them all begin at once; the diaries they leave."""
    paths = [folder / f"{role}{seed}.json" for seed, role in enumerate(ROLES)]
    with ExitStack() as stack:
        processes = [
            stack.enter_context(_process(role, place.url, place.schema, str(seconds), str(seed), str(path)))
            for seed, (role, path) in enumerate(zip(ROLES, paths, strict=True))
        ]
        for process in processes:
            assert _line(process) == "ready"
        for process in processes:
            _say(process, "go")
        assert [process.wait(seconds + STOP_S) for process in processes] == [0] * len(ROLES)
    return [msgspec.json.decode(path.read_bytes(), type=Diary) for path in paths]


@contextmanager
def _process(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A caller in a process of its own, which does not outlive the test."""
    command = [sys.executable, "-m", "tests.crash.traffic", *arguments]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as started:
        try:
            yield started
        finally:
            if started.poll() is None:
                started.kill()


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def _say(process: subprocess.Popen[str], word: str) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{word}\n")
    process.stdin.flush()


async def check(place: Place, diaries: list[Diary]) -> None:
    for diary in diaries:
        print(diary.name, diary.counts, f"{len(diary.held)} claims, {len(diary.told)} told, {len(diary.calls)} appends")
    counts = {name for diary in diaries for name in diary.counts}
    assert [name for name in counts if name.startswith("error")] == []
    assert all(diary.counts["turns"] > 0 for diary in diaries)
    assert all(diary.held for diary in diaries if diary.name.startswith("claimer"))
    # A run in which nothing interesting happened proves nothing.
    assert {"left to expire", "refused"} <= counts
    assert {call.outcome for diary in diaries for call in diary.calls} >= {"ok", "refused"}
    async with Holdfast(place.url, schema=place.schema) as beside:
        assert await judge(beside, diaries) == []


async def deadlocks(url: str) -> int:
    """How many the server has counted, and found in its log."""
    connection = await asyncpg.connect(url)
    counted = await connection.fetchval(DEADLOCKS)
    log = Path(await connection.fetchval("SHOW data_directory")) / "log"
    await connection.close()
    return int(counted) + _mentions(log)


def _mentions(log: Path) -> int:
    return log.read_text(encoding="utf-8", errors="replace").count("deadlock detected") if log.is_file() else 0


@seconds
@pytest.mark.clause("O-32", "W-14", "S-08", "S-09", "H-W2")
@pytest.mark.timeout(300)
async def test_processes_share_a_postgres(postgres_url: str, schema: str, tmp_path: Path, seconds: float) -> None:
    before = await deadlocks(postgres_url)
    place = Place(postgres_url, schema)

    diaries = load(place, tmp_path, seconds)

    await check(place, diaries)
    assert await deadlocks(postgres_url) == before


@seconds
@pytest.mark.clause("O-32", "W-14", "S-08", "S-09", "H-W2")
@pytest.mark.timeout(300)
async def test_processes_share_a_file(tmp_path: Path, seconds: float) -> None:
    place = Place(str(tmp_path / "holdfast.db"), "holdfast")

    diaries = load(place, tmp_path, seconds)

    await check(place, diaries)
