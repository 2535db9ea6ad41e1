"""What tests of workers share: where they work, how they wait, and how they look at what was done."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from holdfast import Clog, Holdfast
from holdfast.handlers.clogs import Handler
from holdfast.store.types import Busy
from holdfast.worker import RunWorker

LEASE_MS = 1_500
PATIENCE_S = 30.0


class Place(NamedTuple):
    """A database that several processes share, and a file beside it in which handlers note what they did."""

    url: str
    schema: str
    diary: str


def clog(name: str, handler: Handler) -> Clog:
    made = Clog(name)
    made.on_advance(handler)
    return made


@asynccontextmanager
async def working(holdfast: Holdfast, **options: Any) -> AsyncIterator[RunWorker]:
    """A worker that works while the block runs, and is told twice to stop after it."""
    worker = holdfast.worker(**options)
    running = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        worker.stop()
        worker.stop()
        await running


async def until(question: Callable[[], Any], *, within_s: float = PATIENCE_S) -> Any:
    """The answer, once there is one."""
    deadline = time.monotonic() + within_s
    while True:
        answer = question()
        answer = await answer if inspect.isawaitable(answer) else answer
        if answer:
            return answer
        assert time.monotonic() < deadline, f"waited {within_s:.0f} s in vain"
        await asyncio.sleep(0.02)


async def ended(holdfast: Holdfast, *run_ids: str, within_s: float = PATIENCE_S) -> list[str]:
    """The statuses of these runs, once all of them have ended."""

    async def look() -> list[str] | None:
        found = [await holdfast.get_run(run_id) for run_id in run_ids]
        statuses = [run.status for run in found if run is not None]
        return statuses if all(status in ("done", "failed", "cancelled") for status in statuses) else None

    statuses: list[str] = await until(look, within_s=within_s)
    return statuses


async def kinds(holdfast: Holdfast, run_id: str) -> list[str]:
    return [entry.kind for entry in await holdfast.journal.read(f"run:{run_id}")]


async def bodies(holdfast: Holdfast, run_id: str, kind: str) -> list[dict[str, Any]]:
    return [entry.data for entry in await holdfast.journal.read(f"run:{run_id}") if entry.kind == kind]


async def stored(holdfast: Holdfast, run_id: str) -> list[Any]:
    """What the run's clogs keep in run storage."""
    sql = "SELECT value FROM {s}run_storage WHERE run_id = $1 AND tick_id = '' ORDER BY clog_id"
    return [row[0] for row in await holdfast._store.fetch(sql, run_id)]


class Seam:
    """Everything a runtime asks of its database passes here: counted, and refused while the database is away."""

    def __init__(self, real: Any, told: Seam | None = None) -> None:
        self._real = real
        self._told = told or self
        self.prefix = real.prefix
        self.is_apart = real.is_apart
        self.calls: Counter[str] = Counter()
        self.away = False

    def beside(self) -> Seam:
        return Seam(self._real.beside(), self._told)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._real, name)

        async def call(*args: Any) -> Any:
            self._told.calls[name] += 1
            if self._told.away:
                raise Busy("away, as told")
            return await found(*args)

        return call if inspect.iscoroutinefunction(found) else found


def seam_under(holdfast: Holdfast) -> Seam:
    """Put a seam under an open runtime."""
    store = holdfast._store
    seam = Seam(store._database)
    rooms = (store.claimer, store.committer, store.appender, store.outbox, store.recorder, store.hints)
    for floor in (store, *rooms):
        floor._database = seam
    return seam
