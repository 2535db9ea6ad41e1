"""Deleting what belongs together. Each run goes by a command of its own: a crash leaves runs, never halves of one."""

from __future__ import annotations

from typing import Protocol

from holdfast.errors import Conflict
from holdfast.journal.planner import Executed
from holdfast.protocol.commands import Command, Delete
from holdfast.protocol.state import RunState
from holdfast.store import Store
from holdfast.store.types import Rejected


class Carrier(Protocol):
    """What deletion needs of the journal."""

    @property
    def store(self) -> Store[RunState]: ...

    async def execute(self, run_id: str, command: Command) -> Executed: ...


async def delete_session(
    journal: Carrier,
    session_id: str,
    *,
    force: bool,
    actor: str | None = None,
    closes: tuple[str, ...] | None = None,
) -> None:
    """Delete every run of the session, then the session and its storage. Repeating it finishes what a crash left.

    `closes` names the handoff (target, source, kind) that asked for it.
    """
    store = journal.store
    if not force:
        await _check_rest(store, session_id)
    while True:
        runs = await store.fetch("SELECT run_id FROM {s}runs WHERE session_id = $1 LIMIT 100", session_id)
        for (run_id,) in runs:
            executed = await journal.execute(run_id, Delete(actor=actor, force=force))
            if executed.decision.refusal == "run_active":
                raise _active(session_id, run_id)
        if not runs and await _remove(store, session_id, closes):
            return


async def _remove(store: Store[RunState], session_id: str, closes: tuple[str, ...] | None) -> bool:
    """Remove the empty session. A run that was created a moment ago keeps it, and is deleted in the next round."""
    statements: list[tuple[str, tuple[str, ...]]] = [("DELETE FROM {s}sessions WHERE session_id = $1", (session_id,))]
    if closes is not None:
        sql = "DELETE FROM {s}handoffs WHERE target_run_id = $1 AND source_run_id = $2 AND kind = $3"
        statements.append((sql, closes))
    try:
        await store.execute(*statements)
    except Rejected:
        return False
    return True


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
