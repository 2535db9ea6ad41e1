"""A real database whose calls go wrong on demand, in each of the ways a network or a server can make them go wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from holdfast import Holdfast
from holdfast.store import (
    Append,
    Beat,
    Beaten,
    Claimed,
    ClaimRequest,
    FactKey,
    Member,
    Row,
    Slice,
    SliceRequest,
    Statement,
)
from holdfast.store.database import Database, LockedPlan, OnHint, RecordPlan
from holdfast.store.types import Busy, Change, Mark, OutcomeUnknown, Rejected, Written

T = TypeVar("T")
Work = Callable[[], Awaitable[object]]
Fault = Literal["busy", "lost", "unanswered", "late", "trailing"]

WRITE_FAULTS: tuple[Fault, ...] = ("busy", "lost", "unanswered", "late", "trailing")
"""How a write goes wrong.

`busy`: refused before it began. `lost`: the connection died before it began, and nobody can tell. `unanswered`: it was
done, the answer never came. `late`: it lands after we gave it up, just before our next try. `trailing`: it lands after
our next try was answered.
"""
READ_FAULTS: tuple[Fault, ...] = ("busy",)
"""A read that is lost did nothing, so the databases say `Busy` for it."""


@dataclass
class _Strike:
    method: str
    fault: Fault
    after_calls: int


class FaultyDatabase:
    """Passes every call on to a real database, but for those it was told to strike."""

    def __init__(self, real: Database) -> None:
        self.real = real
        self.prefix = real.prefix
        self.is_apart = real.is_apart
        self.calls: Counter[str] = Counter()
        self.struck: Counter[str] = Counter()
        self._strikes: list[_Strike] = []
        self._landing: dict[str, tuple[Fault, Work]] = {}
        self._actions: dict[str, Work] = {}

    def strike(self, method: str, fault: Fault, *, nth: int = 1) -> None:
        """The n-th call of this method from now on goes wrong."""
        self._strikes.append(_Strike(method, fault, self.calls[method] + nth))

    def then(self, method: str, action: Work) -> None:
        """Do something as soon as the next call of this method has returned, before its caller hears of it."""
        self._actions[method] = action

    def forget(self) -> None:
        """Strike nothing that was not called yet."""
        self._strikes.clear()

    def beside(self) -> Database:
        return self.real.beside()

    @property
    def is_quiet(self) -> bool:
        """Everything that was to go wrong has gone wrong, and nothing is still on its way."""
        return not self._strikes and not self._landing and not self._actions

    async def open(self) -> None:
        await self._call("open", self.real.open)

    async def close(self) -> None:
        await self.real.close()

    async def migrate(self) -> None:
        await self._call("migrate", self.real.migrate)

    async def now(self) -> int:
        return await self.real.now()

    async def fetch(self, sql: str, *params: Any) -> list[Row]:
        return await self._call("fetch", lambda: self.real.fetch(sql, *params))

    async def fetch_by_key(self, sql: str, *params: Any) -> list[Row]:
        return await self._call("fetch_by_key", lambda: self.real.fetch_by_key(sql, *params))

    async def fetch_snapshot(self, queries: Sequence[tuple[str, tuple[Any, ...]]]) -> list[list[Row]]:
        return await self._call("fetch_snapshot", lambda: self.real.fetch_snapshot(queries))

    async def execute(self, statements: Sequence[tuple[str, tuple[Any, ...]]]) -> None:
        await self._call("execute", lambda: self.real.execute(statements))

    async def change(self, change: Change, *params: Any) -> list[Row]:
        return await self._call("change", lambda: self.real.change(change, *params))

    async def read_slices(self, requests: Sequence[SliceRequest]) -> list[Slice]:
        return await self._call("read_slices", lambda: self.real.read_slices(requests))

    async def write(self, members: Sequence[Member], commit_id: int, news: Sequence[str] = ()) -> list[Written]:
        return await self._call("write", lambda: self.real.write(members, commit_id, news))

    async def write_locked(self, request: SliceRequest, plan: LockedPlan, commit_id: int) -> int | None:
        planned: list[Member] = []

        def plan_only(seen: Slice, at: int) -> None:
            member = plan(seen, at)
            planned.extend([member] if member else [])

        def decided(seen: Slice, at: int) -> Member | None:
            head = seen.run["rev"] if seen.run else 0
            return planned[0] if planned[0].expected_rev == head else None

        async def send() -> None:
            await self.real.write_locked(request, plan_only, commit_id)

        async def land() -> None:
            # What was decided cannot be decided again: only its commit is late.
            if planned:
                await self.real.write_locked(request, decided, commit_id)

        work = lambda: self.real.write_locked(request, plan, commit_id)  # noqa: E731
        return await self._call("write_locked", work, send=send, land=land)

    async def append(self, appends: Sequence[Append], commit_id: int) -> list[Written]:
        return await self._call("append", lambda: self.real.append(appends, commit_id))

    async def record(self, keys: Sequence[FactKey], plan: RecordPlan, commit_id: int) -> None:
        await self._call("record", lambda: self.real.record(keys, plan, commit_id))

    def locking(self, key: FactKey) -> Sequence[Statement]:
        return self.real.locking(key)

    async def landed(self, marks: Sequence[Mark], commit_id: int) -> dict[Mark, int]:
        return await self._call("landed", lambda: self.real.landed(marks, commit_id))

    async def claim(self, request: ClaimRequest, commit_id: int) -> list[Claimed]:
        return await self._call("claim", lambda: self.real.claim(request, commit_id))

    async def heartbeat(self, beats: Sequence[Beat], lease_us: int, commit_id: int) -> list[Beaten]:
        return await self._call("heartbeat", lambda: self.real.heartbeat(beats, lease_us, commit_id))

    async def send_hint(self, topics: Sequence[str]) -> None:
        await self._call("send_hint", lambda: self.real.send_hint(topics))

    async def listen(self, on_hint: OnHint) -> None:
        await self.real.listen(on_hint)

    async def _call(
        self, method: str, work: Callable[[], Awaitable[T]], *, send: Work | None = None, land: Work | None = None
    ) -> T:
        self.calls[method] += 1
        fault = self._due(method)
        if fault is None:
            return await self._retried(method, work)
        if fault == "busy":
            raise Busy("too busy, as told")
        if fault == "unanswered":
            await work()
        if fault in ("late", "trailing"):
            if send is not None:
                await send()
            self._landing[method] = (fault, land or work)
        raise OutcomeUnknown("the connection died, as told")

    def _due(self, method: str) -> Fault | None:
        for strike in self._strikes:
            if strike.method == method and strike.after_calls == self.calls[method]:
                self._strikes.remove(strike)
                self.struck[method] += 1
                return strike.fault
        return None

    async def _retried(self, method: str, work: Callable[[], Awaitable[T]]) -> T:
        fault, landing = self._landing.pop(method, (None, None))
        if fault == "late" and landing is not None:
            await _quietly(landing)
        try:
            return await work()
        finally:
            if fault == "trailing" and landing is not None:
                await _quietly(landing)
            action = self._actions.pop(method, None)
            if action is not None:
                await action()


async def _quietly(work: Work) -> None:
    """Nobody waits for this answer any more."""
    try:
        await work()
    except (Busy, Rejected, OutcomeUnknown):
        return


def with_faults(holdfast: Holdfast) -> FaultyDatabase:
    """Put a faulty database under a runtime, open or not."""
    store = holdfast._store
    faulty = FaultyDatabase(store._database)
    rooms = (store.claimer, store.committer, store.appender, store.outbox, store.recorder, store.hints)
    for floor in (store, *rooms):
        floor._database = faulty
    return faulty
