"""Throughput: how many units become durable in a window while a side works as fast as it can."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import asyncpg

from benchmarks.bench import POSTGRES, SQLITE, Bench
from benchmarks.measuring import Measured, Reading, difference, window
from benchmarks.peers.driving import NOOP, Job
from benchmarks.places import Place
from benchmarks.processes import Broken, playing
from benchmarks.sides import DONE, Side
from benchmarks.wire import relayed

T = TypeVar("T")
RETRIES = 3
FILL_MIN = 100
TRACED_S = 1.0
"""How long round trips are counted."""


@dataclass(frozen=True)
class Load:
    """Processes of one side, working until told to stop; what they made durable is counted from outside."""

    name: str
    roles: tuple[str, ...]
    kind: str = NOOP
    counted: str = DONE
    share: float = 0.0
    """How much work is prepared, against what the side is guessed to do in no-op runs; none where it is 0."""
    database: str = POSTGRES
    history: int = 0
    stretch: int = 1
    """How many times as long as the others it is looked at: sides that work in turns end many runs at a time."""
    is_traced: bool = False
    """Its round trips are counted too."""
    is_held: bool = False
    """Somebody else has a snapshot open that is older than all of it."""

    async def __call__(self, bench: Bench, side: Side, repeat: int) -> Measured:
        problem = self.refusal(bench)
        if problem:
            return Measured(self.name, side.name, repeat, problem=problem)
        span_s = (bench.size.seconds + bench.size.warm_s) * self.stretch + side.warm_s
        values = await self._enough(side, span_s, partial(self._costs, bench, side))
        if repeat == 0 and self.is_traced and side.database == POSTGRES:
            span_s = TRACED_S + bench.size.warm_s + side.warm_s
            values["round_trips"] = await self._enough(side, span_s, partial(self._trips, bench, side))
        return Measured(self.name, side.name, repeat, values)

    def refusal(self, bench: Bench) -> str:
        """Why this bench does not measure it, if it does not."""
        if self.history <= bench.size.history_max:
            return ""
        return f"{self.history:,} finished runs are for a larger size than this"

    async def _enough(self, side: Side, span_s: float, look: Callable[[int], Awaitable[tuple[int, T]]]) -> T:
        """What is seen where enough is prepared. A slice that ran dry says nothing: it is measured again with more."""
        for n in self.amounts(side, span_s):
            done, seen = await look(n)
            if not n or done < n:
                return seen
        raise Broken(f"{side.name}: even {n} prepared runs were not enough")

    async def _costs(self, bench: Bench, side: Side, n: int) -> tuple[int, dict[str, float]]:
        async with self.prepared(bench, side, n) as (place, job):
            before = await place.count(self.question(side))
            first, last = await self._measured(bench, side, place, job)
        return last.units - before, difference((first, last))

    def amounts(self, side: Side, span_s: float) -> Iterator[int]:
        """How many runs to prepare for so long: a guess, and more each time it was not enough."""
        n = max(int(side.rate_guess * self.share * span_s), FILL_MIN) if self.share else 0
        return (n * 3**attempt for attempt in range(RETRIES))

    def question(self, side: Side) -> str:
        """What to ask the side's tables to know how much is done."""
        return side.question(self.counted, self.kind, has_schemas=self.database != SQLITE)

    @asynccontextmanager
    async def prepared(self, bench: Bench, side: Side, n: int) -> AsyncIterator[tuple[Place, Job]]:
        """A place with so many runs to do."""
        async with bench.place(side, self.database, self.history) as place, AsyncExitStack() as stack:
            job = Job(place.url, kind=self.kind, n=n)
            if self.is_held:
                await stack.enter_async_context(_snapshot(place.url))
            if n:
                await bench.play(side, "fill", job)
                await place.settle()
            yield place, job

    async def _measured(self, bench: Bench, side: Side, place: Place, job: Job) -> list[Reading]:
        sql = self.question(side)
        warm_s = bench.size.warm_s * self.stretch + side.warm_s
        async with playing(*(bench.player(side, role, job) for role in self.roles)) as players:
            return await window(place, sql, players, warm_s=warm_s, seconds=bench.size.seconds * self.stretch)

    async def _trips(self, bench: Bench, side: Side, n: int) -> tuple[int, float]:
        """Counted in a slice of its own, because the relay that counts them costs time."""
        async with self.prepared(bench, side, n) as (place, _), relayed(place.url, bench.folder / "wire") as wire:
            sql = self.question(side)
            before = await place.count(sql)
            through = Job(wire.url, kind=self.kind, n=n)
            async with playing(*(bench.player(side, role, through) for role in self.roles)) as players:
                trips: list[int] = []
                first, last = await window(
                    place,
                    sql,
                    players,
                    warm_s=bench.size.warm_s + side.warm_s,
                    seconds=min(bench.size.seconds, TRACED_S),
                    look=lambda: trips.append(wire.trips),
                )
        return last.units - before, (trips[1] - trips[0]) / max(last.units - first.units, 1)


@asynccontextmanager
async def _snapshot(url: str) -> AsyncIterator[None]:
    connection = await asyncpg.connect(url)
    try:
        async with connection.transaction(isolation="repeatable_read", readonly=True):
            await connection.fetchval("SELECT count(*) FROM pg_class")
            yield
    finally:
        await connection.close()
