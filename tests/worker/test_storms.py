"""Four workers under a storm: killed at random, frozen past their leases, flooded with signals. Nothing is lost."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
import pytest

from holdfast import Holdfast
from tests.worker.judgement import chores_are_done_once, diary, tally, unrecorded
from tests.worker.nursery import Nursery
from tests.worker.places import Place, stored, until

WORKERS = 4
LEASE_MS = 1_000
EVERY_S = 0.3
TICKS = 4


class Size(NamedTuple):
    """How long a storm lasts, how many runs it hits, how long a tick sleeps, how long until all must be quiet."""

    storm_s: float
    runs: int
    tick_s: float
    quiet_s: float


SIZES = [
    pytest.param(Size(4.0, 30, 0.2, 60), id="short"),
    pytest.param(Size(60.0, 500, 1.0, 240), id="long", marks=pytest.mark.slow),
]


class Fleet:
    """Some workers; one that dies is replaced at once."""

    def __init__(self, nursery: Nursery, place: Place, chance: random.Random, **options: Any) -> None:
        self._nursery = nursery
        self._place = place
        self._given = {**place._asdict(), "lease_ms": LEASE_MS, "concurrency": 32, "drain_s": 20, **options}
        self._chance = chance
        self.frozen: dict[int, float] = {}
        self.hits = 0
        self.workers = [self._start() for _ in range(WORKERS)]

    def _start(self) -> int:
        return self._nursery.start("worker", **self._given)

    def kill_one(self) -> None:
        """One that has come as far as its work: on a slow machine the storm would else only hit beginners."""
        ready = {line.run_id for line in diary(self._place) if line.what == "ready"}
        victims = [number for number, pid in enumerate(self.workers) if str(pid) in ready]
        if victims:
            self.hits += 1
            victim = self._chance.choice(victims)
            self._nursery.kill(self.workers[victim])
            self.workers[victim] = self._start()

    def freeze_one(self) -> None:
        """At most three at a time, so that somebody is left to take over."""
        self.thaw(time.monotonic())
        awake = [pid for pid in self.workers if pid not in self.frozen]
        if len(awake) > 1:
            self.hits += 1
            victim = self._chance.choice(awake)
            self._nursery.send(victim, signal.SIGSTOP)
            self.frozen[victim] = time.monotonic() + self._chance.uniform(1.2, 2.5) * LEASE_MS / 1_000

    def thaw(self, now: float) -> None:
        for pid in [pid for pid, ends in self.frozen.items() if ends <= now]:
            self._nursery.send(pid, signal.SIGCONT)
            del self.frozen[pid]

    async def storm(self, blow: Callable[[], None], seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            await asyncio.sleep(EVERY_S)
            await asyncio.to_thread(blow)
        self.thaw(float("inf"))

    async def retire(self) -> list[int]:
        """How they ended when they were asked to."""
        for pid in self.workers:
            self._nursery.send(pid, signal.SIGTERM)
        return [await asyncio.to_thread(self._nursery.wait, pid) for pid in self.workers]


def chance() -> random.Random:
    """The storm's own dice; the seed is shown when the test fails."""
    seed = int(os.environ.get("STORM_SEED", random.randrange(1 << 32)))
    print(f"STORM_SEED={seed}")
    return random.Random(seed)


async def made(holdfast: Holdfast, size: Size) -> list[str]:
    given = {"number": 0, "count": TICKS, "seconds": size.tick_s}
    options = {"session_id": "s", "clog_id": "chores", "input": given, "max_deliveries": 10_000}
    return [run.run_id for run in await holdfast.create_runs([options] * size.runs)]


async def all_ended(holdfast: Holdfast, size: Size) -> None:
    sql = "SELECT count(*) FROM {s}runs WHERE status <> 'done'"

    async def quiet() -> bool:
        await asyncio.sleep(0.2)
        return bool((await holdfast._store.fetch(sql))[0][0] == 0)

    await until(quiet, within_s=size.quiet_s)


@pytest.mark.clause("W-51", "W-14", "W-20", "W-22", "O-33", "H-O1")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("size", SIZES)
async def test_workers_killed_at_random_do_every_chore_once(
    hf: Holdfast, place: Place, nursery: Nursery, size: Size
) -> None:
    run_ids = await made(hf, size)
    fleet = Fleet(nursery, place, chance())
    since = time.monotonic()
    await fleet.storm(fleet.kill_one, size.storm_s)
    left = await hf._store.fetch("SELECT count(*) FROM {s}runs WHERE status <> 'done'")
    await all_ended(hf, size)
    took = time.monotonic() - since

    assert await fleet.retire() == [0] * WORKERS
    found = await tally(hf, run_ids, diary(place), TICKS)
    print(f"{fleet.hits} killed, {left[0][0]} runs left after the storm, all quiet after {took:.1f} s: {found}")
    assert found.repeated > 0, "a storm that hit nobody proves nothing"
    assert await chores_are_done_once(hf, run_ids, TICKS) == []


@pytest.mark.clause("H-O5", "H-O10", "O-33", "W-14", "S-37")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("deaf", [False, True], ids=["with a clock", "without"])
@pytest.mark.parametrize("size", SIZES)
async def test_workers_frozen_past_their_leases_write_nothing_afterwards(
    hf: Holdfast, place: Place, nursery: Nursery, size: Size, deaf: bool
) -> None:
    """`without`: these workers have no deadline of their own, so that the database alone must refuse."""
    run_ids = await made(hf, size)
    fleet = Fleet(nursery, place, chance(), deaf=deaf)
    since = time.monotonic()
    await fleet.storm(fleet.freeze_one, size.storm_s)
    await all_ended(hf, size)
    took = time.monotonic() - since

    assert await fleet.retire() == [0] * WORKERS
    lines = diary(place)
    found = await tally(hf, run_ids, lines, TICKS)
    print(f"{fleet.hits} frozen, all quiet after {took:.1f} s: {found}")
    assert found.repeated > 0, "a storm that hit nobody proves nothing"
    assert found.refused > 0 or not deaf
    assert await chores_are_done_once(hf, run_ids, TICKS) == []
    assert await unrecorded(hf, run_ids, lines) == []


@pytest.mark.clause("H-O3", "O-22", "O-32")
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("runs", "each"),
    [pytest.param(20, 5, id="short"), pytest.param(200, 25, id="long", marks=pytest.mark.slow)],
)
async def test_signals_of_two_senders_arrive_once_and_in_order(
    hf: Holdfast, place: Place, nursery: Nursery, runs: int, each: int
) -> None:
    made = await hf.create_runs([{"session_id": "s", "clog_id": "mailbox"}] * runs)
    run_ids = [run.run_id for run in made]
    since = time.monotonic()
    given = {**place._asdict(), "lease_ms": 10_000, "concurrency": 32, "drain_s": 20}
    workers = [nursery.start("worker", **given) for _ in range(2)]
    senders = [
        nursery.start("sender", **place._asdict(), name=name, run_ids=run_ids, count=each) for name in ("a", "b")
    ]
    for pid in senders:
        assert await asyncio.to_thread(nursery.wait, pid, 400) == 0
    sent = time.monotonic() - since

    ticks = "SELECT count(*) FROM {s}journal WHERE kind = 'tick_settled'"

    async def read() -> bool:
        await asyncio.sleep(0.2)
        return bool((await hf._store.fetch(ticks))[0][0] >= 2 * runs * each)

    await until(read, within_s=300)
    took = time.monotonic() - since
    for pid in workers:
        nursery.send(pid, signal.SIGTERM)
        assert await asyncio.to_thread(nursery.wait, pid) == 0

    print(f"{runs * each * 2} signals sent in {sent:.1f} s, all read after {took:.1f} s")
    for run_id in run_ids:
        entries = [entry for entry in await hf.journal.read(f"run:{run_id}") if entry.kind == "signal_received"]
        (kept,) = await stored(hf, run_id)
        read_letters = msgspec.json.decode(kept)
        assert read_letters == [[entry.rev, *entry.data["input"]] for entry in entries]
        for name in ("a", "b"):
            assert [number for _, sender, number in read_letters if sender == name] == list(range(each))
        said = [event.data for event in [e async for e in hf.events(run_id)] if event.type == "read"]
        assert said == [letter[1:] for letter in read_letters]
    assert (await hf.fsck()).problems == ()
