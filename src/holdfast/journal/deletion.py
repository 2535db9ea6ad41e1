"""Deleting what belongs together. Each run goes by a command of its own: a crash leaves runs, never halves of one."""

from __future__ import annotations

from typing import Protocol

from holdfast.errors import Conflict
from holdfast.journal.planner import Executed
from holdfast.protocol.commands import Command, Delete
from holdfast.protocol.state import RunState
from holdfast.store import Store


class Carrier(Protocol):
    """What deletion needs of the journal."""

    @property
    def store(self) -> Store[RunState]: ...

    async def execute(self, run_id: str, command: Command) -> Executed: ...


async def delete_session(journal: Carrier, session_id: str, *, force: bool, actor: str | None = None) -> None:
    """Delete every run of the session, then the session and its storage. Repeating it finishes what a crash left."""
    store = journal.store
    if not force:
        await _check_rest(store, session_id)
    while True:
        runs = await store.fetch("SELECT run_id FROM {s}runs WHERE session_id = $1 LIMIT 100", session_id)
        for (run_id,) in runs:
            executed = await journal.execute(run_id, Delete(actor=actor, force=force))
            if executed.decision.refusal == "run_active":
                raise _active(session_id, run_id)
        if not runs:
            # A run that was created a moment ago keeps its session, and is deleted in the next round.
            sql = """
                DELETE FROM {s}sessions
                WHERE session_id = $1 AND NOT EXISTS (SELECT 1 FROM {s}runs WHERE session_id = $1)
            """
            await store.execute((sql, (session_id,)))
            if not await store.fetch("SELECT 1 FROM {s}sessions WHERE session_id = $1", session_id):
                return


async def _check_rest(store: Store[RunState], session_id: str) -> None:
    """Before anything is deleted: nobody works on any of them."""
    sql = """
        SELECT w.run_id
        FROM {s}runs r
        JOIN {s}work w ON w.run_id = r.run_id
        WHERE r.session_id = $1 AND w.lease_until > $2
        LIMIT 1
    """
    for (run_id,) in await store.fetch(sql, session_id, await store.now()):
        raise _active(session_id, run_id)


def _active(session_id: str, run_id: str) -> Conflict:
    return Conflict(
        f"session {session_id} has an active run, {run_id}; wait for it, or delete with force=True",
        code="session_active",
    )
