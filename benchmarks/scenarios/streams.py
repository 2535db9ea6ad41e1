"""Delivery over HTTP: how old an event is when a reader of a served process has it, and what each delivery costs."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from benchmarks.bench import Bench
from benchmarks.measuring import Measured, quantiles
from benchmarks.peers.driving import Job
from benchmarks.places import Place
from benchmarks.processes import Player, playing
from benchmarks.scenarios.waits import ANSWER_S
from benchmarks.serving import Api, serving
from benchmarks.sides import Side

NOTES_MIN = 5
SETTLE_S = 0.5


@dataclass(frozen=True)
class Streams:
    """Runs that a worker of another process makes talk, each with so many readers on one API process.

    Everybody must hear everything, in order and once. In the end the process is told to go while all are still talking.
    """

    name: str
    runs: int
    readers: int
    """For each run."""
    pace_s: float
    """Between two events of one run."""
    stretch: int = 1
    """How many times as long as the others it is looked at."""

    async def __call__(self, bench: Bench, side: Side, repeat: int) -> Measured:
        runs = max(min(self.runs, bench.size.streams_max // self.readers), 1)
        notes = max(int(bench.size.seconds * self.stretch / self.pace_s), NOTES_MIN)
        async with (
            bench.place(side) as place,
            serving(place.url, bench.folder / "logs" / f"{self.name}-api.log") as api,
        ):
            talk = {"runs": runs, "readers": self.readers, "pace_s": self.pace_s, "address": api.address}
            job = Job(place.url, n=notes, talk=talk)
            async with playing(bench.player(side, "work", job), bench.player(side, "listen", job)) as players:
                values, samples = await self._measured(bench, place, api, *players, readers=runs * self.readers)
        return Measured(self.name, side.name, repeat, values, {"age_ms": samples})

    async def _measured(
        self, bench: Bench, place: Place, api: Api, worker: Player, crowd: Player, *, readers: int
    ) -> tuple[dict[str, float], list[float]]:
        crowd.tell()
        await crowd.until("warm", ANSWER_S)
        await asyncio.sleep(SETTLE_S)
        held, spent_s = api.resident(), api.cpu_s()
        crowd.tell()
        await crowd.until("joined", ANSWER_S)
        await asyncio.sleep(SETTLE_S)
        held, opening_s = api.resident() - held, api.cpu_s() - spent_s
        await bench.joined(api)

        before = await self._spent(place, api, worker)
        worker.tell()
        told = await crowd.until("measured", ANSWER_S)
        after = await self._spent(place, api, worker)
        api_s, worker_s, server_s = (last - first for first, last in zip(before, after, strict=True))
        events = told["delivered"] / self.readers

        left_ms = api.leave()
        ended = await crowd.until("ended", ANSWER_S)
        values = {
            **quantiles({"age_ms": told["age_ms"]}),
            "api_cpu_us": api_s / told["delivered"] * 1e6,
            "worker_cpu_us": worker_s / events * 1e6,
            "server_cpu_us": server_s / events * 1e6,
            "reader_cpu_us": told["cpu_s"] / told["delivered"] * 1e6,
            "delivered_per_s": told["delivered"] / told["seconds"],
            "opening_cpu_ms": opening_s / readers * 1e3,
            "held_kb": held / readers / 1e3,
            "leave_ms": ended["at_ms"] - left_ms,
        }
        return values, told["age_ms"]

    async def _spent(self, place: Place, api: Api, worker: Player) -> tuple[float, float, float]:
        """What API, worker and database have used so far. The API pays for each delivery, the others for each event."""
        meters = await place.meters()
        return api.cpu_s(), worker.cpu_s(), meters.cpu_s if meters else 0.0
