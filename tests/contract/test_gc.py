"""gc: whole runs go when they have been over long enough, nothing else does, and their ids stay taken."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from holdfast import Conflict, Done, Holdfast, InvalidValue
from tests.conftest import IN_PROCESS, FakeClock
from tests.contract.builders import (
    INSTANT,
    active,
    claim_one,
    count,
    create,
    entries,
    in_status,
    look,
    quiet,
    settle_storing,
    shared,
    start_child,
)

DAY = 86_400.0
in_process = pytest.mark.parametrize("configuration", IN_PROCESS)


async def finished(hf: Holdfast, run_id: str) -> None:
    await hf.complete(await active(hf, run_id=run_id), Done())


@pytest.mark.clause("C-12", "O-64")
@pytest.mark.parametrize("status", ["done", "failed", "cancelled"])
async def test_a_run_that_is_over_long_enough_goes_whole(hf: Holdfast, clock: FakeClock, status: str) -> None:
    run_id = await in_status(hf, status)
    await hf.signal(run_id, "too late")
    clock.advance(DAY - INSTANT)
    assert await hf.gc(DAY) == 0
    clock.advance(INSTANT)

    assert await hf.gc(timedelta(days=1)) == 1

    assert await hf.get_run(run_id) is None
    assert await entries(hf, run_id) == []
    assert await count(hf, "runs") + await count(hf, "journal") + await count(hf, "ticks") == 0
    assert await hf.is_gone(run_id)
    with pytest.raises(Conflict) as caught:
        await create(hf, run_id=run_id)
    assert caught.value.code == "id_reused"
    assert await hf.gc(DAY) == 0


@pytest.mark.clause("C-12")
@pytest.mark.parametrize("status", ["idle", "pending", "active", "waiting", "backing off", "paused"])
async def test_a_run_that_is_not_over_is_never_touched(hf: Holdfast, clock: FakeClock, status: str) -> None:
    run_id = (await active(hf)).run_id if status == "active" else await in_status(hf, status)
    before = await entries(hf, run_id)
    clock.advance(1_000 * DAY)

    assert await hf.gc(0) == 0

    assert await entries(hf, run_id) == before


@pytest.mark.clause("C-12")
async def test_the_oldest_go_first_up_to_the_limit(hf: Holdfast, clock: FakeClock) -> None:
    for name in ("c", "a", "b"):
        await finished(hf, name)
        clock.advance(1)
    clock.advance(DAY)

    assert await hf.gc(DAY, limit=0) == 0
    assert await hf.gc(DAY, limit=2) == 2

    assert [await hf.is_gone(name) for name in ("a", "b", "c")] == [True, False, True]
    assert await hf.gc(DAY, limit=2) == 1


@in_process
async def test_many_go_in_batches(hf: Holdfast, clock: FakeClock) -> None:
    runs = await hf.create_runs([{"session_id": "s1", "clog_id": "chat"} for _ in range(250)])
    await asyncio.gather(*(hf.cancel(run.run_id) for run in runs))
    clock.advance(DAY)

    assert await hf.gc(DAY) == 250

    assert await count(hf, "journal") == 0
    assert await count(hf, "tombstones", "WHERE rev = 0") == 250


@pytest.mark.clause("O-54", "C-4")
async def test_threads_of_deleted_runs_go_by_the_same_rule(hf: Holdfast, clock: FakeClock) -> None:
    await create(hf, run_id="r1")
    clock.advance(DAY)
    await hf.delete_run("r1")

    assert await hf.gc(DAY) == 0
    assert len(await entries(hf, "r1")) == 3
    clock.advance(DAY)
    assert await hf.gc(DAY) == 1

    assert await entries(hf, "r1") == []
    assert await hf.is_gone("r1")


async def test_what_a_run_shared_stays(hf: Holdfast, clock: FakeClock) -> None:
    await settle_storing(hf, await active(hf), Done(), session=1, **{"global": 2})
    clock.advance(DAY)

    assert await hf.gc(DAY) == 1

    assert await shared(hf) == {"session/s1/chat": "1", "global/local/chat": "2"}


async def test_a_child_stays_until_its_parent_knows(hf: Holdfast, clock: FakeClock) -> None:
    parent = await active(hf, run_id="parent")
    await hf.journal.execute("parent", start_child(parent))
    await quiet(hf)
    child = await claim_one(hf)
    await hf.complete(child, Done("grown"))
    await quiet(hf)
    told = "INSERT INTO {s}handoffs (target_run_id, source_run_id, kind, rev) VALUES ($1, $2, $3, $4)"
    await hf.journal.store.execute((told, ("parent", "child", "child_finished", 3)))
    clock.advance(DAY)

    assert await hf.gc(DAY) == 0
    await quiet(hf)
    assert await hf.gc(DAY) == 1

    assert (await entries(hf, "parent"))[-1].data["output"] == "grown"
    assert (await look(hf, "parent")).status == "active"


@in_process
async def test_signals_that_come_meanwhile_leave_nothing_behind(hf: Holdfast, clock: FakeClock) -> None:
    names = [f"r{number}" for number in range(20)]
    for name in names:
        await finished(hf, name)
    clock.advance(DAY)

    clearing = asyncio.create_task(hf.gc(DAY))
    receipts = await asyncio.gather(*(hf.signal(name, 1) for name in names))

    assert await clearing == 20
    assert {receipt.reason for receipt in receipts} <= {"terminal", "not_found"}
    assert await count(hf, "journal") == 0


@in_process
async def test_two_who_clear_up_at_once_do_no_harm(hf: Holdfast, clock: FakeClock) -> None:
    for number in range(10):
        await finished(hf, f"r{number}")
    clock.advance(DAY)

    await asyncio.gather(
        hf.gc(DAY), hf.gc(DAY), *(hf.purge(f"r{number}") for number in range(3)), return_exceptions=True
    )

    assert await count(hf, "journal") + await count(hf, "runs") == 0
    assert await count(hf, "tombstones") == 10


@in_process
@pytest.mark.clause("OB-17")
async def test_those_who_come_by_often_clear_up_now_and_then(hf: Holdfast, clock: FakeClock) -> None:
    async def come_by() -> int:
        await finished(hf, f"r{await count(hf, 'tombstones') + await count(hf, 'runs')}")
        return await hf.gc_if_due(0)

    assert await hf.gc_if_due(None) == 0
    assert await come_by() == 1
    clock.advance(60 - INSTANT)
    assert await come_by() == 0
    clock.advance(INSTANT)
    assert await come_by() == 2
    assert await hf.gc_if_due(0, every=0) == 0


@pytest.mark.parametrize("ttl", [-1, float("nan"), float("inf"), "1", None, True])
async def test_a_ttl_that_is_none_is_refused(hf: Holdfast, ttl: object) -> None:
    with pytest.raises(InvalidValue):
        await hf.gc(ttl)  # type: ignore[arg-type]
