"""Whose turn it is in a lane. A run enters by a command of its own; here is who gives it, and when.

Everybody looks after their own commit: whoever queues up, and whoever leaves. So of two that happen at once the later
one sees both, and the sweep finds what a crash left standing.
"""

from __future__ import annotations

from typing import Protocol

from holdfast.journal.planner import Executed
from holdfast.protocol.commands import Command, EnterLane
from holdfast.protocol.state import RunState
from holdfast.store import Store


class Carrier(Protocol):
    """What promotion needs of the journal."""

    @property
    def store(self) -> Store[RunState]: ...

    async def execute(self, run_id: str, command: Command) -> Executed: ...


async def promote(journal: Carrier, session_id: str, lane: str) -> None:
    """Let the run in that has waited longest, if nobody holds the lane."""
    sql = """
        SELECT t.run_id, t.held
        FROM {s}lane_tickets t
        WHERE t.session_id = $1 AND t.lane = $2
        ORDER BY t.held DESC, t.at, (
            SELECT j.position FROM {s}journal j WHERE j.thread = 'run:' || t.run_id AND j.rev = t.rev
        )
        LIMIT 1
    """
    for run_id, held in await journal.store.fetch(sql, session_id, lane):
        if not held:
            await journal.execute(run_id, EnterLane())


async def sweep(journal: Carrier) -> int:
    """Promote in every lane that nobody holds; answer how many there were."""
    sql = """
        SELECT DISTINCT t.session_id, t.lane
        FROM {s}lane_tickets t
        WHERE t.held = 0 AND NOT EXISTS (
            SELECT 1 FROM {s}lane_tickets h WHERE h.session_id = t.session_id AND h.lane = t.lane AND h.held = 1
        )
    """
    free = await journal.store.fetch(sql)
    for session_id, lane in free:
        await promote(journal, session_id, lane)
    return len(free)
