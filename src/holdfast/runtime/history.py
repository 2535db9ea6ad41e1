"""The orders a run was given, read from its journal: who wanted what, and when."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

import msgspec

from holdfast.journal.entries import fact_of, proved
from holdfast.journal.schedules import ORIGIN
from holdfast.moments import from_us
from holdfast.protocol import facts
from holdfast.protocol.facts import Fact
from holdfast.protocol.state import RunState
from holdfast.store import Entry, Store

_KINDS = (
    *("run_created", "run_forked", "signal_received", "cancel_requested"),
    *("manual_step_paused", "manual_step_resolved"),
)
_READ = f"""
    SELECT position, thread, rev, kind, data, at, digest, commit_id
    FROM {{s}}journal
    WHERE thread = $1 AND rev <= $2 AND kind IN ({", ".join(f"'{kind}'" for kind in _KINDS)})
    ORDER BY rev
"""


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """One order as the journal keeps it; what it carried for the program itself is left out."""

    rev: int
    at: datetime
    command: str
    actor: str | None = None
    comment: str | None = None
    key: str | None = None
    details: dict[str, Any] = {}


class History(msgspec.Struct, frozen=True, kw_only=True):
    """The receipts in order, and what only the first entries of a run know."""

    receipts: tuple[Receipt, ...]
    created: facts.RunCreated | None
    forked: facts.RunForked | None
    boundary_metadata: dict[str, Any]


async def read_history(store: Store[RunState], state: RunState) -> History:
    """The history up to the revision that `state` shows. A damaged entry raises `InvalidEntry`."""
    thread = f"run:{state.run_id}"
    told: list[tuple[Entry, Fact]] = []
    for row in await store.fetch(_READ, thread, state.rev):
        entry = Entry._make(row)
        entry = entry._replace(digest=bytes(entry.digest))
        # Revisions are apart here, so each entry is proved alone.
        told += [(each, fact_of(each)) for each in proved([entry], after=entry.rev - 1)]
    opened = {entry.rev: fact for entry, fact in told}.get(state.boundary.rev if state.boundary else 0)
    return History(
        receipts=tuple(_receipt(entry, fact) for entry, fact in told if not _is_of_a_flow(fact)),
        created=_first(told, facts.RunCreated),
        forked=_first(told, facts.RunForked),
        boundary_metadata=opened.metadata if isinstance(opened, facts.ManualStepPaused) else {},
    )


def repeats(receipts: Iterable[Receipt]) -> int:
    """How many receipts say the same as an earlier one."""
    said = [(each.command, each.actor, each.comment, msgspec.json.encode(each.details)) for each in receipts]
    return len(said) - len(set(said))


def _first(told: list[tuple[Entry, Fact]], kind: type[Any]) -> Any:
    return next((fact for _, fact in told if isinstance(fact, kind)), None)


def _is_of_a_flow(fact: Fact) -> bool:
    """A flow that asks a person orders nothing."""
    return isinstance(fact, facts.ManualStepPaused) and fact.flow


def _receipt(entry: Entry, fact: Fact) -> Receipt:
    return Receipt(rev=entry.rev, at=from_us(entry.at), key=getattr(fact, "key", None), **_told(fact))


def _told(fact: Fact) -> dict[str, Any]:
    match fact:
        case facts.RunCreated():
            origin = {name: value for name, value in fact.metadata.items() if name == ORIGIN}
            told = {"has_input": fact.has_input, **origin}
            return {"command": "replay" if fact.replayed_from else "start", "details": told}
        case facts.RunForked():
            return {"command": "fork", "details": {"source_run_id": fact.source_run_id, "at_rev": fact.at_rev}}
        case facts.SignalReceived():
            details = {"name": fact.name, "has_input": fact.has_input, "interrupt": fact.interrupt}
            # Two signals are two orders, however alike; only the same one twice is a repeat.
            return {"command": "signal", "details": {"signal_id": fact.signal_id, **details}}
        case facts.CancelRequested():
            return {
                "command": "cancel",
                "actor": fact.actor,
                "comment": fact.reason,
                "details": {"force": fact.force},
            }
        case facts.ManualStepPaused():
            return {"command": "pause", "details": {"step": fact.step, "kind": fact.boundary}}
        case facts.ManualStepResolved():
            return {
                "command": fact.action,
                "actor": fact.actor,
                "comment": fact.comment,
                "details": {"step": fact.step},
            }
        case _:
            raise AssertionError(f"{fact.kind} is no order")
