"""fsck: silent about a healthy database however busy, and in words about a broken one, naming what is broken only."""

from __future__ import annotations

import asyncio

import pytest

from holdfast import Holdfast, NotFound
from tests.conftest import EACH_VALUE, FakeClock
from tests.contract.builders import create, note, start_child
from tests.contract.damage import DAMAGES, Damage, give_a_key_away
from tests.contract.scene import NOTES, build

STATUSES = {"idle", "pending", "active", "waiting", "paused", "done", "failed", "cancelled"}


@pytest.mark.clause("S-06")
async def test_a_busy_healthy_database_is_clean(hf: Holdfast, clock: FakeClock) -> None:
    scene = await build(hf, clock)

    report = await hf.fsck()

    assert report.problems == ()
    assert report.ok
    assert report.runs_checked == len(scene.runs) + len(scene.deleted)
    assert {info.status for info in (await scene.infos()).values() if info} == STATUSES


@pytest.mark.parametrize("configuration", EACH_VALUE)
@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.name)
async def test_damage_is_named_and_nobody_else_is_blamed(hf: Holdfast, clock: FakeClock, damage: Damage) -> None:
    scene = await build(hf, clock)
    assert (await hf.fsck()).ok
    await damage.plant(scene)

    report = await hf.fsck()

    assert not report.ok
    assert {problem.where for problem in report.problems} == {scene.thread(damage.victim)}
    assert [p for p in report.problems if p.law == damage.law and damage.words in p.detail], report.problems


async def test_one_run_can_be_checked_alone(hf: Holdfast, clock: FakeClock) -> None:
    scene = await build(hf, clock)
    await scene.execute("UPDATE {s}runs SET attempt = 9 WHERE run_id = $1", scene.runs["failed"])

    broken = await hf.fsck(scene.runs["failed"])
    healthy = await hf.fsck(scene.runs["done"])

    assert (broken.ok, broken.runs_checked) == (False, 1)
    assert "attempt is 9, the journal says 0" in str(broken.problems[0])
    assert (healthy.ok, healthy.runs_checked, healthy.problems) == (True, 1, ())


@pytest.mark.parametrize("configuration", EACH_VALUE)
async def test_every_one_of_many_damages_is_named(hf: Holdfast, clock: FakeClock) -> None:
    scene = await build(hf, clock)
    planted = {damage.victim: damage for damage in DAMAGES}
    for damage in planted.values():
        await damage.plant(scene)

    report = await hf.fsck()

    assert {problem.where for problem in report.problems} == {scene.thread(victim) for victim in planted}
    for damage in planted.values():
        assert damage.law in {p.law for p in report.problems if p.where == scene.thread(damage.victim)}


async def test_a_key_that_answers_with_another_run_is_named_on_both(hf: Holdfast, clock: FakeClock) -> None:
    scene = await build(hf, clock)
    await give_a_key_away(scene)

    report = await hf.fsck()

    assert {(p.where, p.detail) for p in report.problems} == {
        (scene.thread("keyed"), "keys['user:local', 'order-1'] is missing"),
        (scene.thread("sibling"), "keys['user:local', 'order-1'] is not in the journal"),
    }


@pytest.mark.parametrize("configuration", EACH_VALUE)
async def test_what_lost_its_row_and_its_first_entry_is_still_seen(hf: Holdfast, clock: FakeClock) -> None:
    scene = await build(hf, clock)
    await scene.execute("DELETE FROM {s}runs WHERE run_id = $1", scene.runs["talking"])
    await scene.execute("DELETE FROM {s}threads WHERE thread = $1", NOTES)
    for thread in (scene.thread("talking"), NOTES):
        await scene.execute("DELETE FROM {s}journal WHERE thread = $1 AND rev = 1", thread)

    report = await hf.fsck()

    assert {problem.where for problem in report.problems} == {scene.thread("talking"), NOTES}


async def test_looking_changes_nothing(hf: Holdfast, clock: FakeClock) -> None:
    scene = await build(hf, clock)
    await scene.execute("UPDATE {s}runs SET attempt = 9 WHERE run_id = $1", scene.runs["failed"])
    rows, journal = await scene.rows(), await scene.digests()

    await hf.fsck()

    assert await scene.rows() == rows
    assert await scene.digests() == journal


async def test_a_run_that_is_not_there_is_not_called_healthy(hf: Holdfast) -> None:
    with pytest.raises(NotFound, match="there is no run nobody"):
        await hf.fsck("nobody")
    with pytest.raises(NotFound, match="there is no run nobody"):
        await hf.rebuild("nobody")


async def test_work_that_goes_on_meanwhile_is_no_problem(hf: Holdfast) -> None:
    async def work(worker: int) -> None:
        for number in range(8):
            run = await create(hf, queue=f"q{worker}", input=number)
            (claim,) = await hf.claim_next(f"q{worker}")
            await hf.journal.execute(run.run_id, start_child(claim, f"child-{worker}-{number}"))
            await hf.emit(claim, "text", "half way")
            await hf.complete(claim, number)
            await hf.journal.append(f"notes:{worker}", [note(number)])

    workers = asyncio.gather(*(work(worker) for worker in range(4)))
    reports = []
    while not workers.done():
        reports.append(await hf.fsck())
    await workers

    assert len(reports) > 1
    assert [problem for report in reports for problem in report.problems] == []


class TestPostgres:
    """Where rows of every run refer to it without a constraint."""

    @pytest.fixture
    def configuration(self) -> str:
        return "postgres"

    @pytest.mark.clause("S-06")
    @pytest.mark.parametrize(
        ("statement", "word"),
        [
            (
                """
                INSERT INTO {s}ticks (tick_id, run_id, key, claimed_rev, started_at)
                VALUES ('t1', 'nobody', '', 2, 1)
                """,
                "ticks['t1']",
            ),
            (
                """
                INSERT INTO {s}work
                    (run_id, key, queue, clog_id, priority, step, visible_at, waiting, attempt, deliveries)
                VALUES ('nobody', '', 'default', 'chat', 0, '', 1, 0, 0, 0)
                """,
                "work['nobody', '']",
            ),
        ],
        ids=["a tick", "work"],
    )
    async def test_rows_of_no_run_are_named(self, hf: Holdfast, statement: str, word: str) -> None:
        await create(hf)
        await hf.journal.store.execute((statement, ()))

        report = await hf.fsck()
        (problem,) = report.problems

        assert (problem.law, problem.detail) == ("P7", f"{word} is there, its run is not")
        for name in ("ticks", "work"):
            await hf.journal.store.execute((f"DELETE FROM {{s}}{name} WHERE run_id = 'nobody'", ()))
