"""Scoped storage: which rows a write names, and whether they are still as its writer read them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeGuard

import msgspec
from msgspec.structs import replace

from holdfast.protocol import facts
from holdfast.protocol.state import RunState, Stored

SHARED = frozenset({"global", "session"})
ALL_ROWS = ""


class StagedWrite(msgspec.Struct, frozen=True, kw_only=True):
    """A write that waits for its tick's commit. `seen` is the version that its writer read, empty for no row.

    A row that several runs share has a `name`, so that it can be locked before anything is decided.
    """

    scope: str
    row_id: str = ""
    value: Any = None
    cleared: bool = False
    seen: str = ""
    name: str = ""


class ClogWrites(msgspec.Struct, frozen=True, kw_only=True):
    """Everything one clog staged in one tick."""

    clog_id: str
    writes: tuple[StagedWrite, ...]
    repaired: bool = False


def shared_name(scope: str, clog_id: str, *, user_id: str, session_id: str) -> str:
    """The name of a row that several runs share: one per user and clog, or one per session and clog."""
    # No id holds a slash, so no two rows share a name.
    return f"session/{session_id}/{clog_id}" if scope == "session" else f"global/{user_id}/{clog_id}"


def name_of(state: RunState, scope: str, clog_id: str) -> str:
    return shared_name(scope, clog_id, user_id=state.user_id, session_id=state.session_id)


def version(row: Stored | None) -> str:
    return "" if row is None else str(row.rev)


def has_changed(state: RunState, tick_id: str, staged: Iterable[ClogWrites]) -> bool:
    """Has any row that these writes name been changed since their writer read it?"""
    return any(_current(state, tick_id, part, write) != write.seen for part in staged for write in part.writes)


def _current(state: RunState, tick_id: str, part: ClogWrites, write: StagedWrite) -> str:
    if write.scope in SHARED:
        return state.shared.get(name_of(state, write.scope, part.clog_id), "")
    if write.scope == "tick" and write.row_id == ALL_ROWS:
        return ""
    return version(state.storage.get(_place(part.clog_id, tick_id, write)))


def facts_of(tick_id: str, runnable_key: str, staged: Iterable[ClogWrites]) -> list[facts.Fact]:
    return [
        facts.StorageWritten(
            tick_id=tick_id,
            clog_id=part.clog_id,
            runnable_key=runnable_key,
            writes=[
                facts.StorageWrite(scope=write.scope, row_id=write.row_id, value=write.value, cleared=write.cleared)
                for write in part.writes
            ],
            repaired=part.repaired,
        )
        for part in staged
        if part.writes
    ]


def fold_writes(state: RunState, fact: facts.StorageWritten, at: int) -> RunState:
    """The run's own rows after these writes; shared rows belong to no run."""
    rows = state.storage
    for write in fact.writes:
        if write.scope in SHARED:
            continue
        if write.scope == "tick" and write.row_id == ALL_ROWS:
            for where in [where for where in rows if where[1] == fact.tick_id]:
                rows = rows.delete(where)
            continue
        where = _place(fact.clog_id, fact.tick_id, write)
        if not write.cleared:
            rows = rows.set(where, Stored(rev=state.rev, at=at, value=write.value))
        elif where in rows:
            rows = rows.delete(where)
    return replace(state, storage=rows)


def is_accepted_write(fact: facts.Fact, before: RunState, after: RunState) -> TypeGuard[facts.StorageWritten]:
    """Did this fact change storage? One that came late or twice did not."""
    return isinstance(fact, facts.StorageWritten) and before.ticks != after.ticks


def _place(clog_id: str, tick_id: str, write: Any) -> tuple[str, str, str]:
    return (clog_id, tick_id, write.row_id) if write.scope == "tick" else (clog_id, "", "")
