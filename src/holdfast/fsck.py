"""Prove that rows and journal agree, and put the rows right where they do not. The journal is never changed."""

from __future__ import annotations

import msgspec

from holdfast.errors import NotFound
from holdfast.identity import check_id
from holdfast.invariants import (
    Problem,
    RunSnapshot,
    catalog_is_complete,
    check_run,
    check_thread,
    handoffs_are_open,
    journal_is_sound,
    rows_disagree,
    snapshot,
)
from holdfast.journal import Journal
from holdfast.journal.rows import all_rows
from holdfast.protocol import catalog
from holdfast.protocol.facts import Fact
from holdfast.protocol.state import RunState
from holdfast.store import Row
from holdfast.store.types import Rejected

PAGE = 500
REBUILDS_MAX = 10


class FsckReport(msgspec.Struct, frozen=True):
    """`ok` means: every law held for every run and thread that was looked at."""

    ok: bool
    runs_checked: int
    problems: tuple[Problem, ...]


async def fsck(journal: Journal, run_id: str | None = None) -> FsckReport:
    """Refold and compare: one run, or everything."""
    problems: list[Problem] = []
    rows: list[Row] = []
    states: dict[str, RunState] = {}
    listed: list[tuple[str, Fact, int]] = []
    # Before the runs: their entries only become more, so a handoff seen now has its cause in every later picture.
    open_handoffs = await journal.store.handoffs() if run_id is None else []
    run_ids = await _chosen(journal, run_id)
    for each in run_ids:
        seen = await _look(journal, each)
        problems += check_run(seen)
        rows += seen.stored.tables["runs"]
        if seen.whole is not None:
            states[each] = seen.whole
        if seen.whole is not None and not seen.whole.deleted:
            listed += [
                (each, fact, after.at)
                for before, fact, after in seen.steps()
                if fact.kind == "run_created" or (after.terminal and not before.terminal)
            ]
    if run_id is None:
        # Each run's facts and row are of one snapshot, so work that goes on meanwhile is no problem.
        complete = [row for row in rows if row[0] in states]
        problems += catalog_is_complete(catalog.fold(listed), complete)
        problems += handoffs_are_open(open_handoffs, states)
        problems += await _check_free_threads(journal)
    return FsckReport(not problems, len(run_ids), tuple(problems))


async def _check_free_threads(journal: Journal) -> list[Problem]:
    problems: list[Problem] = []
    for thread in await journal.store.threads():
        problems += check_thread(thread, *await journal.store.thread(thread))
    return problems


async def rebuild(journal: Journal, run_id: str | None = None) -> FsckReport:
    """Put the rows right that disagree with the journal, then check.

    What is healthy is not touched. A run or thread whose journal is damaged, or may have lost its last entries, is
    left as it is: rows made from the rest would hide the loss.
    """
    # A row that stands under another run's name blocks its owner until that other run has been put right.
    blocked = [each for each in await _chosen(journal, run_id) if not await _rebuild_run(journal, each)]
    for each in blocked:
        await _rebuild_run(journal, each)
    if run_id is None:
        await _rebuild_heads(journal)
    return await fsck(journal, run_id)


async def _rebuild_run(journal: Journal, run_id: str) -> bool:
    """False if a row of another run stands in the way."""
    for _ in range(REBUILDS_MAX):
        # Again, because rows that someone wrote meanwhile may have been replaced by older ones.
        seen = await _look(journal, run_id)
        if seen.whole is None or not rows_disagree(seen) or not journal_is_sound(seen):
            return True
        try:
            await journal.store.replace_rows(run_id, all_rows(seen.whole))
        except Rejected:
            return False
    return True


async def _rebuild_heads(journal: Journal) -> None:
    for thread in await journal.store.threads():
        head, entries = await journal.store.thread(thread)
        if entries and head < entries[-1].rev and not check_thread(thread, entries[-1].rev, entries):
            await journal.store.replace_head(thread, entries[-1].rev, entries[-1].at)


async def _look(journal: Journal, run_id: str) -> RunSnapshot:
    return snapshot(run_id, await journal.store.run_rows(run_id))


async def _chosen(journal: Journal, run_id: str | None) -> list[str]:
    if run_id is None:
        return await _all_runs(journal)
    seen = await _look(journal, check_id(run_id, "run_id"))
    if not seen.entries and not any(seen.stored.tables.values()):
        raise NotFound(f"there is no run {run_id}")
    return [run_id]


async def _all_runs(journal: Journal) -> list[str]:
    found: list[str] = []
    while page := await journal.store.run_ids(found[-1] if found else "", PAGE):
        found += page
    return found
