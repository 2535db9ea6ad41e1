"""A simulation of many workers on one database: what they ask when idle, how soon work is taken, what a hint costs.

Workers wait as `holdfast.worker` does, with its own constants: a claim, then a pause that doubles and is a little
shorter by chance, cut short by a hint, or by an ended tick if there was more than there was room for. Who came too late
for the last hints heeds the next one later. The database is a number of cores and a line before them. A claim takes its
rows as it begins, as `SKIP LOCKED` does, so nobody waits for a row and nothing is taken twice. Disk, network and
Postgres' own delivery of notifications are not simulated; what a statement costs is given.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import quantiles
from typing import NamedTuple

from holdfast.outbox.relay import IDLE_MAX_S as RELAY_S
from holdfast.runtime.chores import LOOK_S
from holdfast.store.postgres_hints import BEAT_S
from holdfast.worker import CLAIM_MAX, CROWD_DOUBLINGS, CROWD_FIRST_S, IDLE_FIRST_S, IDLE_MAX_S, SWEEP_S

HEARD_S = 0.001
"""From a creation's commit to the ears of all workers; what is created meanwhile shares the next hint."""
SEED = 6


class Prices(NamedTuple):
    """CPU of the server, in seconds."""

    poll_s: float
    """A claim that finds nothing."""
    claim_s: float
    """Each row that a claim takes, beyond that."""
    settle_s: float
    """The commit that ends a tick."""


@dataclass(frozen=True)
class Fleet:
    """What is simulated."""

    workers: int = 1_000
    slots: int = 64
    cores: int = 8
    arrivals_per_s: float = 0.0
    burst: int = 0
    """Runs that arrive at once, in the middle."""
    tick_s: float = 0.1
    heeded: float = 1.0
    """The share of workers that look when a hint is heard; 0 is a fleet without hints."""
    warm_s: float = 5.0
    seconds: float = 10.0


@dataclass(frozen=True)
class Seen:
    """What a fleet showed. Waits are from due to taken."""

    fleet: Fleet
    claims_per_s: float
    empty_share: float
    busy_share: float
    """Of the database's cores."""
    waits_ms: Sequence[float]
    """Median, 99 of 100, longest."""
    line_ms: float
    """How long the commit that ends a tick waits for a core, 99 of 100."""
    taken: int
    untaken: int


class Database:
    """Cores that answer in the order in which they were asked."""

    def __init__(self, world: World, cores: int) -> None:
        self._world = world
        self._free = cores
        self._line: deque[Callable[[], tuple[float, Callable[[], None]]]] = deque()
        self.busy_s = 0.0

    def ask(self, begin: Callable[[], tuple[float, Callable[[], None]]]) -> None:
        """`begin` is called when a core is free; it answers what the statement costs and whom to tell at its end."""
        self._line.append(begin)
        self._serve()

    def _serve(self) -> None:
        while self._free and self._line:
            self._free -= 1
            cost_s, tell = self._line.popleft()()
            self.busy_s += cost_s
            self._world.after(cost_s, lambda tell=tell: self._answer(tell))  # type: ignore[misc]

    def _answer(self, tell: Callable[[], None]) -> None:
        self._free += 1
        tell()
        self._serve()


class World:
    """Simulated time, the due work, and everybody who wants it."""

    def __init__(self, fleet: Fleet, prices: Prices) -> None:
        self.fleet = fleet
        self.prices = prices
        self.random = random.Random(SEED)
        self.now = 0.0
        self.due: deque[float] = deque()
        self.database = Database(self, fleet.cores)
        self.waits: list[float] = []
        self.lines: list[float] = []
        self.claims = self.empty = 0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._hint_on_its_way = False
        self.workers = [Worker(self) for _ in range(fleet.workers)]

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (self.now + seconds, self._count, call))

    def run(self) -> Seen:
        """Look only at what happens once everybody has found their pace."""
        fleet = self.fleet
        for worker in self.workers:
            self.after(self.random.uniform(0, IDLE_MAX_S), worker.look)
        if fleet.arrivals_per_s:
            self.after(0.0, self._arrive)
        if fleet.burst:
            self.after(fleet.warm_s + fleet.seconds / 2, lambda: self.create(fleet.burst))
        self._until(fleet.warm_s)
        self.claims = self.empty = 0
        self.waits.clear()
        self.lines.clear()
        self.database.busy_s = 0.0
        self._until(fleet.warm_s + fleet.seconds)
        return Seen(
            fleet,
            self.claims / fleet.seconds,
            self.empty / max(1, self.claims),
            self.database.busy_s / fleet.seconds / fleet.cores,
            _waits_ms(self.waits),
            _waits_ms(self.lines)[1],
            len(self.waits),
            len(self.due),
        )

    def _until(self, end: float) -> None:
        while self._events and self._events[0][0] <= end:
            self.now, _, call = heapq.heappop(self._events)
            call()
        self.now = end

    def _arrive(self) -> None:
        self.create(1)
        self.after(self.random.expovariate(self.fleet.arrivals_per_s), self._arrive)

    def create(self, runs: int) -> None:
        self.due.extend([self.now] * runs)
        if self.fleet.heeded and not self._hint_on_its_way:
            self._hint_on_its_way = True
            self.after(HEARD_S, self._hear)

    def _hear(self) -> None:
        self._hint_on_its_way = False
        for worker in self.workers:
            if self.fleet.heeded >= 1 or self.random.random() < self.fleet.heeded:
                worker.hear()

    def take(self, limit: int) -> int:
        """Rows that nobody holds, the oldest first."""
        taken = min(limit, len(self.due))
        for _ in range(taken):
            self.waits.append(self.now - self.due.popleft())
        self.claims += 1
        self.empty += not taken
        return taken


class Worker:
    """The claiming loop of `RunWorker`, one call for each of its turns."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._idle_s = IDLE_FIRST_S
        self._running = 0
        self._woken = False
        self._hinted = False
        self._in_vain = 0
        self._looks_later = False
        self._sated = False
        self._pause = 0
        """Which pause it is in; a timer of an earlier one means nothing any more."""
        self._pausing = False

    def look(self) -> None:
        self._pausing = self._woken = self._sated = False
        hinted, self._hinted = self._hinted, False
        free = self._world.fleet.slots - self._running
        if free:
            self._world.database.ask(lambda: self._begin(min(free, CLAIM_MAX), hinted))
        else:
            self._rest(None)

    def wake(self) -> None:
        self._woken = True
        if self._pausing:
            self.look()

    def hear(self) -> None:
        """News of work."""
        if not self._in_vain:
            self._heed()
        elif not self._looks_later:
            self._looks_later = True
            self._world.after(self._world.random.uniform(0, CROWD_FIRST_S * 2**self._in_vain), self._heed)

    def _heed(self) -> None:
        self._looks_later = False
        self._hinted = True
        self.wake()

    def _begin(self, limit: int, hinted: bool) -> tuple[float, Callable[[], None]]:
        taken = self._world.take(limit)
        prices = self._world.prices
        return prices.poll_s + taken * prices.claim_s, lambda: self._answered(taken, limit, hinted)

    def _answered(self, taken: int, limit: int, hinted: bool) -> None:
        if hinted and not taken:
            self._in_vain = min(self._in_vain + 1, CROWD_DOUBLINGS)
        if taken:
            self._idle_s, self._in_vain = IDLE_FIRST_S, 0
            self._running += taken
            for _ in range(taken):
                self._world.after(self._world.fleet.tick_s, self._handled)
        if taken == limit:
            self.look()
            return
        self._sated = True
        self._rest(self._idle_s - self._world.random.uniform(0, self._idle_s / 5))
        self._idle_s = min(self._idle_s * 2, IDLE_MAX_S)

    def _handled(self) -> None:
        """The slot is free, and the end is on its way to the disk."""
        self._running -= 1
        asked = self._world.now
        self._world.database.ask(lambda: self._settle(asked))
        self._has_room()

    def _has_room(self) -> None:
        if not self._sated:
            self.wake()

    def _settle(self, asked: float) -> tuple[float, Callable[[], None]]:
        self._world.lines.append(self._world.now - asked)
        return self._world.prices.settle_s, self._has_room

    def _rest(self, seconds: float | None) -> None:
        if self._woken:
            self._world.after(0.0, self.look)
            return
        self._pausing = True
        self._pause += 1
        if seconds is not None:
            pause = self._pause
            self._world.after(seconds, lambda: self._awake(pause))

    def _awake(self, pause: int) -> None:
        if self._pausing and pause == self._pause:
            self.look()


def simulate(fleet: Fleet, prices: Prices) -> Seen:
    return World(fleet, prices).run()


def scenes(fleet: Fleet, few: int = 10) -> Iterator[Fleet]:
    """Idle; several loads; and a crowd of work at once. Each without hints, with them, and if only a few heeded one.

    Then smaller fleets, to see from which size on hints are worth less than they cost.
    """
    for heeded in (0.0, 1.0, min(1.0, few / fleet.workers)):
        ours = replace(fleet, heeded=heeded)
        yield ours
        for rate in (1.0, 10.0, 100.0, 1_000.0):
            yield replace(ours, arrivals_per_s=rate)
        yield replace(ours, burst=10 * fleet.workers)
    for workers in (1, 10, 100):
        for heeded in (0.0, 1.0):
            yield replace(fleet, workers=workers, heeded=heeded, arrivals_per_s=10.0)


def idle_rates() -> dict[str, float]:
    """Statements a second that one idle worker sends, by what they ask. The jitter shortens or lengthens each pause."""
    return {
        "claim": 1 / (IDLE_MAX_S * 0.9),
        "sweep": 1 / (SWEEP_S * 1.25),
        "outbox, where there are sinks": 1 / (RELAY_S * 0.9),
        "does the ear still hear": 1 / BEAT_S,
        "chores": 1 / LOOK_S,
    }


def _waits_ms(waits: list[float]) -> tuple[float, float, float]:
    if not waits:
        return (0.0, 0.0, 0.0)
    parts = quantiles(waits, n=100, method="inclusive") if len(waits) > 1 else waits * 99
    return (parts[49] * 1e3, parts[98] * 1e3, max(waits) * 1e3)
