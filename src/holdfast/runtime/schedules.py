"""`Schedules`: what is started by itself, by name. Kept as rows, changed while everything runs."""

from __future__ import annotations

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from datetime import datetime
from typing import Any, Literal

import msgspec

from holdfast.errors import Conflict, InvalidValue, NotFound
from holdfast.identity import check_id, check_name, new_id, trigger_id, window_id
from holdfast.journal import schedules
from holdfast.journal.schedules import ORIGIN, StoredSchedule
from holdfast.moments import from_us
from holdfast.protocol import facts, windows
from holdfast.protocol.backoff import RetryPolicy
from holdfast.protocol.values import whole_number
from holdfast.protocol.windows import Missed, Timing
from holdfast.runtime.creation import creation
from holdfast.runtime.listing import LIMIT_MAX, Page
from holdfast.runtime.records import RunInfo
from holdfast.runtime.runs import Runs

Mode = Literal["return_existing_run", "skip_duplicate"]
MODES = ("return_existing_run", "skip_duplicate")
USER = "local"


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule as it is now. `next_at` is its next window: None while it is paused, and once it is over.

    `last_at` is the window it started last, `last_run_id` its run, and `last_error` why the last start was refused.
    """

    name: str
    user_id: str
    clog_id: str
    session_id: str
    cron: str | None
    timezone: str | None
    at: datetime | None
    missed: str
    paused: bool
    next_at: datetime | None
    last_at: datetime | None
    last_run_id: str | None
    last_error: str | None
    queue: str
    lane: str | None
    priority: int
    input: Any
    metadata: dict[str, Any]
    created_at: datetime
    updated_at: datetime


class Schedules:
    """Put, look at, pause, resume, delete and trigger. Names are per user; foreign ones are unknown."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs
        self._journal = runs.journal
        self._store = runs.journal.store

    async def put(
        self,
        name: str,
        *,
        clog_id: Any,
        session_id: str,
        input: Any = None,
        cron: str | None = None,
        timezone: str | None = None,
        at: datetime | None = None,
        missed: Missed = "latest",
        paused: bool | None = None,
        **options: Any,
    ) -> Schedule:
        """Start runs of a clog, flow or workflow by a cron text, or one run at an instant. Once more: change it live.

        `options` are those of `create_run` but `key` and `run_id`. Putting the same times again keeps the windows that
        are open, so a program may put its schedules whenever it starts; other times count from now. `paused=None`
        leaves that as it is. A window that was missed is started if it is the newest (`latest`), anyway (`all`), or not
        if it is more than a minute late (`skip`).
        """
        check_id(name, "name")
        timing = windows.checked(cron=cron, timezone=timezone, at=at)
        windows.check_missed(missed)
        if paused is not None and not isinstance(paused, bool):
            raise InvalidValue(f"paused must be True, False or None, got a {type(paused).__name__}")
        created = self._creation(name, clog_id, {"session_id": session_id, "input": input, **options})
        await self._runs._check_session(created)

        def change(before: StoredSchedule | None, now: int) -> StoredSchedule:
            return _put(before, name, timing, missed, paused, created, now)

        return await self._change(created.user_id, name, change)

    async def get(self, name: str, *, user_id: str | None = None) -> Schedule | None:
        """The schedule of this name; None if there is none."""
        check_id(name, "name")
        owner = self._owner(user_id)
        found = None if owner is None else await schedules.read(self._store, owner, name)
        return None if found is None else _shown(found)

    async def list(self, *, user_id: str | None = None, limit: int = 20, cursor: str | None = None) -> Page[Schedule]:
        """Schedules by user and name; of everyone, unless one user is named or asks."""
        most = min(whole_number(limit, "limit", 1, 1 << 31), LIMIT_MAX)
        place = ("", "") if cursor is None else _place_of(cursor)
        owner = self._runs._user_id if user_id is None else self._owner(user_id)
        if user_id is not None and owner is None:
            return Page([], None)
        sql = f"""
            SELECT {", ".join(schedules.COLUMNS)}
            FROM {{s}}schedules
            WHERE (user_id, name) > ($1, $2) {"" if owner is None else "AND user_id = $3"}
            ORDER BY user_id, name
            LIMIT {most + 1}
        """
        rows = await self._store.fetch(sql, *place, *([] if owner is None else [owner]))
        items = [_shown(schedules.decoded(row)) for row in rows[:most]]
        return Page(items, _cursor_at(items[-1]) if len(rows) > most else None)

    async def pause(self, name: str, *, user_id: str | None = None) -> Schedule:
        """Start nothing until it is resumed. A window that comes meanwhile is not missed: nobody wanted it."""
        return await self._change_known(name, user_id, lambda row, now: _paused(row, True, now))

    async def resume(self, name: str, *, user_id: str | None = None) -> Schedule:
        """Go on with the first window from now."""
        return await self._change_known(name, user_id, lambda row, now: _paused(row, False, now))

    async def delete(self, name: str, *, user_id: str | None = None) -> None:
        """Forget the schedule. Its runs stay, and their windows are never started again."""
        row = await self._known(name, user_id)
        sql = "DELETE FROM {s}schedules WHERE user_id = $1 AND name = $2"
        await self._store.execute((sql, (row.user_id, row.name)))

    async def trigger(
        self,
        name: str,
        *,
        key: str | None = None,
        window: datetime | None = None,
        mode: Mode = "return_existing_run",
        user_id: str | None = None,
    ) -> RunInfo | None:
        """Start a run now, also while it is paused; the same `key` again is the same run, whatever changed since.

        With a `window` it is the run of that window, which the schedule itself will not start again. What was started
        before is answered as it is now, or with None by `skip_duplicate`.
        """
        if mode not in MODES:
            raise InvalidValue(f"mode is {mode!r}; use one of {', '.join(MODES)}")
        if key is not None and window is not None:
            raise InvalidValue("a run is known by its key or by its window; give one of them")
        instant = None if window is None else windows.instant(window, "window")
        chosen = new_id() if key is None else check_name(key, "key")
        row = await self._known(name, user_id)
        if instant is None:
            run_id, command = trigger_id(row.user_id, row.name, chosen), row.start(key=chosen)
        else:
            run_id, command = window_id(row.user_id, row.name, instant), row.start(window=schedules.shown(instant))
        executed = await self._runs.journal.execute(run_id, command)
        if executed.at is None and mode == "skip_duplicate":
            return None
        found = await self._runs.get_run(run_id)
        if found is None:
            raise Conflict(f"run {run_id} was started and deleted; an id is never used again", code="id_reused")
        return found

    def _creation(self, name: str, clog: Any, options: dict[str, Any]) -> facts.RunCreated:
        """What every run is created with, checked as if one were created now."""
        for taken in ("key", "run_id"):
            if taken in options:
                raise InvalidValue(f"the runs of a schedule are known by their windows; leave {taken}= out")
        if isinstance(options.get("metadata"), dict) and ORIGIN in options["metadata"]:
            raise InvalidValue(f"metadata[{ORIGIN!r}] will say which window started a run; choose another name")
        if isinstance(retry := getattr(clog, "retry", None), RetryPolicy):
            options.setdefault("retry", retry)
        options["clog_id"] = getattr(clog, "name", clog)
        fact = creation(**self._runs._options(options)).fact
        sample = _put(None, name, Timing(at=0), "latest", None, fact, 0).start(window=schedules.shown(0)).fact
        self._journal.check_size(sample)
        return fact

    async def _change_known(
        self, name: str, user_id: str | None, change: Callable[[StoredSchedule, int], StoredSchedule]
    ) -> Schedule:
        def known(before: StoredSchedule | None, now: int) -> StoredSchedule:
            if before is None:
                raise _unknown(name)
            return change(before, now)

        owner = self._owner(user_id)
        if owner is None:
            raise _unknown(name)
        return await self._change(owner, check_id(name, "name"), known)

    async def _change(
        self, user_id: str, name: str, change: Callable[[StoredSchedule | None, int], StoredSchedule]
    ) -> Schedule:
        """Read, change, write if it is still what was read, until that succeeds. No change writes nothing."""
        while True:
            before = await schedules.read(self._store, user_id, name)
            after = change(before, await self._store.now())
            if after is before or await schedules.save(self._store, before, after):
                return _shown(after)

    async def _known(self, name: str, user_id: str | None) -> StoredSchedule:
        check_id(name, "name")
        owner = self._owner(user_id)
        row = None if owner is None else await schedules.read(self._store, owner, name)
        if row is None:
            raise _unknown(name)
        return row

    def _owner(self, user_id: str | None) -> str | None:
        """Whose schedules are meant; None if whoever asks may not know them."""
        asking = self._runs._user_id
        wanted = (asking or USER) if user_id is None else check_id(user_id, "user_id")
        return wanted if asking in (None, wanted) else None


def _put(
    before: StoredSchedule | None,
    name: str,
    timing: Timing,
    missed: str,
    paused: bool | None,
    created: facts.RunCreated,
    now: int,
) -> StoredSchedule:
    """The row as it should be. `before` itself, if it is so already."""
    wanted = {"missed": missed, "template": facts.encode(created), **msgspec.structs.asdict(timing)}
    rests = bool(before and before.paused) if paused is None else paused
    if before is None:
        row = StoredSchedule(user_id=created.user_id, name=name, paused=rests, created_at=now, updated_at=now, **wanted)
        return row.changed(next_at=None if rests else _first(timing, now))
    if all(getattr(before, field) == value for field, value in wanted.items()):
        return _paused(before, rests, now)
    changed = before.changed(updated_at=now, **wanted)
    if before.timing != timing:
        return changed.changed(paused=rests, next_at=None if rests else _first(timing, now))
    return _paused(changed, rests, now)


def _first(timing: Timing, now: int) -> int | None:
    """The first window of what was just put: an instant that has passed is a window that was missed."""
    return timing.after(now) if timing.at is None else timing.at


def _paused(row: StoredSchedule, paused: bool, now: int) -> StoredSchedule:
    if row.paused == paused:
        return row
    return row.changed(paused=paused, next_at=None if paused else row.timing.after(now), updated_at=now)


def _shown(row: StoredSchedule) -> Schedule:
    created = row.creation
    instants = {
        name: None if value is None else from_us(value)
        for name in ("at", "next_at", "last_at", "created_at", "updated_at")
        for value in (getattr(row, name),)
    }
    same = {name: getattr(row, name) for name in Schedule.__struct_fields__ if hasattr(row, name)}
    told = {name: getattr(created, name) for name in ("clog_id", "session_id", "queue", "lane", "priority")}
    return Schedule(**{**same, **told, **instants, "input": created.input, "metadata": created.metadata})


def _unknown(name: str) -> NotFound:
    return NotFound(f"there is no schedule {name}")


def _cursor_at(last: Schedule) -> str:
    return urlsafe_b64encode(f"{last.user_id}/{last.name}".encode()).decode().rstrip("=")


def _place_of(cursor: str) -> tuple[str, str]:
    try:
        text = urlsafe_b64decode(f"{cursor}{'=' * (-len(cursor) % 4)}".encode("ascii")).decode("ascii")
        user_id, _, name = text.partition("/")
        return check_id(user_id, "cursor"), check_id(name, "cursor")
    except (TypeError, ValueError, binascii.Error) as error:
        raise InvalidValue(
            "this cursor was not made by a list; pass on the `next` of the last page", code="invalid_cursor"
        ) from error
