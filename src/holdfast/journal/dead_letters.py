"""Deliveries that were given up, told to the runs that asked for them: an event, never a failure.

The row remembers that its run was told, in the commit of the event; the sweep finds those that a crash left untold.
"""

from __future__ import annotations

from typing import Protocol

from holdfast.journal.planner import Executed
from holdfast.protocol.commands import Command, NoteDeadLetter
from holdfast.protocol.state import RunState
from holdfast.store import Statement, Store

BATCH = 100
_UNTOLD = f"""
    SELECT outbox_id, run_id, target_space, last_error, error_kind FROM {{s}}outbox
    WHERE status = 'dead' AND told = 0 AND run_id IS NOT NULL
    ORDER BY settled_at LIMIT {BATCH}
"""
_TOLD = "UPDATE {s}outbox SET told = 1 WHERE outbox_id = $1 AND told = 0"


class Carrier(Protocol):
    """What telling needs of the journal."""

    @property
    def store(self) -> Store[RunState]: ...

    async def execute(self, run_id: str, command: Command, *, guard: Statement | None = None) -> Executed: ...


async def sweep(journal: Carrier) -> int:
    """Tell every run of its dead letters; answer how many there were."""
    found = await journal.store.fetch(_UNTOLD)
    for outbox_id, run_id, target_space, error, kind in found:
        command = NoteDeadLetter(outbox_id=outbox_id, target_space=target_space, error=error, error_kind=kind)
        told: Statement = (_TOLD, (outbox_id,))
        executed = await journal.execute(run_id, command, guard=told)
        if executed.decision.refusal is not None:
            # The run is over or gone, and nothing follows its end: the row and its audits say what became of it.
            await journal.store.execute(told)
    return len(found)
