"""Schedules as rows, and their windows as runs. Whoever sweeps starts what is due.

The run of a window has an id that follows from schedule and window, and it is created in the one commit that moves the
schedule on, if the row is still the one that was read. So of any number that sweep one starts it; a row that was
changed, paused or deleted meanwhile starts nothing; and no crash finds the one without the other.
"""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Any, Protocol

import msgspec

from holdfast import ambient
from holdfast.errors import DatabaseError, InvalidEntry, InvalidValue
from holdfast.identity import window_id
from holdfast.journal.planner import Executed
from holdfast.moments import from_us
from holdfast.protocol import facts, windows
from holdfast.protocol.commands import Command, Create
from holdfast.protocol.state import RunState
from holdfast.protocol.windows import Timing
from holdfast.redaction import logger
from holdfast.store import Statement, Store

log = logger("holdfast.schedules")
BATCH = 50
TOPIC = "schedules"
"""What those hear who wait for the next window: one may come sooner than it did."""
ORIGIN = "schedule"
"""Where the metadata of a run says which schedule and window started it."""


class StoredSchedule(msgspec.Struct, frozen=True, kw_only=True):
    """One row; the fields are its columns. `template` is the creation of every run, without its window."""

    user_id: str
    name: str
    cron: str | None
    timezone: str | None
    at: int | None
    missed: str
    paused: bool
    template: str
    next_at: int | None = None
    last_at: int | None = None
    last_run_id: str | None = None
    last_error: str | None = None
    created_at: int
    updated_at: int
    stamp: int = 0

    @property
    def timing(self) -> Timing:
        return Timing(cron=self.cron, timezone=self.timezone, at=self.at)

    @property
    def creation(self) -> facts.RunCreated:
        """What its runs are created with."""
        created = facts.decode("run_created", self.template)
        assert isinstance(created, facts.RunCreated)
        return created

    def start(self, **occasion: Any) -> Create:
        """The command that starts a run on this occasion, which stays on record in the run."""
        created = self.creation
        told = {**created.metadata, ORIGIN: {"name": self.name, **occasion}}
        return Create(fact=msgspec.structs.replace(created, metadata=told))

    def changed(self, **fields: Any) -> StoredSchedule:
        """The row with these fields, recognisable as another one than before."""
        return msgspec.structs.replace(self, **fields, stamp=ambient.random_bits(62))


class Carrier(Protocol):
    """What starting needs of the journal."""

    @property
    def store(self) -> Store[RunState]: ...

    async def execute(self, run_id: str, command: Command, *, guard: Statement | None = None) -> Executed: ...


COLUMNS = StoredSchedule.__struct_fields__
_KEY = ("user_id", "name")
_CHOSEN = ", ".join(COLUMNS)
_READ = f"SELECT {_CHOSEN} FROM {{s}}schedules WHERE user_id = $1 AND name = $2"
_DUE = f"SELECT {_CHOSEN} FROM {{s}}schedules WHERE next_at <= $1 ORDER BY next_at, user_id, name LIMIT {BATCH}"
_INSERT = f"""
    INSERT INTO {{s}}schedules ({_CHOSEN}) VALUES ({", ".join(f"${place}" for place, _ in enumerate(COLUMNS, start=1))})
    ON CONFLICT (user_id, name) DO NOTHING
"""
_UPDATE = f"""
    UPDATE {{s}}schedules
    SET {", ".join(f"{name} = ${place}" for place, name in enumerate(COLUMNS, start=1) if name not in _KEY)}
    WHERE user_id = $1 AND name = $2 AND stamp = ${len(COLUMNS) + 1}
"""


def decoded(row: tuple[Any, ...]) -> StoredSchedule:
    """The schedule in a row of `COLUMNS`."""
    values = dict(zip(COLUMNS, row, strict=True))
    return StoredSchedule(**{**values, "paused": bool(values["paused"])})


async def read(store: Store[RunState], user_id: str, name: str) -> StoredSchedule | None:
    for row in await store.fetch(_READ, user_id, name):
        return decoded(row)
    return None


async def save(store: Store[RunState], before: StoredSchedule | None, after: StoredSchedule) -> bool:
    """Put a row in the place of the one that was read. False: someone else was quicker, or will have been."""
    await store.execute((_INSERT, _values(after)) if before is None else update(before, after))
    stored = await read(store, after.user_id, after.name)
    store.hints.publish([TOPIC])
    return stored is not None and stored.stamp == after.stamp


def update(before: StoredSchedule, after: StoredSchedule) -> Statement:
    """Changes the row only while it is the one that was read."""
    return _UPDATE, (*_values(after), before.stamp)


def _values(row: StoredSchedule) -> tuple[Any, ...]:
    values = {name: getattr(row, name) for name in COLUMNS}
    return tuple({**values, "paused": int(row.paused)}.values())


async def sweep(journal: Carrier, now: int) -> int:
    """Start the windows that are due; answer how many schedules moved on."""
    late = [decoded(row) for row in await journal.store.fetch(_DUE, now)]
    # At once, because many may have the same hour. Of one schedule each window waits for the one before.
    moved = await asyncio.gather(*(_advance(journal, row, now) for row in late), return_exceptions=True)
    for failure in moved:
        if isinstance(failure, BaseException):
            raise failure
    return sum(map(bool, moved))


async def _advance(journal: Carrier, row: StoredSchedule, now: int) -> bool:
    """Start what is due of one schedule; False if nobody here knows what that is."""
    assert row.next_at is not None
    try:
        due = windows.due(row.timing, row.missed, row.next_at, now)
    except InvalidValue as error:
        # Those who put it there knew this time zone and this text, so others may know them too.
        log.warning("schedule %s of %s is left to others: %s", row.name, row.user_id, error)
        return False
    if not due.windows:
        await journal.store.execute(update(row, row.changed(next_at=due.next_at)))
    for window, next_at in zip(due.windows, (*due.windows[1:], due.next_at), strict=False):
        moved = await _start(journal, row, window, next_at)
        if moved is None:
            break
        row = moved
    return True


async def _start(journal: Carrier, row: StoredSchedule, window: int, next_at: int | None) -> StoredSchedule | None:
    """Start the run of a window and move on; None if the row is no longer the one that was read."""
    run_id = window_id(row.user_id, row.name, window)
    moved = row.changed(next_at=next_at, last_at=window, last_run_id=run_id, last_error=None)
    try:
        executed = await journal.execute(run_id, row.start(window=shown(window)), guard=update(row, moved))
    except (DatabaseError, InvalidEntry, InvalidValue) as error:
        if isinstance(error, DatabaseError) and error.code != "write_rejected":
            raise
        return await _give_up(journal, row, next_at, error)
    if executed.at is None and executed.decision.facts:
        return None
    if executed.at is None:
        # The id of this window has been used: the run was started before, and may be deleted by now.
        await journal.store.execute(update(row, moved))
    return moved


async def _give_up(journal: Carrier, row: StoredSchedule, next_at: int | None, error: Exception) -> StoredSchedule:
    """A start that is refused holds up neither the next window nor other schedules; why it was stays on the row."""
    log.warning("schedule %s of %s could not be started: %s", row.name, row.user_id, error)
    moved = row.changed(next_at=next_at, last_error=str(error))
    await journal.store.execute(update(row, moved))
    return moved


def shown(window: int) -> str:
    """A window as records show it: in UTC, to the last digit."""
    instant: datetime = from_us(window)
    return instant.isoformat()
