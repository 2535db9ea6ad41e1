"""Copies of runs: a fork under a new id, and a run that comes from another database under its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec.structs import replace

from holdfast import ambient
from holdfast.errors import Conflict, NotFound
from holdfast.identity import child_id
from holdfast.journal.entries import RUN_PREFIX, fact_of, line_of
from holdfast.journal.rows import all_rows, outbox_row, shared_rows
from holdfast.protocol import facts
from holdfast.protocol.evolve import evolve, fold
from holdfast.protocol.facts import Fact
from holdfast.protocol.ledger import audit_row
from holdfast.protocol.state import RunState
from holdfast.protocol.storage import is_accepted_write
from holdfast.store import Entry, Row, Store

BODY_MAX = 1 << 62
ELSEWHERE = "the run was imported: the database it came from delivers this; requeue it to deliver it from here"
Lines = Sequence[tuple[Entry, Fact]]


class Carrier(Protocol):
    """What copying needs of the journal."""

    @property
    def store(self) -> Store[RunState]: ...

    async def settle_down(self, run_id: str) -> None: ...


async def fork(journal: Carrier, source_run_id: str, run_id: str, lines: Lines) -> None:
    """Begin a run as a copy of these entries, each with its instant. What it owns alone comes with it.

    Children that had not finished are started anew, as children of the new run.
    """
    thread = RUN_PREFIX + run_id
    last = lines[-1][0]
    at = max(await journal.store.now(), last.at)
    before = fold(RunState(run_id=run_id), ((fact, entry.at) for entry, fact in lines))
    added = _beginning(before, lines, run_id, source_run_id)
    commit_id = ambient.random_bits(62)
    # Nothing here is larger than what was accepted once.
    written = [line_of(fact, max_bytes=BODY_MAX) for fact in added]
    entries = [entry._replace(thread=thread) for entry, _ in lines]
    entries += [
        Entry(0, thread, rev, line.kind, line.data, at, line.digest, commit_id)
        for rev, line in enumerate(written, start=last.rev + 1)
    ]
    tables = all_rows(fold(before, ((fact, at) for fact in added)))
    tables["handoffs"] = [
        (fact.child_run_id, run_id, "start", rev)
        for rev, fact in enumerate(added, start=last.rev + 1)
        if isinstance(fact, facts.ChildRunStarted)
    ]
    await _write(journal.store, run_id, entries, tables)
    await journal.settle_down(run_id)


def _beginning(state: RunState, lines: Lines, run_id: str, source_run_id: str) -> list[Fact]:
    """What the fork adds to its copy."""
    forked = facts.RunForked(source_run_id=source_run_id, at_rev=state.rev)
    if state.terminal:
        return [forked]
    return [forked, *(_started_anew(lines[child.started_rev - 1][1], run_id) for child in state.open_children())]


def _started_anew(fact: Fact, run_id: str) -> Fact:
    assert isinstance(fact, facts.ChildRunStarted)
    return replace(fact, child_run_id=child_id(run_id, fact.step, fact.clog_id, fact.child_key))


async def restore(store: Store[RunState], entries: Sequence[Entry]) -> str:
    """Write a run that another database holds, with its id, revisions and instants; answer its id.

    What is here already in the same words is left as it is, however far it has come since.
    """
    run_id = entries[0].thread.removeprefix(RUN_PREFIX)
    if await _begins_alike(store, entries):
        return run_id
    state = RunState(run_id=run_id)
    shared: dict[str, Row | None] = {}
    calls: list[Row] = []
    asked: list[Row] = []
    copied = max((entry.rev for entry in entries if entry.kind == facts.RunForked.kind), default=0)
    for entry in entries:
        fact = fact_of(entry)
        before, state = state, evolve(state, fact, entry.at)
        if entry.rev > copied and is_accepted_write(fact, before, state):
            shared |= shared_rows(state, fact, entry.rev)
        elif entry.rev > copied and isinstance(fact, facts.OutboxEnqueued) and not before.terminal:
            asked.append(outbox_row(state, fact, entry.at, refusal=ELSEWHERE))
        if entry.rev > copied:
            calls += filter(None, [audit_row(before, fact, state, entry.at)])
    written = [row for row in shared.values() if row is not None]
    tables = {**all_rows(state), "shared_storage": written, "outbox": asked, "tool_calls": calls}
    await _write(store, run_id, entries, tables)
    return run_id


async def _begins_alike(store: Store[RunState], entries: Sequence[Entry]) -> bool:
    here = await store.read(entries[0].thread, limit=len(entries))
    alike = [entry[1:] for entry in here] == [entry[1:] for entry in entries]
    return alike and not await store.gone_among([entries[0].thread.removeprefix(RUN_PREFIX)])


async def _write(store: Store[RunState], run_id: str, entries: Sequence[Entry], tables: dict[str, list[Row]]) -> None:
    await _check_place(store, run_id, entries, tables)
    if not await store.restore(entries, tables):
        await _check_place(store, run_id, entries, tables)
        raise Conflict(f"run {run_id} cannot be written beside what is here; something else was faster")


async def _check_place(
    store: Store[RunState], run_id: str, entries: Sequence[Entry], tables: dict[str, list[Row]]
) -> None:
    """Raise, in words, what stands in the way of this run."""
    if await store.gone_among([run_id]) or await store.read(entries[0].thread, limit=1):
        raise Conflict(f"there is, or was, another run {run_id}; an id is never used again", code="id_reused")
    for row in tables["runs"]:
        session_id, user_id = row[1], row[2]
        owner = "SELECT 1 FROM {s}sessions WHERE session_id = $1 AND user_id <> $2"
        if await store.fetch(owner, session_id, user_id):
            raise NotFound(f"there is no session {session_id} for {user_id}")
    for scope, key, *_ in tables["keys"]:
        if await store.fetch("SELECT 1 FROM {s}keys WHERE scope = $1 AND key = $2", scope, key):
            raise Conflict(f"key {key!r} made another run here", code="key_reused")
    for _, session_id, lane, *_, held in tables["lane_tickets"]:
        holder = "SELECT run_id FROM {s}lane_tickets WHERE session_id = $1 AND lane = $2 AND held = 1"
        for (other,) in await store.fetch(holder, session_id, lane) if held else []:
            text = f"the run holds lane {lane} of session {session_id}, and here run {other} does; let that end first"
            raise Conflict(text, code="lane_held")
