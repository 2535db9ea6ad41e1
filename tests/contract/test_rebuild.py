"""rebuild: the rows come back from the journal alone, work goes on, and the journal is never touched."""

from __future__ import annotations

import asyncio

import pytest

from holdfast import Done, Holdfast, InvalidEntry
from tests.conftest import EACH_VALUE, FakeClock
from tests.contract.builders import create
from tests.contract.damage import (
    FORGERIES,
    JOURNAL_DAMAGES,
    ROW_DAMAGES,
    Damage,
    give_a_key_away,
)
from tests.contract.scene import MADE_FROM_THE_JOURNAL, Scene, build

by_name = pytest.mark.parametrize("damage", ROW_DAMAGES, ids=lambda damage: damage.name)
in_process = pytest.mark.parametrize("configuration", EACH_VALUE)


async def work_goes_on(scene: Scene) -> None:
    """What waits can be claimed and finished, and the result is as sound as before."""
    ended = await scene.hf.complete(await scene.claim("pending"), Done("carried on"))
    assert (ended.status, ended.output) == ("done", "carried on")
    assert (await scene.hf.fsck(scene.runs["pending"])).ok


@in_process
@by_name
@pytest.mark.clause("S-06")
async def test_damaged_rows_are_put_right_from_the_journal(hf: Holdfast, clock: FakeClock, damage: Damage) -> None:
    scene = await build(hf, clock)
    infos, rows, journal = await scene.infos(), await scene.rows(), await scene.digests()
    await damage.plant(scene)

    report = await hf.rebuild()

    assert report.problems == ()
    assert report.ok
    assert await scene.infos() == infos
    assert await scene.rows() == rows
    assert await scene.digests() == journal
    await work_goes_on(scene)


@in_process
@pytest.mark.parametrize("damage", JOURNAL_DAMAGES, ids=lambda damage: damage.name)
@pytest.mark.clause("S-10")
async def test_a_damaged_journal_is_left_as_it_is_and_still_named(
    hf: Holdfast, clock: FakeClock, damage: Damage
) -> None:
    scene = await build(hf, clock)
    await damage.plant(scene)
    for name in ("idle", damage.victim):
        await scene.execute("UPDATE {s}runs SET attempt = 9 WHERE run_id = $1", scene.runs.get(name, ""))
    rows, journal = await scene.rows(), await scene.digests()

    report = await hf.rebuild()

    assert {problem.where for problem in report.problems} == {scene.thread(damage.victim)}
    assert damage.law in {problem.law for problem in report.problems}
    assert await scene.digests() == journal
    changed = {name for name, found in (await scene.rows()).items() if found != rows[name]}
    assert changed == {"runs"}
    assert (await hf.fsck(scene.runs["idle"])).ok


@in_process
@pytest.mark.parametrize("damage", FORGERIES, ids=lambda damage: damage.name)
async def test_the_journal_is_believed_also_where_the_rows_know_less(
    hf: Holdfast, clock: FakeClock, damage: Damage
) -> None:
    scene = await build(hf, clock)
    before = (await scene.infos())[damage.victim]
    await damage.plant(scene)
    journal = await scene.digests()

    report = await hf.rebuild()

    after = (await scene.infos())[damage.victim]
    assert report.problems == ()
    assert await scene.digests() == journal
    assert before is not None
    assert after is not None
    assert (after.status, after.locked_by, after.rev) == (before.status, before.locked_by, before.rev + 1)


@pytest.mark.clause("S-06")
async def test_everything_comes_back_after_every_row_is_gone(hf: Holdfast, clock: FakeClock) -> None:
    scene = await build(hf, clock)
    infos, rows, journal = await scene.infos(), await scene.rows(), await scene.digests()
    for table in MADE_FROM_THE_JOURNAL:
        await scene.execute(f"DELETE FROM {{s}}{table}")
    assert set(map(len, (await scene.rows()).values())) == {0}

    report = await hf.rebuild()

    assert report.problems == ()
    assert await scene.infos() == infos
    assert await scene.rows() == rows
    assert await scene.digests() == journal
    await work_goes_on(scene)


@in_process
@pytest.mark.parametrize("name", ["mailbox", "retried", "approved", "done", "lost", "parent", "stepping"])
async def test_one_run_comes_back_after_all_its_rows_are_gone(hf: Holdfast, clock: FakeClock, name: str) -> None:
    scene = await build(hf, clock)
    rows = await scene.rows()
    await scene.execute("DELETE FROM {s}runs WHERE run_id = $1", scene.runs[name])
    assert await hf.get_run(scene.runs[name]) is None

    report = await hf.rebuild(scene.runs[name])

    assert (report.ok, report.runs_checked) == (True, 1)
    assert await scene.rows() == rows


async def test_only_the_run_that_is_asked_for_is_touched(hf: Holdfast, clock: FakeClock) -> None:
    scene = await build(hf, clock)
    for name in ("failed", "rested"):
        await scene.execute("UPDATE {s}runs SET attempt = 9 WHERE run_id = $1", scene.runs[name])

    report = await hf.rebuild(scene.runs["failed"])

    infos = await scene.infos()
    assert report.ok
    assert [info.attempt for name in ("failed", "rested") if (info := infos[name])] == [0, 9]
    assert {problem.where for problem in (await hf.fsck()).problems} == {scene.thread("rested")}


async def test_a_key_returns_to_the_run_it_made(hf: Holdfast, clock: FakeClock) -> None:
    scene = await build(hf, clock)
    rows = await scene.rows()
    await give_a_key_away(scene)

    report = await hf.rebuild()

    found = await hf.find_run(key="order-1")
    assert report.problems == ()
    assert await scene.rows() == rows
    assert found is not None
    assert found.run_id == scene.runs["keyed"]


async def test_a_run_that_lost_its_last_entry_is_not_run_again(hf: Holdfast, clock: FakeClock) -> None:
    scene = await build(hf, clock)
    thread = scene.thread("lost")
    last = await scene.value("SELECT max(rev) FROM {s}journal WHERE thread = $1", thread)
    await scene.execute("DELETE FROM {s}journal WHERE thread = $1 AND rev = $2", thread, last)

    report = await hf.rebuild()

    clock.advance(3_600)
    assert ("J11", thread) in {(problem.law, problem.where) for problem in report.problems}
    assert await scene.value("SELECT status FROM {s}runs WHERE run_id = $1", scene.runs["lost"]) == "done"
    assert await hf.claim_next("lost") == []
    with pytest.raises(InvalidEntry, match=f"entry {last} of {thread}: it is missing"):
        await hf.get_run(scene.runs["lost"])


async def test_rebuilding_what_is_healthy_changes_nothing(hf: Holdfast, clock: FakeClock) -> None:
    scene = await build(hf, clock)
    rows, journal = await scene.rows(), await scene.digests()

    first = await hf.rebuild()
    second = await hf.rebuild()

    assert first == second
    assert first.ok
    assert await scene.rows() == rows
    assert await scene.digests() == journal


async def test_work_goes_on_while_rows_are_rebuilt(hf: Holdfast, clock: FakeClock) -> None:
    scene = await build(hf, clock)

    async def work() -> None:
        for number in range(20):
            await create(hf, queue="live", input=number)
            (claim,) = await hf.claim_next("live")
            await hf.complete(claim, number)

    worker = asyncio.create_task(work())
    while not worker.done():
        await scene.execute("UPDATE {s}runs SET attempt = 9 WHERE run_id = $1", scene.runs["failed"])
        assert (await hf.rebuild()).problems == ()
    await worker

    assert await scene.value("SELECT count(*) FROM {s}runs WHERE queue = 'live' AND status = 'done'") == 20
    assert (await hf.fsck()).ok
