"""Latency on an idle system, and what idling costs."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from benchmarks.bench import Bench
from benchmarks.measuring import Measured, quantiles
from benchmarks.peers.driving import Job
from benchmarks.processes import playing
from benchmarks.sides import Side
from benchmarks.wire import relayed

SETTLED_S = 1.0
GAP_S = 0.02
"""Between two asks: long enough for a machine to turn to something else, and for every cache to grow cold."""
ANSWER_S = 120.0


@dataclass(frozen=True)
class Wait:
    """One process asks and times, perhaps others work; `role` says what it saw, one observation at a time."""

    name: str
    role: str
    beside: tuple[str, ...] = ()
    turns: int = 1
    """Into how many slices its asks are divided."""
    gap_s: float = GAP_S

    async def __call__(self, bench: Bench, side: Side, repeat: int) -> Measured:
        async with bench.place(side) as place:
            asks = -(-bench.size.asks // self.turns)
            job = Job(place.url, n=asks, socket=str(bench.folder / "begun.sock"), gap_s=self.gap_s)
            async with playing(*(bench.player(side, role, job) for role in (*self.beside, self.role))) as players:
                *workers, asker = players
                for worker in workers:
                    worker.tell()
                await asyncio.sleep(SETTLED_S + side.warm_s)
                asker.tell()
                told = await asker.until("measured", ANSWER_S)
        samples = {name: sorted(told[name]) for name in told if name.endswith("_ms")}
        return Measured(self.name, side.name, repeat, quantiles(samples), samples)


@dataclass(frozen=True)
class Idle:
    """A worker with nothing to do: the share of a core it uses, and its round trips a second."""

    name: str

    async def __call__(self, bench: Bench, side: Side, repeat: int) -> Measured:
        seconds = bench.size.seconds * 4
        async with (
            bench.place(side) as place,
            relayed(place.url, bench.folder / "wire") as wire,
            playing(bench.player(side, "work", Job(wire.url))) as (worker,),
        ):
            worker.tell()
            await asyncio.sleep(SETTLED_S * 3 + side.warm_s)
            began, cpu_s, trips = time.perf_counter(), worker.cpu_s(), wire.trips
            await asyncio.sleep(seconds)
            elapsed = time.perf_counter() - began
            values = {
                "idle_cpu_percent": (worker.cpu_s() - cpu_s) / elapsed * 100,
                "idle_round_trips_per_s": (wire.trips - trips) / elapsed,
            }
        return Measured(self.name, side.name, repeat, values)
