"""Claims ahead of their slots: more of them while handlers are brisk, and none that another worker could begin."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from holdfast import Done, Holdfast, ambient
from holdfast.runtime.claims import Taken
from holdfast.slots import BRISK_MIN, BRISK_S, SETTLING_MAX, Slots
from tests.conftest import Opener
from tests.worker.places import clog, ended, kinds, until, working

MANY = 4
BRISK = 2 * BRISK_MIN
"""How many runs end at once in each scene before one stays."""
ALL = BRISK + 20
on_postgres = pytest.mark.parametrize("configuration", ["postgres"])


class Watch:
    """Stands where the clock stands."""

    def __init__(self) -> None:
        self.now = 100.0


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    made = Watch()
    monkeypatch.setattr(ambient, "monotonic", lambda: made.now)
    return made


def taken(*names: str) -> list[Taken]:
    return cast("list[Taken]", list(names))


def brisk(many: int = MANY, **options: Any) -> Slots:
    """Slots that have just seen as many brisk handlers as it takes."""
    slots = Slots(many, **{"looks_ahead": True, **options})
    for number in range(max(many, BRISK_MIN)):
        slots.begin(f"brisk-{number}")
        slots.handled(f"brisk-{number}")
        slots.end()
    return slots


def full(slots: Slots) -> Slots:
    for number in range(MANY):
        slots.begin(f"held-{number}")
    return slots


class TestSlots:
    def test_before_it_is_known_how_brisk_handlers_are_only_what_can_begin_is_claimed(self, watch: Watch) -> None:
        slots = Slots(MANY, looks_ahead=True)

        assert slots.room == slots.free == MANY
        assert full(slots).room == 0

    def test_behind_brisk_handlers_as_many_again_are_claimed(self, watch: Watch) -> None:
        slots = brisk()

        assert slots.room == 2 * MANY
        assert full(slots).room == MANY
        slots.queue(taken("a", "b"), watch.now)
        assert slots.room == MANY - 2
        slots.queue(taken("c"), watch.now)
        assert slots.room == 0, "one by one they would be as many statements as runs"

    def test_a_few_brisk_ones_are_no_reason(self, watch: Watch) -> None:
        slots = brisk()
        slots.begin("slow")
        watch.now += BRISK_S + 0.01
        slots.handled("slow")
        for number in range(BRISK_MIN - 1):
            slots.begin(str(number))
            slots.handled(str(number))
            slots.end()

        assert slots.room == slots.free
        slots.begin("last")
        slots.handled("last")
        assert slots.room > slots.free

    def test_one_that_takes_its_time_ends_that(self, watch: Watch) -> None:
        slots = brisk()
        slots.begin("slow")
        watch.now += BRISK_S + 0.01
        slots.handled("slow")

        assert slots.room == slots.free == MANY

    def test_a_database_that_shares_our_time_is_not_asked_ahead(self, watch: Watch) -> None:
        assert brisk(looks_ahead=False).room == MANY

    def test_each_has_its_turn_as_slots_become_free_and_in_order(self, watch: Watch) -> None:
        slots = brisk()
        slots.queue(taken("a", "b", "c", "d", "e", "f"), watch.now)

        def begun() -> list[str]:
            found = []
            for item, since in slots.turns():
                assert since == watch.now
                slots.begin(str(item))
                found.append(str(item))
            return found

        assert begun() == ["a", "b", "c", "d"]
        assert begun() == []
        slots.handled("b")
        assert begun() == ["e"]

    def test_a_slow_disk_gathers_no_more_ticks_than_it_did(self, watch: Watch) -> None:
        slots = brisk()
        for number in range(MANY * (1 + SETTLING_MAX)):
            slots.begin(str(number))
            slots.handled(str(number))

        assert slots.free == 0
        assert slots.counts == {"busy": 0, "settling": MANY * SETTLING_MAX + MANY, "free": MANY}
        slots.queue(taken("a"), watch.now)
        assert list(slots.turns()) == []

    def test_who_waits_for_too_long_is_let_go_and_nobody_is_claimed_ahead_meanwhile(self, watch: Watch) -> None:
        slots = full(brisk(patience_s=0.2))
        slots.queue(taken("a"), watch.now)
        watch.now += 0.15
        slots.queue(taken("b"), watch.now)

        assert slots.overdue() == []
        assert slots.patience(None) == pytest.approx(0.05)
        assert slots.patience(0.01) == 0.01
        watch.now += 0.05
        assert slots.overdue() == taken("a", "b")
        assert slots.room == slots.free == 0
        assert slots.overdue() == []
        assert slots.patience(None) is None
        assert slots.patience(7.0) == 7.0


class Scene:
    """A clog whose handlers are brisk until they are told to stay, and what was claimed for it."""

    def __init__(self, hf: Holdfast) -> None:
        self.hf = hf
        self.begun: list[int] = []
        self.now = self.most = 0
        self.stay_from = 1 << 30
        self.go_on = asyncio.Event()
        hf.register(clog("brisk", self.handle))

    async def handle(self, given: int, ctx: Any) -> Done:
        self.begun.append(given)
        self.now += 1
        self.most = max(self.most, self.now)
        if given >= self.stay_from:
            await self.go_on.wait()
        await asyncio.sleep(0)
        self.now -= 1
        return Done(ctx.deliveries)

    async def make(self, first: int, last: int) -> list[str]:
        runs = [{"session_id": "s", "clog_id": "brisk", "input": number} for number in range(first, last)]
        return [run.run_id for run in await self.hf.create_runs(runs)]

    async def active(self) -> int:
        ((found,),) = await self.hf._store.fetch("SELECT count(*) FROM {s}runs WHERE status = 'active'")
        return int(found)


@on_postgres
async def test_a_backlog_is_claimed_ahead_and_no_more_is_in_handlers_than_there_are_slots(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.worker.AHEAD_S", 60.0)
    scene = Scene(hf)
    scene.stay_from = BRISK
    first, rest = await scene.make(0, BRISK), await scene.make(BRISK, ALL)

    async with working(hf, concurrency=MANY, lease_ms=600_000):
        await until(lambda: len(scene.begun) == BRISK + MANY)
        # Those that only waited for the disk are over; what is active is in a handler, or ahead.
        await ended(hf, *first)
        assert MANY < await scene.active() <= 2 * MANY
        scene.go_on.set()
        assert await ended(hf, *first, *rest) == ["done"] * ALL

    assert scene.most == MANY
    assert sorted(scene.begun) == list(range(ALL)), "each once"
    assert (await hf.fsck()).problems == ()


@on_postgres
@pytest.mark.clause("W-06")
async def test_what_waits_behind_slots_that_are_full_is_given_to_whoever_has_some(open_hf: Opener) -> None:
    hf, other = await open_hf(), await open_hf()
    scene, beside = Scene(hf), Scene(other)
    scene.stay_from = BRISK
    first, rest = await scene.make(0, BRISK), await scene.make(BRISK, ALL)

    async with working(hf, concurrency=MANY) as worker:
        await until(lambda: len(scene.begun) == BRISK + MANY)
        await until(lambda: worker._slots.patience(None) is None)
        async with working(other, concurrency=MANY):
            free = [run_id for run_id, number in zip(rest, range(BRISK, ALL), strict=True) if number not in scene.begun]
            assert await ended(other, *free) == ["done"] * len(free)
            scene.go_on.set()
            assert await ended(hf, *first, *rest) == ["done"] * ALL

    outputs = [(await hf.get_run(run_id)).output for run_id in (*first, *rest)]  # type: ignore[union-attr]
    assert outputs == [1] * ALL, "being passed on is no delivery"
    given_back = [run_id for run_id in free if "tick_abandoned" in await kinds(hf, run_id)]
    assert 0 < len(given_back) <= MANY, "as many as were ahead, and once each"
    assert sorted(scene.begun + beside.begun) == list(range(ALL))
    assert (await hf.fsck()).problems == ()


@on_postgres
async def test_a_worker_that_stops_gives_back_at_once_what_is_ahead(hf: Holdfast) -> None:
    scene = Scene(hf)
    scene.stay_from = BRISK
    await scene.make(0, BRISK)
    rest = await scene.make(BRISK, ALL)

    async with working(hf, concurrency=MANY, drain_s=30) as worker:
        await until(lambda: len(scene.begun) == BRISK + MANY)
        worker.stop()

        async def only_those_in_handlers() -> bool:
            return await scene.active() == MANY

        # Those that are in their handlers have the time to end that they are given.
        await until(only_those_in_handlers, within_s=10)
        scene.go_on.set()

    found = [(run.status, run.output or run.deliveries) for run_id in rest if (run := await hf.get_run(run_id))]
    assert sorted(found) == [("done", 1)] * MANY + [("pending", 0)] * (20 - MANY)


async def test_a_suspect_that_is_given_back_is_not_waited_for(hf: Holdfast) -> None:
    """It is tried alone; were it remembered, every other suspect would be put aside for ever."""
    scene = Scene(hf)
    await scene.make(0, 1)
    worker = hf.worker(concurrency=MANY)
    (item,) = await worker._runs.take(["default"], limit=1)
    held = item.claim.claim_id
    worker._suspect = held

    await worker._give_back([item])

    assert worker._suspect != held
    assert await scene.active() == 0


@pytest.mark.parametrize("configuration", ["file", "postgres"])
async def test_on_a_file_and_for_sessions_that_keep_to_a_worker_nothing_is_claimed_ahead(
    hf: Holdfast, configuration: str
) -> None:
    scene = Scene(hf)
    options = {"sticky_ttl_s": 60.0} if configuration == "postgres" else {}
    scene.stay_from = BRISK
    first, rest = await scene.make(0, BRISK), await scene.make(BRISK, ALL)

    async with working(hf, concurrency=MANY, lease_ms=600_000, **options):
        await until(lambda: len(scene.begun) == BRISK + MANY)
        await ended(hf, *first)
        assert await scene.active() == MANY
        scene.go_on.set()
        assert await ended(hf, *first, *rest) == ["done"] * ALL

    for run_id in rest:
        assert "tick_abandoned" not in await kinds(hf, run_id), "nothing was there to give back"
