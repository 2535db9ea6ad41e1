"""Laws of what several runs share: storage of sessions and users (P9), lanes (R15), and schedules (W1)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from holdfast.invariants.problems import Problem
from holdfast.invariants.runs import RunSnapshot
from holdfast.journal.rows import shared_rows
from holdfast.protocol import facts
from holdfast.protocol.storage import is_accepted_write
from holdfast.store import Row


class SharedWrite(NamedTuple):
    """What one entry did to one shared row. `row` is None if it cleared it."""

    position: int
    name: str
    run_id: str
    rev: int
    row: Row | None
    kept: bool
    """Its row must be there. Not so a session's once the writer is deleted: the session may have gone with it."""


def shared_writes(run: RunSnapshot) -> Iterator[SharedWrite]:
    """The run's own writes to shared rows; those that a fork copied are the original's."""
    forks = [after.rev for _, fact, after in run.steps() if isinstance(fact, facts.RunForked)]
    is_deleted = bool(run.whole and run.whole.deleted)
    for entry, (before, fact, after) in zip(run.entries, run.steps(), strict=False):
        if entry.rev <= max(forks, default=0) or not is_accepted_write(fact, before, after):
            continue
        for name, row in shared_rows(after, fact, entry.rev).items():
            of_user = row is None or row[1] is None
            yield SharedWrite(entry.position, name, run.run_id, entry.rev, row, of_user or not is_deleted)


def last_writes(writes: Iterable[SharedWrite]) -> dict[str, SharedWrite]:
    """The last write of each name. Writers of one name take turns, so positions tell who was last."""
    return {write.name: write for write in sorted(writes)}


def shared_rows_are_written(
    stored: Sequence[Row], writes: Sequence[SharedWrite], readable: Iterable[str]
) -> Iterator[Problem]:
    """P9: a shared row is what the entry that it names says. Of a run that was purged nothing can be said."""
    known = {(write.name, write.run_id, write.rev): write for write in writes}
    runs = set(readable)
    for row in stored:
        name, _, run_id, rev, _ = row
        write = known.get((name, run_id, rev))
        if run_id in runs and (write is None or write.row is None):
            yield Problem("P9", f"run:{run_id}", f"shared_storage[{name!r}] is not in the journal")
        elif write is not None and write.row != row:
            yield Problem("P9", f"run:{run_id}", f"shared_storage[{name!r}] is not what entry {rev} says")


def written_rows_are_there(names: Iterable[str], last: Mapping[str, SharedWrite]) -> Iterator[Problem]:
    """P9: what was written last, and not cleared, is there."""
    stored = set(names)
    for name, write in last.items():
        if write.row is not None and write.kept and name not in stored:
            yield Problem("P9", f"run:{write.run_id}", f"shared_storage[{name!r}] is missing")


def lanes_have_one_head(held: Sequence[Row]) -> Iterator[Problem]:
    """R15: of all runs of a lane at most one holds it."""
    counts = Counter((session_id, lane) for _, session_id, lane in held)
    for run_id, session_id, lane in held:
        if counts[session_id, lane] > 1:
            yield Problem("R15", f"run:{run_id}", f"it holds lane {lane} of session {session_id}, and so do others")


def started_windows_have_runs(stored: Sequence[Row], runs: Iterable[str]) -> Iterator[Problem]:
    """W1: the run that a schedule says it has started last is there, or was deleted."""
    known = set(runs)
    for user_id, name, run_id in stored:
        if run_id not in known:
            yield Problem("W1", f"schedule:{name}", f"its run {run_id} (of {user_id}) was never started")
