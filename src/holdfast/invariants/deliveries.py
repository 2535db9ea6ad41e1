"""The law of the outbox: what a run asked to be delivered has exactly one row, and no row speaks for a run (O1)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set

from holdfast.invariants.problems import Problem
from holdfast.invariants.runs import RunSnapshot
from holdfast.journal.rows import outbox_row
from holdfast.protocol import facts
from holdfast.store import Row
from holdfast.store.tables import OUTBOX

ASKED = ("outbox_id", "run_id", "target_space", "payload", "payload_sha")
"""What a row owes to its entry. All else is what became of it."""
_PLACES = tuple(OUTBOX.names.index(name) for name in ASKED)


def asked_deliveries(run: RunSnapshot) -> Iterator[Row]:
    """The rows that the run's own entries made, as they were then; those that a fork copied are the original's."""
    forks = [after.rev for _, fact, after in run.steps() if isinstance(fact, facts.RunForked)]
    for before, fact, after in run.steps():
        if isinstance(fact, facts.OutboxEnqueued) and after.rev > max(forks, default=0) and not before.terminal:
            yield outbox_row(after, fact, after.at)


def deliveries_are_asked_for(
    stored: Sequence[Row], asked: Mapping[str, Row], readable: Mapping[str, object]
) -> Iterator[Problem]:
    """O1: a row (the columns `ASKED`) is what its run's entry says. Of purged runs nothing can be said."""
    for row in stored:
        outbox_id, run_id = row[0], row[1]
        wanted = asked.get(outbox_id)
        if wanted is None and run_id in readable:
            yield Problem("O1", f"run:{run_id}", f"outbox[{outbox_id!r}] is not in the journal")
        elif wanted is not None and tuple(wanted[place] for place in _PLACES) != row:
            yield Problem("O1", f"run:{wanted[_PLACES[1]]}", f"outbox[{outbox_id!r}] is not what the journal says")


def asked_deliveries_are_there(stored: Set[str], asked: Mapping[str, Row]) -> Iterator[Problem]:
    """O1: whatever was asked for has its row, delivered or not."""
    for outbox_id, row in asked.items():
        if outbox_id not in stored:
            yield Problem("O1", f"run:{row[_PLACES[1]]}", f"outbox[{outbox_id!r}] is missing")
