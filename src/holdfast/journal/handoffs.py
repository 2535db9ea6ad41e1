"""Handoffs: what one run's commit means for another, delivered as a command of the other.

The row is written with the cause and removed with the effect, so nothing is lost between two commits, and no commit
ever has to lock a second run. Delivery is at once; the sweep finds what a crash left behind.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import msgspec

from holdfast.errors import InvalidEntry
from holdfast.journal.deletion import delete_session
from holdfast.journal.planner import Executed
from holdfast.protocol import commands, facts
from holdfast.protocol.commands import Command
from holdfast.protocol.facts import Fact
from holdfast.protocol.state import RunState
from holdfast.redaction import logger
from holdfast.store import Store

log = logger("holdfast.journal")


class Carrier(Protocol):
    """What delivery needs of the journal."""

    @property
    def store(self) -> Store[RunState]: ...

    async def facts_at(self, places: Sequence[tuple[str, int]]) -> dict[tuple[str, int], Fact]: ...

    async def execute(self, run_id: str, command: Command, *, closes: tuple[str, str] | None = None) -> Executed: ...


class OpenHandoff(NamedTuple):
    """`rev` is the entry of the source that holds the details."""

    target_run_id: str
    source_run_id: str
    kind: str
    rev: int


async def sweep(journal: Carrier) -> int:
    """Deliver all that are open; answer how many there were."""
    found = [OpenHandoff(*row) for row in await journal.store.handoffs()]
    for handoff in found:
        try:
            await deliver(journal, handoff)
        except InvalidEntry as error:
            # A damaged run must not cost the others what they are owed.
            log.warning("a handoff from run %s cannot be read: %s", handoff.source_run_id, error)
    return len(found)


async def deliver_all(journal: Carrier, run_id: str) -> None:
    """Deliver those that are open to or from one run."""
    for row in await journal.store.handoffs(of=run_id):
        await deliver(journal, OpenHandoff(*row))


async def deliver(journal: Carrier, handoff: OpenHandoff, fact: Fact | None = None) -> None:
    """Carry out what the source's entry means for the target, exactly once however often it is called.

    Whoever has just committed that entry knows its fact; everybody else reads it.
    """
    if handoff.kind == "delete_session":
        await _delete_session(journal, handoff)
        return
    executed = await _execute(journal, handoff, fact)
    if executed.decision.refusal == "not_found":
        # A cancel that overtook the start of its child: without the child it would be lost, and the child would run.
        await _deliver_start(journal, handoff)
        executed = await _execute(journal, handoff)
    if executed.at is None:
        # Already known there, or not wanted any more: only the row is left to remove.
        await journal.store.drop_handoff(handoff.target_run_id, handoff.source_run_id, handoff.kind)


async def _delete_session(journal: Carrier, handoff: OpenHandoff) -> None:
    """A clog deleted its session with the outcome of its tick.

    The handoff goes with the session: a later session of the same name is not its business.
    """
    found = await journal.store.fetch("SELECT session_id FROM {s}runs WHERE run_id = $1", handoff.target_run_id)
    gone = "SELECT session_id FROM {s}tombstones WHERE run_id = $1"
    for (session_id,) in found or await journal.store.fetch(gone, handoff.target_run_id):
        await delete_session(journal, session_id, force=True, closes=handoff[:3])
    await journal.store.drop_handoff(handoff.target_run_id, handoff.source_run_id, handoff.kind)


async def _execute(journal: Carrier, handoff: OpenHandoff, fact: Fact | None = None) -> Executed:
    if handoff.kind == "delete_run":
        # The cause may be gone with its run, and nothing of it is needed.
        return await journal.execute(handoff.target_run_id, commands.Delete(force=True))
    place = (handoff.source_run_id, handoff.rev)
    known = fact or (await journal.facts_at([place]))[place]
    closes = (handoff.source_run_id, handoff.kind)
    return await journal.execute(handoff.target_run_id, _command(handoff, known), closes=closes)


async def _deliver_start(journal: Carrier, handoff: OpenHandoff) -> None:
    sql = "SELECT rev FROM {s}handoffs WHERE target_run_id = $1 AND source_run_id = $2 AND kind = $3"
    for (rev,) in await journal.store.fetch(sql, handoff.target_run_id, handoff.source_run_id, "start"):
        await deliver(journal, handoff._replace(kind="start", rev=rev))


def _command(handoff: OpenHandoff, fact: facts.Fact) -> Command:
    if isinstance(fact, facts.ChildRunStarted):
        return commands.Create(fact=_child_creation(handoff, fact))
    assert isinstance(fact, facts.RunTerminal)
    if handoff.kind == "cancel":
        return commands.Cancel(reason=f"its parent {handoff.source_run_id} was cancelled")
    return commands.FinishChild(
        child_run_id=handoff.source_run_id, status=fact.status, output=fact.output, error=fact.error
    )


def _child_creation(handoff: OpenHandoff, fact: facts.ChildRunStarted) -> facts.RunCreated:
    parent = facts.Parent(
        run_id=handoff.source_run_id,
        child_key=fact.child_key,
        step=fact.step,
        runnable_key=fact.runnable_key,
        attempt=fact.attempt,
    )
    body = {"session_id": "children", **fact.start, "clog_id": fact.clog_id, "parent": msgspec.to_builtins(parent)}
    return msgspec.convert(body, facts.RunCreated)
