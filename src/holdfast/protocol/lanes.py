"""Lanes: runs of one session that take turns. One holds the lane, the others wait in the order they came.

A run keeps its lane while it has anything left to do and leaves it when it rests or ends. Whose turn it is follows
from the tickets of all runs of the lane, so entering is decided on what a slice shows of them, and the database lets
only one ticket of a lane be held.
"""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.protocol import facts
from holdfast.protocol.facts import Fact
from holdfast.protocol.state import UNKNOWN, RunState, Ticket


def queue_up(state: RunState, at: int) -> RunState:
    """Take a ticket with the first work, give it back at rest, and hide the work of a run that waits for its turn."""
    if state.lane is None:
        return state
    if state.terminal or state.status == "idle":
        return state if state.ticket is None else _leave(state)
    if state.ticket is None:
        if not state.work:
            return state
        state = replace(state, ticket=Ticket(at=at, rev=state.rev))
    assert state.ticket is not None
    blocked = not state.ticket.held
    for work in state.work.values():
        if work.blocked != blocked:
            state = replace(state, work=state.work.set(work.key, replace(work, blocked=blocked)))
    return state


def _leave(state: RunState) -> RunState:
    """Give the ticket back. Whoever held the lane does not know who stands in it now."""
    head = UNKNOWN if state.lane_head == state.run_id else state.lane_head
    return replace(state, ticket=None, lane_head=head)


def its_turn(state: RunState) -> tuple[Fact, ...]:
    """The fact that lets the run into its lane, if nobody stands before it."""
    waits = state.ticket is not None and not state.ticket.held
    return (facts.LaneEntered(),) if waits and state.lane_head in ("", state.run_id) else ()
