"""`Retention`: how runs go. Deleting hides, purging removes at once, `gc` removes what has been over long enough."""

from __future__ import annotations

from datetime import timedelta

from holdfast.errors import Conflict, InvalidValue, NotFound
from holdfast.identity import check_id
from holdfast.journal.deletion import delete_session
from holdfast.protocol import commands
from holdfast.protocol.values import clean, whole_number
from holdfast.runtime.questions import Questions
from holdfast.runtime.stickiness import forget_stale
from holdfast.store import Row

BATCH = 100
RUNS_MAX = 1 << 40
TTL_MAX_S = 1 << 36

# What a run still has to tell others is read from its entries.
_SILENT = "NOT EXISTS (SELECT 1 FROM {s}handoffs h WHERE h.source_run_id = x.run_id)"
# In the order of their creation: an index of their ends would be written at every end.
_ENDED = f"""
    SELECT x.run_id, x.session_id, x.user_id, x.finished_at, x.created_at
    FROM {{s}}runs x
    WHERE x.finished_at <= $1 AND x.created_at <= $1
      AND (x.created_at > $3 OR (x.created_at = $3 AND x.run_id > $4)) {{owner}} AND {_SILENT}
    ORDER BY x.created_at, x.run_id
    LIMIT $2
"""
_DELETED = f"""
    SELECT x.run_id, x.session_id, x.user_id, x.at, x.at
    FROM {{s}}tombstones x
    WHERE x.rev > 0 AND x.at <= $1 AND (x.at > $3 OR (x.at = $3 AND x.run_id > $4)) {{owner}} AND {_SILENT}
    ORDER BY x.at, x.run_id
    LIMIT $2
"""


class Retention(Questions):
    """Delete, purge, and remove what is old."""

    _collected_at: int | None = None

    async def delete_run(self, run_id: str, *, force: bool = False, actor: str | None = None) -> None:
        """Hide the run from everyone but the readers of its thread; its id is never used again.

        An unfinished run is cancelled first. While somebody works on it this is a `Conflict` (`run_active`), unless
        forced. A run that is not there, or no longer, is `NotFound`.
        """
        await self._check_there(run_id)
        who, _ = clean(actor)
        executed = await self.journal.execute(run_id, commands.Delete(actor=who, force=force))
        if executed.decision.refusal == "run_active":
            text = f"somebody works on run {run_id}; wait for it, or delete with force=True"
            raise Conflict(text, code="run_active")
        if executed.decision.refusal is not None:
            raise NotFound(f"there is no run {run_id}")

    async def delete_session(self, session_id: str, *, force: bool = False, actor: str | None = None) -> None:
        """Delete the session with its storage and every run of it. What belongs to its user stays.

        While somebody works on one of the runs this is a `Conflict` (`session_active`), unless forced.
        """
        sql = "SELECT user_id FROM {s}sessions WHERE session_id = $1"
        owners = await self._store.fetch(sql, check_id(session_id, "session_id"))
        if not owners or self._user_id not in (None, owners[0][0]):
            raise NotFound(f"there is no session {session_id}")
        who, _ = clean(actor)
        await delete_session(self.journal, session_id, force=force, actor=who)

    async def purge(self, run_id: str) -> None:
        """Remove the run and all its entries at once; only its id stays taken. An unfinished one is ended by force.

        What others must know of its end is told first. Repeating it finishes what a crash left.
        """
        stone = await self._tombstone(run_id)
        if stone is None:
            await self.delete_run(run_id, force=True)
            stone = await self._tombstone(run_id)
        assert stone is not None
        if stone[3] == 0:
            raise NotFound(f"there is no run {run_id}")
        await self.journal.settle_down(run_id)
        await self._store.remove_run((*stone[:3], stone[4]))

    async def gc(self, ttl: float | timedelta, *, limit: int | None = None) -> int:
        """Remove whole runs that have been over, or deleted, for longer than `ttl` (seconds); answer how many.

        Each goes in one commit and leaves its id taken. A run that is not over is never touched, nor one whose end
        somebody has yet to hear of. Deliveries go with their run; those of no run go by the same rule, sent or dead,
        at most `limit` of them. Sessions that kept to a worker until now, or before, are nobody's again.
        """
        now = await self._store.now()
        left = whole_number(RUNS_MAX if limit is None else limit, "limit", 0, RUNS_MAX)
        age_us = _microseconds(ttl)
        removed = await self._collect(_ENDED, now - age_us, left)
        removed += await self._collect(_DELETED, now - age_us, left - removed)
        await self._forget_deliveries(age_us, left)
        if self._user_id is None:
            await forget_stale(self._store, now)
        return removed

    async def gc_if_due(self, ttl: float | timedelta | None, *, every: float | timedelta = 60.0) -> int:
        """`gc` for those who come by often: nothing without a TTL, and nothing if the last time is not `every` ago."""
        now = await self._store.now()
        waited = self._collected_at is None or now - self._collected_at >= _microseconds(every)
        if ttl is None or not waited:
            return 0
        self._collected_at = now
        return await self.gc(ttl)

    async def is_gone(self, run_id: str) -> bool:
        """Was there such a run, and is it deleted, purged or too old to be kept?"""
        return await self._tombstone(run_id) is not None

    async def _check_there(self, run_id: str) -> None:
        """Nothing of the run is read but its row: one whose entries are damaged can be deleted too."""
        rows = await self._store.fetch("SELECT user_id FROM {s}runs WHERE run_id = $1", check_id(run_id, "run_id"))
        if not rows or self._user_id not in (None, rows[0][0]):
            raise NotFound(f"there is no run {run_id}")

    async def _tombstone(self, run_id: str) -> Row | None:
        """(id, session, owner, head, instant) of a run that is gone; for one user, of theirs."""
        sql = "SELECT run_id, session_id, user_id, rev, at FROM {s}tombstones WHERE run_id = $1"
        for row in await self._store.fetch(sql, check_id(run_id, "run_id")):
            if self._user_id in (None, row[2]):
                return row
        return None

    async def _forget_deliveries(self, age_us: int, most: int) -> None:
        while most > 0:
            batch = min(BATCH, most)
            if await self._store.outbox.forget(age_us=age_us, user_id=self._user_id, limit=batch) < batch:
                break
            most -= batch

    async def _collect(self, sql: str, by: int, most: int) -> int:
        """Remove what the text finds, the oldest first, one at a time; where one cannot go, the next one can."""
        owner = "" if self._user_id is None else "AND x.user_id = $5"
        mine = () if self._user_id is None else (self._user_id,)
        removed, at, run_id = 0, -1, ""
        while removed < most:
            batch = min(BATCH, most - removed)
            found = await self._store.fetch(sql.replace("{owner}", owner), by, batch, at, run_id, *mine)
            for run in found:
                await self._store.remove_run(run[:4], finished_by=by)
            removed += len(found)
            if len(found) < batch:
                break
            run_id, at = found[-1][0], found[-1][4]
        return removed


def check_ttl(ttl: float | timedelta | None) -> float | timedelta | None:
    """The same, if it is a time that `gc` takes, or None."""
    if ttl is not None:
        _microseconds(ttl)
    return ttl


def _microseconds(duration: float | timedelta) -> int:
    if isinstance(duration, bool) or not isinstance(duration, int | float | timedelta):
        raise InvalidValue(f"use seconds or a timedelta, not a {type(duration).__name__}")
    seconds = duration.total_seconds() if isinstance(duration, timedelta) else duration
    if not 0 <= seconds <= TTL_MAX_S:
        raise InvalidValue(f"{seconds} seconds is no time to wait; use 0 up to {TTL_MAX_S}")
    return round(seconds * 1e6)
