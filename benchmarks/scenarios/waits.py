"""Latency on an idle system, and what idling costs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.bench import Bench
from benchmarks.measuring import Measured
from benchmarks.peers.driving import Job
from benchmarks.processes import playing
from benchmarks.sides import Side
from benchmarks.stillness import Stillness
from benchmarks.wire import relayed

SETTLED_S = 1.0
ANSWER_S = 120.0
STILL_MS = 1.0
"""An observation during which the cores stood still for longer than this was disturbed."""


@dataclass(frozen=True)
class Wait:
    """One process asks and times, perhaps others work; `role` says what it saw, one observation at a time."""

    name: str
    role: str
    beside: tuple[str, ...] = ()

    async def __call__(self, bench: Bench, side: Side, repeat: int) -> Measured:
        async with bench.place(side) as place:
            job = Job(place.url, n=bench.size.asks, socket=str(bench.folder / "begun.sock"))
            async with playing(*(bench.player(side, role, job) for role in (*self.beside, self.role))) as players:
                *workers, asker = players
                for worker in workers:
                    worker.tell()
                await asyncio.sleep(SETTLED_S + side.warm_s)
                asker.tell()
                stillness = Stillness()
                with stillness.watched():
                    told = await asker.until("measured", ANSWER_S)
        samples = {name: sorted(told[name]) for name in told if name.endswith("_ms")}
        values = _quantiles(samples) | undisturbed(told, stillness)
        return Measured(self.name, side.name, repeat, values, samples)


def undisturbed(told: dict[str, list[float]], stillness: Stillness) -> dict[str, float]:
    """The same of those asks that had the machine to themselves, and how many in a hundred had not."""
    asked = list(zip(told.get("began_at", ()), told.get("visible_ms", ()), strict=True))
    seen = sorted(took for began, took in asked if stillness.between(began, began + took) < STILL_MS)
    values = {"disturbed_percent": 100 - 100 * len(seen) / len(asked)} if asked else {}
    return values | (_quantiles({"undisturbed_ms": seen}) if seen else {})


def _quantiles(samples: dict[str, list[float]]) -> dict[str, float]:
    return {
        f"{name.removesuffix('_ms')}_{label}_ms": quantile(seen, share)
        for name, seen in samples.items()
        for label, share in (("p50", 0.5), ("p99", 0.99))
    }


def quantile(ascending: Sequence[float], share: float) -> float:
    return ascending[min(int(share * len(ascending)), len(ascending) - 1)]


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
