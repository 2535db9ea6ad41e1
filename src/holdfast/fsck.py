"""Prove that rows and journal agree, and put the rows right where they do not. The journal is never changed."""

from __future__ import annotations

import msgspec

from holdfast.errors import InvalidEntry
from holdfast.invariants import Problem, catalog_is_complete, check_run, check_thread, handoffs_are_open, snapshot
from holdfast.journal import Journal
from holdfast.journal.rows import all_rows
from holdfast.protocol import catalog
from holdfast.protocol.facts import Fact
from holdfast.protocol.state import RunState
from holdfast.store import Row

PAGE = 500


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
    run_ids = [run_id] if run_id is not None else await _all_runs(journal)
    for each in run_ids:
        seen = snapshot(each, await journal.store.run_rows(each))
        problems += check_run(seen)
        rows += seen.stored.tables["runs"]
        if seen.whole is not None:
            states[each] = seen.whole
            listed += [(each, fact, after.at) for _, fact, after in seen.steps() if fact.kind in catalog.KINDS]
    if run_id is None:
        # Each run's facts and row are of one snapshot, so work that goes on meanwhile is no problem.
        complete = [row for row in rows if row[0] in states]
        problems += catalog_is_complete(catalog.fold(listed), complete)
        problems += await _check_the_rest(journal, states)
    return FsckReport(not problems, len(run_ids), tuple(problems))


async def _check_the_rest(journal: Journal, states: dict[str, RunState]) -> list[Problem]:
    """What belongs to no single run: free threads and handoffs."""
    problems: list[Problem] = []
    for thread in await journal.store.threads():
        problems += check_thread(thread, *await journal.store.thread(thread))
    return problems + list(handoffs_are_open(await journal.store.handoffs(), states))


async def rebuild(journal: Journal, run_id: str | None = None) -> FsckReport:
    """Write every row anew from the journal, then check. Runs whose journal is damaged are left as they are."""
    for each in [run_id] if run_id is not None else await _all_runs(journal):
        try:
            state = await journal.state(each)
        except InvalidEntry:
            continue
        if state is not None and state.exists:
            await journal.store.replace_rows(each, all_rows(state))
    if run_id is None:
        await _rebuild_heads(journal)
    return await fsck(journal, run_id)


async def _rebuild_heads(journal: Journal) -> None:
    for thread in await journal.store.threads():
        _, entries = await journal.store.thread(thread)
        if entries and not check_thread(thread, entries[-1].rev, entries):
            await journal.store.replace_head(thread, entries[-1].rev, entries[-1].at)


async def _all_runs(journal: Journal) -> list[str]:
    found: list[str] = []
    while page := await journal.store.run_ids(found[-1] if found else "", PAGE):
        found += page
    return found
