"""Real processes on one file: nothing is claimed twice, nothing is lost, nobody starves."""

from __future__ import annotations

import asyncio
import multiprocessing
from pathlib import Path

import msgspec
import pytest

from holdfast import Holdfast
from holdfast.invariants.histories import (
    acknowledged_is_there_once,
    one_winner_per_revision,
    readings_are_prefixes,
    refused_is_nowhere,
)
from tests.contract.builders import assert_sound
from tests.contract.rivals import SHARED, Report, play

CAST = {"w1": "claim", "w2": "claim", "c1": "commit", "c2": "commit"}
SECONDS = 3.0
WAIT_S_MAX = 2.5
"""As long as a caller may wait for its commit while others write; the busy handler of SQLite alone needs more."""


@pytest.mark.clause("O-32", "S-09", "C-18", "S-34", "S-08")
async def test_processes_that_share_a_file_share_the_truth_and_nobody_starves(tmp_path: Path) -> None:
    url = str(tmp_path / "holdfast.db")
    async with Holdfast(url) as holdfast:
        reports = await asyncio.to_thread(perform, url)

        await assert_sound(holdfast)
        await assert_told_the_truth(holdfast, reports)
        assert_fair(reports)


async def assert_told_the_truth(holdfast: Holdfast, reports: list[Report]) -> None:
    """Every claim was given once, and the threads are what their writers and readers were told."""
    claimed = [claim for report in reports for claim in report.claimed]
    assert len({run_id for run_id, _ in claimed}) == len(claimed) > 0
    calls = [call for report in reports for call in report.calls]
    readings = [reading for report in reports for reading in report.readings]
    threads = {
        thread: await holdfast.journal.store.read(thread) for thread in {SHARED, *(call.thread for call in calls)}
    }
    problems = [
        *acknowledged_is_there_once(calls, threads),
        *refused_is_nowhere(calls, threads),
        *one_winner_per_revision(calls),
        *readings_are_prefixes(readings, threads),
    ]
    assert problems == []


def assert_fair(reports: list[Report]) -> None:
    """Nobody waited long, and of two who do the same work neither got much more done."""
    assert [report.name for report in reports if report.longest_s > WAIT_S_MAX] == []
    for part in set(CAST.values()):
        commits = sorted(report.commits for report in reports if CAST[report.name] == part)
        assert commits[0] * 10 > commits[-1] > 0


def perform(url: str) -> list[Report]:
    """Let the whole cast begin at the same moment, and collect what each was told."""
    context = multiprocessing.get_context("spawn")
    stage = []
    for name, part in CAST.items():
        ours, theirs = context.Pipe()
        process = context.Process(target=play, args=(theirs, url, name, part, SECONDS), daemon=True)
        process.start()
        stage.append((process, ours))
    for _, pipe in stage:
        assert pipe.recv() == "ready"
    for _, pipe in stage:
        pipe.send("begin")
    reports = [msgspec.convert(pipe.recv(), Report) for _, pipe in stage]
    for process, _ in stage:
        process.join(20)
    return reports
