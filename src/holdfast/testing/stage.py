"""The gate of a simulation: every call of a database waits here until the schedule lets it through, or kills it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from holdfast.store import (
    Append,
    Beat,
    Beaten,
    Change,
    Claimed,
    ClaimRequest,
    Database,
    FactKey,
    LockedPlan,
    Mark,
    Member,
    OnHint,
    RecordPlan,
    Row,
    Slice,
    SliceRequest,
    Statement,
    Written,
)

T = TypeVar("T")


class Crashed(Exception):
    """The simulated process is dead: nothing it does reaches the database any more."""


class Waiting:
    """Someone of one process who waits at the gate."""

    def __init__(self, process: str, call: str) -> None:
        self.process = process
        self.call = call
        self.passed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.crash_after = False

    def __repr__(self) -> str:
        return f"{self.process} {self.call}"


class Gate:
    """Where calls wait. `in_flight` counts those that were let through and are not back."""

    def __init__(self) -> None:
        self.waiting: list[Waiting] = []
        self.dead: set[str] = set()
        self.in_flight = 0
        self._landed = asyncio.Event()

    async def wait(self, process: str, call: str) -> Waiting:
        """Return when the schedule says so; raise `Crashed` if the process died meanwhile."""
        if process in self.dead:
            raise Crashed(process)
        waiting = Waiting(process, call)
        self.waiting.append(waiting)
        try:
            await waiting.passed
        finally:
            if waiting in self.waiting:
                self.waiting.remove(waiting)
        return waiting

    async def carry(self, process: str, call: str, work: Callable[[], Awaitable[T]]) -> T:
        """One call of a database, from its gate to its answer."""
        waiting = await self.wait(process, call)
        self.in_flight += 1
        try:
            answer = await work()
        finally:
            self.in_flight -= 1
            self._landed.set()
        if waiting.crash_after:
            # It happened, and nobody who lives knows of it.
            self.kill(process)
        if process in self.dead:
            raise Crashed(process)
        return answer

    def open(self, waiting: Waiting) -> None:
        self.waiting.remove(waiting)
        waiting.passed.set_result(None)

    def kill(self, process: str) -> None:
        """Whatever of this process waits, or comes later, dies."""
        self.dead.add(process)
        for waiting in [each for each in self.waiting if each.process == process]:
            self.waiting.remove(waiting)
            waiting.passed.set_exception(Crashed(process))

    async def landed(self) -> None:
        """Wait for a call in flight to come back."""
        self._landed.clear()
        if self.in_flight:
            await self._landed.wait()


class GatedDatabase:
    """A database behind the gate, as one simulated process sees it."""

    def __init__(self, real: Database, gate: Gate, process: str) -> None:
        self._real = real
        self._gate = gate
        self._process = process
        self.prefix = real.prefix

    def beside(self) -> Database:
        return self._real.beside()

    async def open(self) -> None:
        await self._real.open()

    async def close(self) -> None:
        await self._real.close()

    async def migrate(self) -> None:
        await self._real.migrate()

    async def now(self) -> int:
        return await self._real.now()

    async def fetch(self, sql: str, *params: Any) -> list[Row]:
        return await self._carry("fetch", lambda: self._real.fetch(sql, *params))

    async def fetch_by_key(self, sql: str, *params: Any) -> list[Row]:
        return await self._carry("fetch_by_key", lambda: self._real.fetch_by_key(sql, *params))

    async def fetch_snapshot(self, queries: Sequence[tuple[str, tuple[Any, ...]]]) -> list[list[Row]]:
        return await self._carry("fetch_snapshot", lambda: self._real.fetch_snapshot(queries))

    async def execute(self, statements: Sequence[tuple[str, tuple[Any, ...]]]) -> None:
        await self._carry("execute", lambda: self._real.execute(statements))

    async def change(self, change: Change, *params: Any) -> list[Row]:
        return await self._carry("change", lambda: self._real.change(change, *params))

    async def read_slices(self, requests: Sequence[SliceRequest]) -> list[Slice]:
        return await self._carry("read_slices", lambda: self._real.read_slices(requests))

    async def write(self, members: Sequence[Member], commit_id: int, news: Sequence[str] = ()) -> list[Written]:
        return await self._carry("write", lambda: self._real.write(members, commit_id))

    async def write_locked(self, request: SliceRequest, plan: LockedPlan, commit_id: int) -> int | None:
        return await self._carry("write_locked", lambda: self._real.write_locked(request, plan, commit_id))

    async def append(self, appends: Sequence[Append], commit_id: int) -> list[Written]:
        return await self._carry("append", lambda: self._real.append(appends, commit_id))

    async def record(self, keys: Sequence[FactKey], plan: RecordPlan, commit_id: int) -> None:
        await self._carry("record", lambda: self._real.record(keys, plan, commit_id))

    def locking(self, key: FactKey) -> Sequence[Statement]:
        return self._real.locking(key)

    async def landed(self, marks: Sequence[Mark], commit_id: int) -> dict[Mark, int]:
        return await self._carry("landed", lambda: self._real.landed(marks, commit_id))

    async def claim(self, request: ClaimRequest, commit_id: int) -> list[Claimed]:
        return await self._carry("claim", lambda: self._real.claim(request, commit_id))

    async def heartbeat(self, beats: Sequence[Beat], lease_us: int, commit_id: int) -> list[Beaten]:
        return await self._carry("heartbeat", lambda: self._real.heartbeat(beats, lease_us, commit_id))

    async def send_hint(self, topics: Sequence[str]) -> None:
        """Nobody listens: whoever relies on hints alone is found out."""

    async def listen(self, on_hint: OnHint) -> None:
        """See `send_hint`."""

    async def _carry(self, call: str, work: Callable[[], Awaitable[T]]) -> T:
        return await self._gate.carry(self._process, call, work)
