"""Scoped storage as a tick sees it: one read and one write for each clog, and no write of a row that was not read.

Rows of four scopes: `global` (one per user and clog), `session`, `run` (one each per clog) and `tick` (many, by row
id). A write is checked at once and staged; it commits with the tick's outcome if the rows are still as they were read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from holdfast.errors import StorageError
from holdfast.identity import check_name
from holdfast.journal import Journal
from holdfast.moments import from_us
from holdfast.protocol.facts import ROOT
from holdfast.protocol.storage import ALL_ROWS, ClogWrites, StagedWrite, facts_of, shared_name
from holdfast.protocol.values import clean, whole_number

SINGLE = ("global", "session", "run")
HISTORY_TICKS = 50
HISTORY_TICKS_MAX = 1_000
ROW_ID_LENGTH_MAX = 256

_SHARED = "SELECT value, run_id || ':' || rev FROM {s}shared_storage WHERE name = $1"
_OWN = """
    SELECT value, CAST(rev AS text) FROM {s}run_storage
    WHERE run_id = $1 AND clog_id = $2 AND tick_id = $3 AND row_id = $4
"""
_HISTORY = """
    SELECT tick_id, max(at) AS latest FROM {s}run_storage
    WHERE run_id = $1 AND clog_id = $2 AND tick_id <> ''
    GROUP BY tick_id ORDER BY latest {order}, tick_id {order} LIMIT $3
"""
_OF_TICK = """
    SELECT row_id, value FROM {s}run_storage
    WHERE run_id = $1 AND clog_id = $2 AND tick_id = $3 ORDER BY row_id
"""

_WRITES = {
    "global.set": ("global", 1),
    "global.clear": ("global", 0),
    "session.set": ("session", 1),
    "session.clear": ("session", 0),
    "session.delete": ("session", 0),
    "run.set": ("run", 1),
    "run.clear": ("run", 0),
    "run.delete": ("run", 0),
    "tick.set": ("tick", 2),
    "tick.del": ("tick", 1),
    "tick.delete": ("tick", 0),
}
"""Each operation with its scope and the number of values that follow its name."""


class Place(NamedTuple):
    """A row: its scope, and its id where the scope has many."""

    scope: str
    row_id: str = ""


class TickStorage:
    """The storage of one tick, for every clog that takes part in it. Budgets are by clog and never refilled."""

    def __init__(
        self,
        journal: Journal,
        *,
        run_id: str,
        session_id: str,
        user_id: str,
        tick_id: str,
        spent: Sequence[str] = (),
    ) -> None:
        self._journal = journal
        self._store = journal.store
        self._run_id = run_id
        self._session_id = session_id
        self._user_id = user_id
        self._tick_id = tick_id
        self._seen: dict[tuple[str, Place], str] = {}
        self._staged: dict[str, ClogWrites] = {}
        self._deletes: list[str] = []
        self.spent = set(spent)

    @property
    def staged(self) -> tuple[ClogWrites, ...]:
        return tuple(self._staged.values())

    @property
    def deletes(self) -> tuple[str, ...]:
        """`run` and `session`: what goes once the tick has ended."""
        return tuple(self._deletes)

    async def read(self, clog_id: str, plans: Sequence[Any]) -> list[Any]:
        """The values of these plans, in order. Each exact row that is read may be written later in this tick."""
        self._spend(f"r:{clog_id}", "STORAGE_READ_ALREADY_CALLED", "read all rows with one call")
        checked = [self._plan(plan) for plan in plans]
        return [await self._answer(clog_id, *plan) for plan in checked]

    async def write(self, clog_id: str, ops: Sequence[Any]) -> int:
        """Stage these operations, all or none; answer how many. They are on disk when the tick's outcome is."""
        self._spend(f"w:{clog_id}", "STORAGE_WRITE_ALREADY_CALLED", "write all rows with one call")
        if f"r:{clog_id}" not in self.spent:
            raise StorageError(
                "nothing was read in this tick; read the rows first, then write them", code="STORAGE_WRITE_BEFORE_READ"
            )
        writes: dict[Place, StagedWrite] = {}
        deletes: list[str] = []
        any_repaired = False
        for op in ops:
            name, values = self._operation(op)
            place = self._permitted(clog_id, name, values)
            if name in ("run.delete", "session.delete"):
                deletes.append(place.scope)
                continue
            value, repaired = clean(values[-1] if name.endswith(".set") else None)
            any_repaired = any_repaired or repaired
            # Of several operations on one row the last one counts.
            writes[place] = self._write(clog_id, place, value, cleared=not name.endswith(".set"))
        await self._check_fresh(clog_id, writes)
        staged = ClogWrites(clog_id=clog_id, writes=tuple(writes.values()), repaired=any_repaired)
        self._journal.check_size(*facts_of(self._tick_id, ROOT, [staged]))
        self._staged[clog_id] = staged
        self._deletes += deletes
        return len(ops)

    def _spend(self, what: str, code: str, advice: str) -> None:
        # Used up first: a call that fails has had its chance too.
        if what in self.spent:
            raise StorageError(f"this clog has used its one {_word(what)} of this tick; {advice}", code=code)
        self.spent.add(what)

    def _plan(self, plan: Any) -> tuple[str, Any]:
        match list(plan) if isinstance(plan, list | tuple) else None:
            case [str() as scope] if scope in SINGLE:
                return scope, None
            case [str() as scope, str() as named] if scope in SINGLE and named == self._named(scope):
                return scope, None
            case ["tick", list() | tuple() as row_ids]:
                return "tick", [_row_id(row_id) for row_id in row_ids]
            case ["history"]:
                return "history", {}
            case ["history", dict() as options] if options.keys() <= {"limit", "order"}:
                return "history", options
        raise _invalid(f"{plan!r} is no plan that this tick can read")

    async def _answer(self, clog_id: str, scope: str, details: Any) -> Any:
        if scope == "history":
            return await self._history(clog_id, details)
        if scope != "tick":
            return await self._load(clog_id, Place(scope), None)
        rows = {row_id: await self._load(clog_id, Place("tick", row_id), _ABSENT) for row_id in details}
        return {row_id: value for row_id, value in rows.items() if value is not _ABSENT}

    async def _load(self, clog_id: str, place: Place, absent: Any) -> Any:
        value, version = await self._fetch(clog_id, place)
        self._seen[clog_id, place] = version
        return absent if value is None else msgspec.json.decode(value)

    async def _fetch(self, clog_id: str, place: Place) -> tuple[str | None, str]:
        """The stored text and its version; nothing and an empty version where there is no row."""
        if place.scope in ("global", "session"):
            rows = await self._store.fetch(_SHARED, self._shared(clog_id, place.scope))
        else:
            tick_id = self._tick_id if place.scope == "tick" else ""
            rows = await self._store.fetch(_OWN, self._run_id, clog_id, tick_id, place.row_id)
        return (rows[0][0], rows[0][1]) if rows else (None, "")

    async def _history(self, clog_id: str, options: dict[str, Any]) -> list[dict[str, Any]]:
        """Rows of earlier ticks, by tick. Looking back unlocks nothing."""
        limit = whole_number(options.get("limit", HISTORY_TICKS), "limit", 1, HISTORY_TICKS_MAX)
        order = options.get("order", "desc")
        if order not in ("asc", "desc"):
            raise _invalid(f"order is {order!r}; use 'asc' or 'desc'")
        ticks = await self._store.fetch(_HISTORY.replace("{order}", order), self._run_id, clog_id, limit)
        return [
            {
                "tick_id": tick_id,
                "at": from_us(at),
                "rows": {
                    row_id: msgspec.json.decode(value)
                    for row_id, value in await self._store.fetch(_OF_TICK, self._run_id, clog_id, tick_id)
                },
            }
            for tick_id, at in ticks
        ]

    def _operation(self, op: Any) -> tuple[str, list[Any]]:
        """The operation's name and its values, without the id of its own scope if one was given."""
        parts = list(op) if isinstance(op, list | tuple) else []
        if not parts or not isinstance(parts[0], str) or parts[0] not in _WRITES:
            raise _invalid(f"{op!r} is no operation on storage")
        name, *values = parts
        scope, count = _WRITES[name]
        if len(values) == count + 1 and values[0] == self._named(scope):
            values = values[1:]
        if len(values) != count:
            raise _invalid(f"{name} of another {scope}, or with the wrong number of values")
        return name, values

    def _permitted(self, clog_id: str, name: str, values: list[Any]) -> Place:
        """The row that the operation changes, if this clog has read exactly it in this tick."""
        scope, _ = _WRITES[name]
        if name == "tick.delete":
            place = Place("tick", ALL_ROWS)
            read = any(owner == clog_id and seen.scope == "tick" for owner, seen in self._seen)
        else:
            place = Place(scope, _row_id(values[0]) if scope == "tick" else "")
            read = (clog_id, place) in self._seen
        if not read:
            raise StorageError(f"{name}: read exactly this row in the same tick first", code="RBW_VIOLATION")
        return place

    def _write(self, clog_id: str, place: Place, value: Any, *, cleared: bool) -> StagedWrite:
        name = self._shared(clog_id, place.scope) if place.scope in ("global", "session") else ""
        return StagedWrite(
            scope=place.scope,
            row_id=place.row_id,
            value=value,
            cleared=cleared,
            seen=self._seen.get((clog_id, place), ""),
            name=name,
        )

    async def _check_fresh(self, clog_id: str, writes: dict[Place, StagedWrite]) -> None:
        for place, write in writes.items():
            if place == Place("tick", ALL_ROWS):
                continue
            _, version = await self._fetch(clog_id, place)
            if version != write.seen:
                raise StorageError(
                    f"the {place.scope} row was changed since this tick read it; try the tick again",
                    code="STORAGE_CONFLICT",
                )

    def _named(self, scope: str) -> str:
        return {"global": "", "session": self._session_id, "run": self._run_id, "tick": self._tick_id}[scope]

    def _shared(self, clog_id: str, scope: str) -> str:
        return shared_name(scope, clog_id, user_id=self._user_id, session_id=self._session_id)


_ABSENT = object()


def _word(spent: str) -> str:
    return "read" if spent.startswith("r:") else "write"


def _row_id(value: Any) -> str:
    return check_name(value, "row_id", longest=ROW_ID_LENGTH_MAX)


def _invalid(what: str) -> StorageError:
    return StorageError(f"{what}; a tick reaches its own session, run and tick only", code="INVALID_SCOPE")
