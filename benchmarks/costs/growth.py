"""What a claim, a step, an event, a look back and a check cost, against finished runs and against a run's length.

Ours and a raw statement of the same shape take turns, block by block: the ratio of neighbours holds on a noisy machine.
Connections stay open from the first size to the last, as a worker's do, so a plan that was made for small tables is
the one that is measured on large ones.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import cycle
from statistics import median
from typing import Any, NamedTuple

from benchmarks.costs.clocks import cpu_s, server_of
from benchmarks.costs.history import Sample, copy_id, fill, sample
from benchmarks.costs.yardstick import QUEUE, Raw
from benchmarks.places import Place
from holdfast import Clog, Context, Done, FlowContext, Holdfast

DUE, LONG, NOOP, STEPS, TALK = "due", "long", "noop", "steps", "talk"
SESSION = "costs"
BATCH = 10
PIPELINED = 100
FEW = 100
LEASE_MS = 3_600_000
ENTRIES = 3
"""Of a finished run that had one tick: created, claimed, done."""
EVENT = {"text": "x" * 100}
FINISHED, LENGTH, WALK = "finished runs", "entries of the run", "runs checked"
LAST = "steps of the flow"


@dataclass(frozen=True)
class Extent:
    """How far to go, and how often to look."""

    histories: tuple[int, ...]
    lengths: tuple[int, ...]
    walks: tuple[int, ...]
    steps: int
    """Of the long flow; a tenth of them is looked at, at each end."""
    blocks: int
    units: int
    listeners: tuple[int, ...]


@dataclass(frozen=True)
class Cost:
    """One unit of an operation at one size. `ratio` is the median over blocks, each beside its raw neighbour."""

    database: str
    operation: str
    against: str
    size: int
    ours_us: float
    raw_us: float
    ratio: float
    ours_cpu_us: float
    raw_cpu_us: float
    server_cpu_us: float
    """Of ours, what the server used; none where it is no process of its own."""


class Spent(NamedTuple):
    """Of this process and, where it is one, of the server."""

    wall_s: float
    cpu_s: float
    server_s: float


Work = Callable[[int], Awaitable[object]]


@dataclass
class Growth:
    """One database, and everything that is asked of it."""

    database: str
    place: Place
    hf: Holdfast
    raw: Raw
    extent: Extent

    def __post_init__(self) -> None:
        self._orders: asyncio.Queue[int] = asyncio.Queue()
        self._obeyed = asyncio.Event()
        self._register()

    def _register(self) -> None:
        noop, talk = Clog(NOOP), Clog(TALK)

        @talk.on_advance
        async def speak(input: Any, ctx: Context) -> Done:
            async for count in self._ordered(input):
                for _ in range(count):
                    await ctx.emit("note", EVENT)
            return Done()

        @noop.on_advance
        async def nothing(input: Any, ctx: Context) -> Done:
            return Done(input)

        @self.hf.flow(STEPS)
        async def steps(ctx: FlowContext, input: Any) -> None:
            async for count in self._ordered(0):
                for _ in range(count):
                    await ctx.step("step", _small)

        self.hf.register(noop, talk)

    async def _ordered(self, first: int) -> AsyncIterator[int]:
        """How many to do, until it is none; whoever asked hears when they are done."""
        yield first
        while count := await self._orders.get():
            yield count
            self._obeyed.set()

    async def measure(self) -> AsyncIterator[Cost]:
        """Everything, the smallest sizes first."""
        async for cost in self._by_length():
            yield cost
        async for cost in self._by_steps():
            yield cost
        async for cost in self._by_history():
            yield cost

    async def _by_history(self) -> AsyncIterator[Cost]:
        """Beside the sizes that are claimed from, a few that are walked over from end to end."""
        real = await self._finished_run()
        # None means: no more than are looked at.
        filled = await self._fill(real, 0, FEW)
        for size in sorted({*self.extent.histories, *self.extent.walks}):
            filled = await self._fill(real, filled, size)
            if size in self.extent.walks:
                yield await self._walk(size)
            if size in self.extent.histories:
                run_ids = [copy_id(number, real.run_id) for number in range(1, filled + 1, filled // FEW)]
                async for cost in self._at(size, run_ids):
                    yield cost

    async def _fill(self, real: Sample, filled: int, wanted: int) -> int:
        if wanted > filled:
            await fill(self.place.url, real, range(filled + 1, wanted + 1))
        return max(filled, wanted)

    async def _finished_run(self) -> Sample:
        run = await self.hf.create_run(session_id=SESSION, clog_id=NOOP, input=1)
        await self.hf.advance()
        return await sample(self.hf, run.run_id)

    async def _at(self, size: int, run_ids: list[str]) -> AsyncIterator[Cost]:
        raw, hf = self.raw, self.hf
        many = self.extent.blocks * self.extent.units
        await hf.create_runs([{"session_id": SESSION, "clog_id": DUE, "input": 1}] * many)
        await raw.prepare(many, [ENTRIES])
        claims: list[Any] = []

        async def claim(units: int) -> None:
            for _ in range(units // BATCH):
                claims.extend(await hf.take([QUEUE], clogs=[DUE], lease_ms=LEASE_MS, limit=BATCH))

        yield await self._race("empty poll", FINISHED, size, _each(lambda: hf.take(["nothing"], limit=BATCH)),
                               _each(lambda: raw.claim("nothing", BATCH)))  # fmt: skip
        yield await self._race("claim", FINISHED, size, claim, _each(lambda: raw.claim(QUEUE, BATCH), BATCH))
        assert len(claims) == many
        async with self._working(TALK) as events:
            yield await self._race("event", FINISHED, size, events, _each(raw.append))
        async with self._working(STEPS) as steps:
            yield await self._race("step", FINISHED, size, steps, _each(raw.append))
        ids = cycle(run_ids)
        yield await self._race("as-of query", FINISHED, size, _each(lambda: hf.as_of(next(ids))),
                               _each(lambda: raw.read(ENTRIES)))  # fmt: skip
        yield await self._race("fsck entry", FINISHED, size, _each(lambda: self._sound(next(ids)), ENTRIES),
                               _each(lambda: raw.read(ENTRIES), ENTRIES))  # fmt: skip
        # What was claimed here must not be in the way at the next size.
        await asyncio.gather(*(hf.complete(item.claim) for item in claims))

    async def _by_length(self) -> AsyncIterator[Cost]:
        """Each length on a run of its own, which grows a little while it is measured."""
        await self.raw.prepare(self.extent.blocks * self.extent.units, self.extent.lengths)
        for length in self.extent.lengths:
            async for cost in self._at_length(length):
                yield cost

    async def _at_length(self, length: int) -> AsyncIterator[Cost]:
        raw, hf = self.raw, self.hf
        run = await hf.create_run(session_id=SESSION, clog_id=LONG, input=1)
        (claim,) = await hf.claim_next(clogs=[LONG], lease_ms=LEASE_MS)
        # Its creation, this claim and the release are entries too.
        await self._emit(claim, max(0, length - ENTRIES))
        await hf.release(claim)
        looks = max(length, self.extent.units)

        async def claim_and_release(units: int) -> None:
            for _ in range(units):
                for taken in await hf.take([QUEUE], clogs=[LONG], lease_ms=LEASE_MS):
                    await hf.release(taken.claim)

        async def claim_twice(units: int) -> None:
            for _ in range(units):
                await raw.append()
                await raw.append()

        yield await self._race("as-of entry", LENGTH, length, _each(lambda: hf.as_of(run.run_id), length),
                               _each(lambda: raw.read(length), length), units=looks)  # fmt: skip
        yield await self._race("fsck entry", LENGTH, length, _each(lambda: self._sound(run.run_id), length),
                               _each(lambda: raw.read(length), length), units=looks)  # fmt: skip
        yield await self._race("claim and release", LENGTH, length, claim_and_release, claim_twice)
        await hf.cancel(run.run_id)
        async with self._working(TALK, length) as events:
            yield await self._race("event", LENGTH, length, events, _each(raw.append))

    async def _emit(self, claim: Any, count: int) -> None:
        for first in range(0, count, PIPELINED):
            many = min(PIPELINED, count - first)
            await asyncio.gather(*(self.hf.emit(claim, "note", EVENT) for _ in range(many)))

    async def _by_steps(self) -> AsyncIterator[Cost]:
        """The first tenth of a long flow, and its last."""
        tenth = self.extent.steps // 10
        units = max(1, tenth // self.extent.blocks)
        blocks = tenth // units
        async with self._working(STEPS) as steps:
            yield await self._race("step", LAST, tenth, steps, _each(self.raw.append), units=units, blocks=blocks)
            await steps(self.extent.steps - 2 * tenth)
            yield await self._race(
                "step", LAST, self.extent.steps, steps, _each(self.raw.append), units=units, blocks=blocks
            )

    @asynccontextmanager
    async def _working(self, clog_id: str, first: int = 0) -> AsyncIterator[Work]:
        """A handler in the middle of its work, which does as much more as it is told."""
        await self.hf.start(clog_id, first, session_id=SESSION, queue=clog_id)
        running = asyncio.create_task(self.hf.execute_next(clog_id, lease_ms=LEASE_MS))

        async def work(count: int) -> None:
            self._obeyed.clear()
            self._orders.put_nowait(count)
            await self._obeyed.wait()

        yield work
        self._orders.put_nowait(0)
        await running

    async def _walk(self, runs: int) -> Cost:
        """A check of the whole database, beside as many raw reads of as many entries."""

        async def everything(_: int) -> None:
            report = await self.hf.fsck()
            assert report.ok, report.problems[:3]

        async def reads(_: int) -> None:
            for _ in range(runs):
                await self.raw.read(ENTRIES)

        await self.raw.prepare(1, [ENTRIES])
        return await self._race("whole fsck, entry", WALK, runs, everything, reads, units=runs * ENTRIES, blocks=1)

    async def _sound(self, run_id: str) -> None:
        report = await self.hf.fsck(run_id)
        assert report.ok, report.problems[:3]

    async def _race(self, operation: str, against: str, size: int, ours: Work, raw: Work, **options: Any) -> Cost:
        return await race(self.place, self.extent, (self.database, operation, against, size), ours, raw, **options)


async def race(
    place: Place,
    extent: Extent,
    what: tuple[str, str, str, int],
    ours: Work,
    raw: Work,
    *,
    units: int | None = None,
    blocks: int | None = None,
) -> Cost:
    """Ours and raw in turn, block by block. `what` is the database, the operation, what grows, and how large it is."""
    many = units or extent.units
    pairs: list[tuple[Spent, Spent]] = []
    for _ in range(blocks or extent.blocks):
        pairs.append((await spent(place, ours, many), await spent(place, raw, many)))
    # The first block opens connections and makes plans.
    counted = pairs[1:] or pairs
    each = 1e6 / many
    return Cost(
        *what,
        ours_us=median(ours.wall_s for ours, _ in counted) * each,
        raw_us=median(raw.wall_s for _, raw in counted) * each,
        ratio=median(ours.wall_s / raw.wall_s for ours, raw in counted),
        ours_cpu_us=sum(ours.cpu_s for ours, _ in counted) / len(counted) * each,
        raw_cpu_us=sum(raw.cpu_s for _, raw in counted) / len(counted) * each,
        server_cpu_us=sum(ours.server_s for ours, _ in counted) / len(counted) * each,
    )


async def spent(place: Place, work: Work, units: int) -> Spent:
    """What a block took, by all clocks."""
    server = await server_of(place)
    server_s, own_s, began = cpu_s(server), time.process_time(), time.perf_counter()
    await work(units)
    wall_s, own_s = time.perf_counter() - began, time.process_time() - own_s
    server_s = cpu_s(server) - server_s
    return Spent(wall_s, own_s + server_s, server_s)


def _each(call: Callable[[], Awaitable[object]], covers: int = 1) -> Work:
    """One after the other. A call may cover several units."""

    async def work(units: int) -> None:
        for _ in range(max(1, units // covers)):
            await call()

    return work


async def _small() -> dict[str, int]:
    return {"value": 1}
