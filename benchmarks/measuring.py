"""How a slice is measured: two readings of everything while the sides work, and the difference between them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from benchmarks.places import Meters, Place
from benchmarks.processes import Player


class Reading(NamedTuple):
    """One look at the clock, the durable work, the database and the processes of the side."""

    at_s: float
    units: int
    meters: Meters | None
    cpu_s: float


@dataclass(frozen=True)
class Measured:
    """What one slice of one side showed. `values` are per second or per unit, `samples` single observations."""

    scenario: str
    side: str
    repeat: int
    values: dict[str, float] = field(default_factory=dict)
    samples: dict[str, list[float]] = field(default_factory=dict)
    problem: str = ""
    """Why there is no number."""


def quantiles(samples: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """The median of each kind of observation, and what one in a hundred exceeds."""
    return {
        f"{name.removesuffix('_ms')}_{label}_ms": quantile(sorted(seen), share)
        for name, seen in samples.items()
        for label, share in (("p50", 0.5), ("p99", 0.99))
        if seen
    }


def quantile(ascending: Sequence[float], share: float) -> float:
    return ascending[min(int(share * len(ascending)), len(ascending) - 1)]


async def read(place: Place, sql: str, players: Sequence[Player]) -> Reading:
    # Counting comes last, so that what it costs the server is in no reading that ends a span.
    meters, cpu_s = await place.meters(), sum(player.cpu_s() for player in players)
    # It takes a moment; what it counted was there when it began.
    began = time.perf_counter()
    return Reading(began, await place.count(sql), meters, cpu_s)


async def window(
    place: Place,
    sql: str,
    players: Sequence[Player],
    *,
    warm_s: float,
    seconds: float,
    look: Callable[[], None] = lambda: None,
) -> list[Reading]:
    """Two readings, the first once the players are warm; `look` is called with each."""
    for player in players:
        player.tell()
    readings: list[Reading] = []
    for rest_s in (warm_s, seconds):
        await asyncio.sleep(rest_s)
        look()
        readings.append(await read(place, sql, players))
    return readings


def difference(*spans: tuple[Reading, Reading]) -> dict[str, float]:
    """Units a second, and what each of them cost, over one span of time or several."""
    units = sum(last.units - first.units for first, last in spans)
    elapsed = sum(last.at_s - first.at_s for first, last in spans)
    each = max(units, 1)
    values = {
        "rate": units / elapsed,
        "units": float(units),
        "seconds": elapsed,
        "side_cpu_us": sum(last.cpu_s - first.cpu_s for first, last in spans) / each * 1e6,
    }
    meters = [(first.meters, last.meters) for first, last in spans if first.meters and last.meters]
    if meters:
        values["server_cpu_us"] = sum(last.cpu_s - first.cpu_s for first, last in meters) / each * 1e6
    if any(last.wal_bytes for _, last in meters):
        values["wal_bytes"] = sum(last.wal_bytes - first.wal_bytes for first, last in meters) / each
        values["transactions"] = sum(last.transactions - first.transactions for first, last in meters) / each
    return values
