"""`Chores`: what a worker looks after now and then beside its work. Any number of workers may; twice does no harm."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta

from holdfast import ambient
from holdfast.errors import HoldfastError
from holdfast.outbox import Outbox
from holdfast.outbox.reconciling import WINDOW_S
from holdfast.redaction import logger
from holdfast.runtime.retention import Retention
from holdfast.runtime.stickiness import forget_stale

log = logger("holdfast.worker")

LOOK_S = 60.0
RECONCILE_S = 300.0
GC_S = 60.0
FORGET_S = 300.0
OVERLAP_S = 600.0
"""How far a look goes back behind the one before it: what was settled before may have been committed after."""
_SECOND = 1_000_000


class Chores:
    """Reconcile the outbox; where there is a retention, remove what is older; where sessions keep to workers, forget
    those whose time is over.

    The database's clock says when something is due. Every process keeps times of its own, a little apart from those of
    others, so that workers that start together do not ask together.
    """

    def __init__(
        self, runs: Retention, outbox: Outbox, retention: float | timedelta | None, *, is_sticky: bool = False
    ) -> None:
        self._runs = runs
        self._outbox = outbox
        self._retention = retention
        self._reconciled_at: int | None = None
        self._due: dict[str, int] = {}
        self._every_s = {
            "reconcile": RECONCILE_S,
            **({} if retention is None else {"gc": GC_S}),
            **({"forget": FORGET_S} if is_sticky else {}),
        }
        self._work: dict[str, Callable[[int], Awaitable[None]]] = {
            "reconcile": self._reconcile,
            "gc": self._collect,
            "forget": self._forget,
        }

    async def turn(self) -> float:
        """Do what is due; answer how many seconds to wait before the next look."""
        now = await self._runs.journal.store.now()
        for chore, every_s in self._every_s.items():
            # Not at once: workers that start together, or again and again, must not be felt by the database.
            due = self._due.setdefault(chore, now + round(ambient.jitter(every_s) * _SECOND))
            if due <= now:
                self._due[chore] = now + round((every_s + ambient.jitter(every_s / 2)) * _SECOND)
                await self._do(chore, now)
        return min(LOOK_S, (min(self._due.values()) - now) / _SECOND)

    async def _do(self, chore: str, now: int) -> None:
        try:
            await self._work[chore](now)
        except Exception as error:
            # One that fails keeps no other from being done, and comes again in its time.
            log.warning(
                "cannot %s, trying again later: %s", chore, error, exc_info=not isinstance(error, HoldfastError)
            )

    async def _reconcile(self, now: int) -> None:
        """All of the window the first time; from then on what ended since."""
        since = self._reconciled_at
        window_s = WINDOW_S if since is None else min(WINDOW_S, (now - since) / _SECOND + OVERLAP_S)
        found = await self._outbox.reconcile(window_s=window_s)
        self._reconciled_at = now
        if found.found:
            log.info("reconciled the outbox: %d of %d put right", found.fixed, found.found)

    async def _collect(self, now: int) -> None:
        assert self._retention is not None
        removed = await self._runs.gc(self._retention)
        if removed:
            log.info("removed %d runs that were over for longer than the retention", removed)

    async def _forget(self, now: int) -> None:
        await forget_stale(self._runs.journal.store, now)
