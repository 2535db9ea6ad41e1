"""Seeded schedules with crashes at every commit boundary: all invariants hold, and a seed shows the same again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import Clog, Context, Continue, Done, Holdfast, Ok, Retry, Wait
from holdfast.errors import InvalidValue
from holdfast.journal import Journal
from holdfast.testing import SimulationFailed, simulate

BLOCKS = 8
SEEDS = 400
EACH = SEEDS // BLOCKS

counter = Clog("counter")
mailbox = Clog("mailbox")
parent = Clog("parent")


@counter.on_advance
async def count(input: Any, ctx: Context) -> Continue | Wait | Retry | Done:
    """Several ticks of every kind; what is counted is counted with the outcome."""
    mine, ours = await ctx.read(("run",), ("session",))
    ticks = (mine or 0) + 1
    await ctx.write(("run.set", ticks), ("session.set", (ours or 0) + 1))
    ctx.stream("text", f"tick {ticks}")
    await ctx.outbox("mail", {"run": ctx.run_id, "tick": ticks})
    match ticks:
        case 1:
            return Continue("next")
        case 2:
            return Wait(seconds=30)
        case _:
            return Done(ticks)


@mailbox.on_advance
async def collect(input: Any, ctx: Context) -> Ok | Done:
    (got,) = await ctx.read(("run",))
    letters = [*(got or []), input]
    await ctx.write(("run.set", letters))
    return Done(letters) if len(letters) == 4 else Ok()


@parent.on_advance
async def have_children(input: Any, ctx: Context) -> Ok | Done:
    for key in ("a", "b"):
        await ctx.child("counter", key=key, input=1, session_id=f"children-{key}", max_deliveries=50)
    return Done("they are on their way")


async def mixed(hf: Holdfast) -> None:
    hf.register(counter, mailbox)
    for number in range(2):
        await hf.create_run(
            session_id="s", clog_id="counter", input=number, lane="l", max_deliveries=50, run_id=f"c{number}"
        )
    letters = await hf.create_run(session_id="t", clog_id="mailbox", max_deliveries=50, run_id="letters")
    for letter in "abcd":
        await hf.signal(letters.run_id, letter)


async def mixed_is_right(hf: Holdfast) -> None:
    for number in range(2):
        run = await hf.get_run(f"c{number}")
        assert run is not None
        assert (run.status, run.output) == ("done", 3), run
    letters = await hf.get_run("letters")
    assert letters is not None
    assert letters.output == list("abcd"), letters
    sent = await hf.journal.store.fetch("SELECT payload FROM {s}outbox")
    assert len(sent) == len(set(sent)) == 6
    (shared,) = await hf.journal.store.fetch("SELECT value FROM {s}shared_storage")
    assert shared == ("6",)


async def family(hf: Holdfast) -> None:
    hf.register(counter, parent)
    await hf.create_run(session_id="p", clog_id="parent", input=1, max_deliveries=50, run_id="p")


async def family_is_right(hf: Holdfast) -> None:
    runs = (await hf.list_runs(limit=10)).items
    assert {run.clog_id for run in runs} == {"counter", "parent"}
    assert {run.status for run in runs} == {"done"}
    assert len(runs) == 3


STORIES = {"mixed": (mixed, mixed_is_right), "family": (family, family_is_right)}


@pytest.mark.timeout(300)
@pytest.mark.clause("OB-21", "H-O5", "H-O10", "H-O14")
@pytest.mark.parametrize("block", range(BLOCKS))
def test_four_hundred_seeds_break_nothing(block: int) -> None:
    setup, check = STORIES["family" if block % 4 == 3 else "mixed"]

    report = simulate(setup, seeds=range(block * EACH, (block + 1) * EACH), check=check)

    assert report.seeds == EACH
    assert report.crashes >= EACH / 2
    assert report.leases_lost > 0


def test_a_seed_shows_exactly_the_same_again() -> None:
    one, other = (simulate(mixed, seeds=[7]).schedules for _ in range(2))

    assert one == other
    assert simulate(mixed, seeds=[8]).schedules != one


async def test_it_can_be_awaited_where_a_loop_runs() -> None:
    report = await simulate(family, seeds=2, workers=2, faults=())

    assert (report.seeds, report.crashes, report.leases_lost) == (2, 0, 0)


def test_a_handler_that_never_rests_holds_up_nobody() -> None:
    """It waits, by asking again and again, for a run that only the schedule can let go on."""
    restless = Clog("restless")
    told: list[Any] = []

    @restless.on_advance
    async def ask(input: Any, ctx: Context) -> Done:
        if input == "tells":
            await ctx.emit("note", "now")
            told.append(input)
        while not told:  # noqa: ASYNC110
            await asyncio.sleep(0)
        return Done(input)

    async def story(hf: Holdfast) -> None:
        told.clear()
        hf.register(restless)
        for what in ("asks", "tells"):
            await hf.create_run(session_id="s", clog_id="restless", input=what, run_id=what)

    async def are_done(hf: Holdfast) -> None:
        assert [await hf.result(run_id) for run_id in ("asks", "tells")] == ["asks", "tells"]

    assert simulate(story, check=are_done, seeds=5, faults=()).seeds == 5


def test_what_goes_wrong_names_its_seed_and_its_schedule() -> None:
    async def never_right(hf: Holdfast) -> None:
        raise AssertionError("the moon is made of cheese")

    with pytest.raises(SimulationFailed, match="made of cheese") as caught:
        simulate(family, seeds=[5], check=never_right)

    assert caught.value.seed == 0  # already the first play, without faults
    assert any("claim" in step for step in caught.value.schedule)


def test_a_runtime_that_forgets_its_handoffs_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    async def forget(journal: Journal) -> int:
        return 0

    monkeypatch.setattr(Journal, "sweep", forget)

    with pytest.raises(SimulationFailed) as caught:
        simulate(family, seeds=50, check=family_is_right)

    with pytest.raises(SimulationFailed):
        simulate(family, seeds=[caught.value.seed], check=family_is_right)


def test_an_unknown_fault_is_refused() -> None:
    with pytest.raises(InvalidValue, match="gremlins"):
        simulate(family, seeds=1, faults=("gremlins",))
