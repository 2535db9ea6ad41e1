"""Questions that nobody answered in time. Whoever sweeps closes them; what that means for the run is decided there."""

from __future__ import annotations

from typing import Protocol

from holdfast.journal.planner import Executed
from holdfast.protocol.commands import Command, ExpireBoundary
from holdfast.protocol.state import RunState
from holdfast.store import Store

BATCH = 500


class Carrier(Protocol):
    """What closing needs of the journal."""

    @property
    def store(self) -> Store[RunState]: ...

    async def execute(self, run_id: str, command: Command, *, exact: bool = False) -> Executed: ...


async def sweep(journal: Carrier, now: int) -> int:
    """Close every question whose time is over; answer how many were closed."""
    sql = f"""
        SELECT run_id FROM {{s}}runs WHERE boundary_expires_at <= $1 ORDER BY boundary_expires_at LIMIT {BATCH}
    """
    late = await journal.store.fetch(sql, now)
    # Behind the lock, since a person may be answering at this very instant.
    closed = [await journal.execute(run_id, ExpireBoundary(), exact=True) for (run_id,) in late]
    return sum(executed.at is not None for executed in closed)
