"""Fan-out: runs that start a hundred children each, from the word on until the last child is done."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from benchmarks.bench import Bench
from benchmarks.measuring import Measured, difference, read
from benchmarks.peers.driving import FAN_OUT, WIDTH, Job
from benchmarks.processes import Broken, playing
from benchmarks.sides import DONE, Side

LOOK_S = 0.05
END_S = 90.0
CHILDREN_PER_S = 400


@dataclass(frozen=True)
class FanOut:
    """Children a second over the whole of it: there is no steady state to look into, since all are begun first."""

    name: str

    async def __call__(self, bench: Bench, side: Side, repeat: int) -> Measured:
        parents = max(int(bench.size.seconds * CHILDREN_PER_S / WIDTH), 1)
        sql = side.question(DONE, FAN_OUT)
        async with bench.place(side) as place:
            job = Job(place.url, kind=FAN_OUT, n=parents)
            await bench.play(side, "fill", job)
            async with playing(bench.player(side, "work", job)) as players:
                first = await read(place, sql, players)
                players[0].tell()
                deadline = time.perf_counter() + END_S
                while (last := await read(place, sql, players)).units < parents * WIDTH:
                    if time.perf_counter() > deadline:
                        done = f"{last.units} of {parents * WIDTH}"
                        raise Broken(f"{side.name}: {done} children were done after {END_S:.0f} s")
                    await asyncio.sleep(LOOK_S)
        return Measured(self.name, side.name, repeat, difference((first, last)))
