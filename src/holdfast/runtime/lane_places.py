"""Where a run stands in its lane."""

from __future__ import annotations

from holdfast.protocol.state import RunState
from holdfast.store import Store

_AHEAD = """
    SELECT count(*)
    FROM {s}lane_tickets
    WHERE session_id = $1 AND lane = $2 AND run_id <> $3 AND (held = 1 OR (at, run_id) < ($4, $3))
"""


async def lane_place(store: Store[RunState], state: RunState) -> int | None:
    """1 for the run whose turn it is; None for a run that stands in no lane."""
    if state.ticket is None:
        return None
    if state.ticket.held:
        return 1
    ((ahead,),) = await store.fetch(_AHEAD, state.session_id, state.lane, state.run_id, state.ticket.at)
    return 1 + int(ahead)
