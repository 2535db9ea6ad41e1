"""Prove that rows and journal agree, and put the rows right where they do not. The journal is never changed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import groupby

import msgspec

from holdfast.audit.statements import AnyFact, fact_of
from holdfast.errors import NotFound
from holdfast.identity import check_id
from holdfast.invariants import (
    ASKED,
    Problem,
    RunSnapshot,
    SharedWrite,
    asked_deliveries,
    asked_deliveries_are_there,
    call_rows,
    calls_are_recorded,
    catalog_is_complete,
    check_facts,
    check_run,
    check_thread,
    deliveries_are_asked_for,
    handoffs_are_open,
    journal_is_sound,
    lanes_have_one_head,
    last_writes,
    rows_disagree,
    shared_rows_are_written,
    shared_writes,
    snapshot,
    started_windows_have_runs,
    written_rows_are_there,
)
from holdfast.journal import Journal
from holdfast.journal.rows import all_rows
from holdfast.outbox import restoring
from holdfast.protocol import catalog
from holdfast.protocol.facts import Fact
from holdfast.protocol.state import RunState
from holdfast.store import FACTS, Row
from holdfast.store.types import Rejected

PAGE = 500
FACTS_PAGE = 5_000
REBUILDS_MAX = 10
_HEADS = "SELECT run_id, session_id, lane FROM {s}lane_tickets WHERE held = 1 ORDER BY run_id"
_STARTED = "SELECT user_id, name, last_run_id FROM {s}schedules WHERE last_run_id IS NOT NULL ORDER BY user_id, name"
_DELIVERIES = f"SELECT {', '.join(ASKED)} FROM {{s}}outbox WHERE run_id IS NOT NULL AND requeued_from IS NULL"
_DROP_SHARED = "DELETE FROM {s}shared_storage WHERE name = $1 AND run_id = $2 AND rev = $3 AND value = $4"
_PUT_SHARED = """
    INSERT INTO {s}shared_storage (name, session_id, run_id, rev, value) VALUES ($1, $2, $3, $4, $5)
    ON CONFLICT (name) DO NOTHING
"""


class FsckReport(msgspec.Struct, frozen=True):
    """`ok` means: every law held for every run and thread that was looked at."""

    ok: bool
    runs_checked: int
    problems: tuple[Problem, ...]


class _Survey:
    """What a walk over runs has seen. Facts and rows of a run are of one snapshot: work that goes on is no problem."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.rows: list[Row] = []
        self.states: dict[str, RunState] = {}
        self.listed: list[tuple[str, Fact, int]] = []
        self.writes: list[SharedWrite] = []
        self.asked: dict[str, Row] = {}

    def add(self, seen: RunSnapshot) -> None:
        self.problems += check_run(seen)
        self.problems += calls_are_recorded(seen)
        self.rows += seen.stored.tables["runs"]
        if seen.whole is None:
            return
        self.states[seen.run_id] = seen.whole
        self.writes += shared_writes(seen)
        self.asked |= {row[0]: row for row in asked_deliveries(seen)}
        if not seen.whole.deleted:
            self.listed += [
                (seen.run_id, fact, after.at)
                for before, fact, after in seen.steps()
                if fact.kind == "run_created" or (after.terminal and not before.terminal)
            ]


async def fsck(journal: Journal, run_id: str | None = None, *, user_id: str | None = None) -> FsckReport:
    """Refold and compare: one run, every run of one user, or everything."""
    if run_id is not None:
        check_id(run_id, "run_id")
    # Before the runs: their entries only become more, so what these rows speak of is in every later picture.
    open_handoffs = await journal.store.handoffs()
    shared = await _shared_rows(journal)
    started = await journal.store.fetch(_STARTED)
    deliveries = await _deliveries(journal, run_id) if user_id is None or run_id is not None else []
    run_ids = await _chosen(journal, run_id, user_id)
    survey = _Survey()
    for each in run_ids:
        survey.add(await _look(journal, each))
    if run_id is not None or user_id is None:
        survey.problems += deliveries_are_asked_for(deliveries, survey.asked, survey.states)
    survey.problems += await _missing_deliveries(journal, survey, run_id)
    if run_id is None and user_id is None:
        complete = [row for row in survey.rows if row[0] in survey.states]
        survey.problems += catalog_is_complete(catalog.fold(survey.listed), complete)
        survey.problems += handoffs_are_open(open_handoffs, survey.states)
        survey.problems += shared_rows_are_written(shared, survey.writes, survey.states)
        survey.problems += await _missing_shared_rows(journal, survey)
        survey.problems += lanes_have_one_head(await journal.store.fetch(_HEADS))
        gone = await journal.store.gone_among([run_id for _, _, run_id in started])
        survey.problems += started_windows_have_runs(started, [*run_ids, *gone])
        survey.problems += await _check_free_threads(journal)
        for table in FACTS:
            survey.problems += await _check_audit(journal, table)
    return FsckReport(not survey.problems, len(run_ids), tuple(survey.problems))


async def _missing_shared_rows(journal: Journal, survey: _Survey) -> list[Problem]:
    last = last_writes(survey.writes)
    problems = list(written_rows_are_there((row[0] for row in await _shared_rows(journal)), last))
    seen = max((write.position for write in survey.writes), default=0)
    newer = "SELECT 1 FROM {s}journal WHERE kind = 'storage_written' AND position > $1 LIMIT 1"
    # Written since we looked: what we miss may have been cleared by that.
    return [] if problems and await journal.store.fetch(newer, seen) else problems


async def _deliveries(journal: Journal, run_id: str | None) -> list[Row]:
    """What the outbox has to deliver for runs, or for one."""
    if run_id is None:
        return await journal.store.fetch(_DELIVERIES)
    return await journal.store.fetch(f"{_DELIVERIES} AND run_id = $1", run_id)


async def _missing_deliveries(journal: Journal, survey: _Survey, run_id: str | None) -> list[Problem]:
    if not survey.asked:
        return []
    stored = {row[0] for row in await _deliveries(journal, run_id)}
    problems = list(asked_deliveries_are_there(stored, survey.asked))
    # A run that was removed since we looked took its rows along.
    there = await journal.store.heads([problem.where for problem in problems])
    return [problem for problem in problems if problem.where in there]


async def _shared_rows(journal: Journal) -> list[Row]:
    return await journal.store.fetch("SELECT name, session_id, run_id, rev, value FROM {s}shared_storage ORDER BY name")


async def _check_free_threads(journal: Journal) -> list[Problem]:
    problems: list[Problem] = []
    for thread in await journal.store.threads():
        problems += check_thread(thread, *await journal.store.thread(thread))
    return problems


async def _check_audit(journal: Journal, table: str) -> list[Problem]:
    problems: list[Problem] = []
    async for key, facts in _facts_by_key(journal, table):
        where = f"{table}:{'/'.join(key)}"
        if check_facts(where, facts):
            # Pages are no snapshot: a key that was forgotten between two of them is looked at once more, alone.
            problems += check_facts(where, await _facts_of(journal, table, key))
    return problems


async def _facts_by_key(journal: Journal, table: str) -> AsyncIterator[tuple[tuple[str, ...], list[AnyFact]]]:
    """Every key of the table with all its facts in order, read page by page."""
    names, key = FACTS[table].names, FACTS[table].key
    width = len(key) - 2
    begin, places = (*("",) * width, -1, 0), ", ".join(f"${place}" for place in range(1, len(key) + 1))
    text = f"""
        SELECT {", ".join(names)} FROM {{s}}{table}
        WHERE ({", ".join(key)}) > ({places})
        ORDER BY {", ".join(key)}
        LIMIT {FACTS_PAGE}
    """
    held: list[Row] = []
    while page := await journal.store.fetch(text, *begin):
        begin = page[-1][: len(key)]
        rows = held + page
        # The last key of a full page may go on in the next one.
        held = [row for row in rows if row[:width] == begin[:width]] if len(page) == FACTS_PAGE else []
        for found, group in groupby(rows[: len(rows) - len(held)], key=lambda row: tuple(row[:width])):
            yield found, _typed(table, list(group))
    if held:
        yield tuple(held[0][:width]), _typed(table, held)


async def _facts_of(journal: Journal, table: str, key: tuple[str, ...]) -> list[AnyFact]:
    same = " AND ".join(f"{name} = ${place}" for place, name in enumerate(FACTS[table].key[:-2], start=1))
    names = ", ".join(FACTS[table].names)
    text = f"SELECT {names} FROM {{s}}{table} WHERE {same} ORDER BY validity, asserted"
    return _typed(table, await journal.store.fetch(text, *key))


def _typed(table: str, rows: list[Row]) -> list[AnyFact]:
    return [fact for row in rows if (fact := fact_of(table, row)) is not None]


async def rebuild(journal: Journal, run_id: str | None = None, *, user_id: str | None = None) -> FsckReport:
    """Put the rows right that disagree with the journal, then check.

    What is healthy is not touched. A run or thread whose journal is damaged, or may have lost its last entries, is
    left as it is: rows made from the rest would hide the loss.
    """
    # A row that stands under another run's name blocks its owner until that other run has been put right.
    blocked = [each for each in await _chosen(journal, run_id, user_id) if not await _rebuild_run(journal, each)]
    for each in blocked:
        await _rebuild_run(journal, each)
    if run_id is None and user_id is None:
        await _rebuild_heads(journal)
        await _rebuild_shared(journal)
    if run_id is not None or user_id is None:
        await _rebuild_deliveries(journal, run_id)
    return await fsck(journal, run_id, user_id=user_id)


async def _rebuild_run(journal: Journal, run_id: str) -> bool:
    """False if a row of another run stands in the way."""
    for _ in range(REBUILDS_MAX):
        # Again, because rows that someone wrote meanwhile may have been replaced by older ones.
        seen = await _look(journal, run_id)
        if seen.whole is None or not journal_is_sound(seen):
            return True
        await _rebuild_calls(journal, seen)
        if not rows_disagree(seen):
            return True
        try:
            await journal.store.replace_rows(run_id, all_rows(seen.whole))
        except Rejected:
            return False
    return True


async def _rebuild_calls(journal: Journal, seen: RunSnapshot) -> None:
    """Put back the audit facts that the run's entries are. What they do not tell is left for people to look at."""
    lost = set(call_rows(seen)) - set(seen.stored.tables["tool_calls"])
    if lost:
        await journal.store.put_facts([("tool_calls", row) for row in sorted(lost, key=repr)])


async def _rebuild_heads(journal: Journal) -> None:
    for thread in await journal.store.threads():
        head, entries = await journal.store.thread(thread)
        if entries and head < entries[-1].rev and not check_thread(thread, entries[-1].rev, entries):
            await journal.store.replace_head(thread, entries[-1].rev, entries[-1].at)


async def _rebuild_shared(journal: Journal) -> None:
    """Put back what runs share: rows that were lost, and those that say something else than their entry."""
    stored = await _shared_rows(journal)
    survey = _Survey()
    for each in await _all_runs(journal, None):
        survey.add(await _look(journal, each))
    last = last_writes(survey.writes)
    for row in stored:
        if any(shared_rows_are_written([row], survey.writes, survey.states)):
            await journal.store.execute((_DROP_SHARED, row[:1] + row[2:]))
    for write in last.values():
        if write.row is not None and write.kept:
            await journal.store.execute((_PUT_SHARED, write.row))


async def _rebuild_deliveries(journal: Journal, run_id: str | None) -> None:
    """Make outbox rows say what was asked for: lost ones are made again, with what their audits know of them.

    Where entries may be missing, nothing is: what a row speaks of may be what was lost.
    """
    stored = {row[0]: row for row in await _deliveries(journal, run_id)}
    survey = _Survey()
    for each in await _chosen(journal, run_id, None):
        seen = await _look(journal, each)
        if journal_is_sound(seen):
            survey.add(seen)
    for outbox_id, row in stored.items():
        if any(deliveries_are_asked_for([row], survey.asked, survey.states)):
            if outbox_id in survey.asked:
                await restoring.correct(journal.store, survey.asked[outbox_id])
            else:
                await restoring.drop(journal.store, outbox_id)
    for outbox_id in survey.asked.keys() - stored.keys():
        await restoring.restore(journal.store, survey.asked[outbox_id])


async def _look(journal: Journal, run_id: str) -> RunSnapshot:
    return snapshot(run_id, await journal.store.run_rows(run_id))


async def _chosen(journal: Journal, run_id: str | None, user_id: str | None) -> list[str]:
    if run_id is None:
        return await _all_runs(journal, user_id)
    seen = await _look(journal, check_id(run_id, "run_id"))
    if not seen.entries and not any(seen.stored.tables.values()):
        raise NotFound(f"there is no run {run_id}")
    return [run_id]


async def _all_runs(journal: Journal, user_id: str | None) -> list[str]:
    if user_id is not None:
        sql = "SELECT run_id FROM {s}runs WHERE user_id = $1 ORDER BY run_id"
        return [row[0] for row in await journal.store.fetch(sql, user_id)]
    found: list[str] = []
    while page := await journal.store.run_ids(found[-1] if found else "", PAGE):
        found += page
    return found
