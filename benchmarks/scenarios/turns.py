"""By turns: what is compared closely stands side by side, and a side works on one of its databases after the other."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from statistics import median

from benchmarks.bench import Bench
from benchmarks.measuring import Measured, Reading, difference, read
from benchmarks.places import Place
from benchmarks.processes import Broken, Player, playing
from benchmarks.scenarios.loads import Load
from benchmarks.sides import Side

ROUNDS = 8
ROUNDS_OF_A_PAIR = 6
TURNS_OF_A_SLICE = 3
RUN_UP_S = 0.2
"""Whoever stood still finds everything cold, and gives back what it had claimed ahead: that is no part of a turn."""
LANDING_S = 0.02
BEAT_S = 0.02
"""How often a process that is held to a part of a core has that part."""


class Contender:
    """One load with its processes, which stand still whenever it is not their turn."""

    def __init__(
        self, place: Place, sql: str, players: Sequence[Player], before: int, *, core_share: float = 1.0
    ) -> None:
        self._place = place
        self._sql = sql
        self._players = players
        self._before = self._counted = before
        self._core_share = core_share
        self._holding: list[asyncio.Task[None]] = []

    @property
    def units(self) -> int:
        """Done since it was prepared."""
        return self._counted - self._before

    async def begin(self, warm_s: float) -> None:
        for player in self._players:
            player.tell()
        await asyncio.sleep(warm_s)
        await self._halt()

    async def turn(self, seconds: float) -> tuple[Reading, Reading]:
        """A while of work, and what there was before and after it."""
        self._go_on()
        await asyncio.sleep(RUN_UP_S)
        # Counting takes a core for a moment, so nobody works meanwhile; too short a moment to grow cold in.
        before = await self._halt()
        first = before._replace(at_s=time.perf_counter())
        self._go_on()
        await asyncio.sleep(seconds)
        return first, await self._halt()

    def _go_on(self) -> None:
        if self._core_share < 1:
            # One after the other, so that they do not meet.
            delays = [BEAT_S * number / len(self._players) for number in range(len(self._players))]
            beats = zip(self._players, delays, strict=True)
            self._holding = [asyncio.create_task(_held(*beat, self._core_share)) for beat in beats]
            return
        for player in self._players:
            player.go_on()

    async def _halt(self) -> Reading:
        holding, self._holding = self._holding, []
        for task in holding:
            task.cancel()
        for ended in await asyncio.gather(*holding, return_exceptions=True):
            if isinstance(ended, Exception):
                raise ended
        for player in self._players:
            player.pause()
        paused_s = time.perf_counter()
        # What is on its way to the disk is this turn's work.
        await asyncio.sleep(LANDING_S)
        reading = (await read(self._place, self._sql, self._players))._replace(at_s=paused_s)
        self._counted = reading.units
        return reading


async def _held(player: Player, delay_s: float, core_share: float) -> None:
    """Let a process go on for this part of each beat, for ever."""
    await asyncio.sleep(delay_s)
    while True:
        player.go_on()
        await asyncio.sleep(BEAT_S * core_share)
        player.pause()
        await asyncio.sleep(BEAT_S * (1 - core_share))


async def side_by_side(bench: Bench, loads: Sequence[Load], side: Side, preparation: int) -> list[Measured]:
    """What each load shows in each round, in which all have their turns: there, and back.

    All are prepared first. To copy a million finished runs takes tens of seconds, in which a shared machine becomes
    another one; turns are fractions of a second, so whatever it does meanwhile falls on all of them alike.
    """
    refused = [
        Measured(load.name, side.name, preparation, problem=problem)
        for load in loads
        if (problem := load.refusal(bench))
    ]
    played = [load for load in loads if not load.refusal(bench)]
    if not played:
        return refused
    return refused + [
        Measured(load.name, side.name, preparation * ROUNDS + number, values)
        for number, seen in enumerate(await _enough(bench, played, side, ROUNDS))
        for load, values in zip(played, seen, strict=True)
    ]


@dataclass(frozen=True)
class Pair:
    """What two workers do, and how many times as much that is as one does beside them."""

    two: Load
    core_share: float = 1.0
    """How much of a core each of them may use: with little, the cores of this machine are enough for all of them."""

    async def __call__(self, bench: Bench, side: Side, repeat: int) -> Measured:
        one = replace(self.two, roles=self.two.roles[:1])
        rounds = await _enough(bench, [one, self.two], side, ROUNDS_OF_A_PAIR, core_share=self.core_share)
        values = {name: median(two[name] for _, two in rounds) for name in rounds[0][1]}
        return Measured(self.two.name, side.name, repeat, values | compared(rounds))


def compared(rounds: Sequence[Sequence[dict[str, float]]]) -> dict[str, float]:
    """What one did, and how many times as much two did in the same round: the medians."""
    gains = [two["rate"] / one["rate"] for one, two in rounds if one["rate"]]
    return {"rate_of_one": median(one["rate"] for one, _ in rounds)} | ({"gain": median(gains)} if gains else {})


async def _enough(
    bench: Bench, loads: Sequence[Load], side: Side, many_rounds: int, *, core_share: float = 1.0
) -> list[list[dict[str, float]]]:
    """The values of all loads, round by round; if one ran dry, all are measured again with more."""
    turn_s = bench.size.seconds / TURNS_OF_A_SLICE
    span_s = (turn_s + RUN_UP_S) * 2 * many_rounds + bench.size.warm_s + side.warm_s
    for amounts in zip(*(load.amounts(side, span_s) for load in loads), strict=True):
        async with AsyncExitStack() as stack:
            prepared = zip(loads, amounts, strict=True)
            contenders = [await _contender(stack, bench, load, side, n, core_share) for load, n in prepared]
            for contender in contenders:
                await contender.begin(bench.size.warm_s + side.warm_s)
            rounds = [await _round(contenders, turn_s) for _ in range(many_rounds)]
            if all(contender.units < n for contender, n in zip(contenders, amounts, strict=True)):
                return rounds
    raise Broken(f"{side.name}: even {max(amounts)} prepared runs were not enough")


async def _round(contenders: Sequence[Contender], turn_s: float) -> list[dict[str, float]]:
    """There and back, so that what becomes faster or slower meanwhile does so for all."""
    there = [await contender.turn(turn_s) for contender in contenders]
    back = [await contender.turn(turn_s) for contender in reversed(contenders)]
    return [difference(first, second) for first, second in zip(there, reversed(back), strict=True)]


async def _contender(
    stack: AsyncExitStack, bench: Bench, load: Load, side: Side, n: int, core_share: float
) -> Contender:
    place, job = await stack.enter_async_context(load.prepared(bench, side, n))
    before = await place.count(load.question(side))
    players = await stack.enter_async_context(playing(*(bench.player(side, role, job) for role in load.roles)))
    return Contender(place, load.question(side), players, before, core_share=core_share)
