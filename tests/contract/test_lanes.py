"""Lanes: runs of one session take turns, in the order they came, and no crash or race makes two heads or none."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import Conflict, Continue, Done, Holdfast, Ok, RunInfo, Wait
from holdfast.journal import lanes
from holdfast.protocol import commands
from tests.conftest import IN_PROCESS, FakeClock
from tests.contract.builders import LEASE_S, claim_one, create, idle, kinds, look

in_process = pytest.mark.parametrize("configuration", IN_PROCESS)


async def queue_up(hf: Holdfast, *names: str, **options: Any) -> list[RunInfo]:
    """Runs with an input, one after the other into one lane."""
    return [await create(hf, run_id=name, lane="main", **options) for name in names]


async def finish(hf: Holdfast) -> str:
    """Work on the one run that is due, to its end; answer its id."""
    claim = await claim_one(hf)
    await hf.complete(claim, Done())
    return claim.run_id


async def line(hf: Holdfast, session_id: str = "s1") -> list[tuple[str, bool]]:
    """Who stands in the lane, as the tickets say; the head holds it."""
    sql = """
        SELECT t.run_id, t.held
        FROM {s}lane_tickets t
        JOIN {s}journal j ON j.thread = 'run:' || t.run_id AND j.rev = t.rev
        WHERE t.session_id = $1
        ORDER BY t.held DESC, j.position
    """
    return [(run_id, bool(held)) for run_id, held in await hf.journal.store.fetch(sql, session_id)]


@pytest.mark.clause("H-W7")
async def test_runs_of_one_lane_run_one_at_a_time_in_the_order_they_came(hf: Holdfast) -> None:
    # At one instant, and against the order of their names.
    await queue_up(hf, "c", "a", "b")

    assert await hf.claim_next(limit=2) != []
    assert await hf.claim_next(limit=2) == []
    await hf.cancel("c", force=True)

    assert [await finish(hf), await finish(hf)] == ["a", "b"]
    assert await line(hf) == []


async def test_runs_created_together_stand_in_the_order_of_the_list(hf: Holdfast) -> None:
    requests = [
        {"session_id": "s1", "clog_id": "chat", "input": 1, "lane": "main", "run_id": name} for name in ("z", "m", "a")
    ]

    await hf.create_runs(requests)

    assert [await finish(hf) for _ in requests] == ["z", "m", "a"]


async def test_other_lanes_and_other_sessions_do_not_wait(hf: Holdfast) -> None:
    await queue_up(hf, "a", "b")
    await create(hf, run_id="free")
    await create(hf, run_id="beside", lane="other")
    await create(hf, run_id="elsewhere", lane="main", session_id="s2")

    claims = await hf.claim_next(limit=10)

    assert {claim.run_id for claim in claims} == {"a", "free", "beside", "elsewhere"}


@pytest.mark.parametrize("status", ["pending", "active", "waiting", "backing off", "paused", "continued"])
async def test_the_head_keeps_its_lane_while_it_has_something_to_do(hf: Holdfast, status: str) -> None:
    await queue_up(hf, "head", "next")

    if status == "paused":
        await hf.pause("head", "review")
    elif status != "pending":
        claim = await claim_one(hf)
        if status == "waiting":
            await hf.complete(claim, Wait(seconds=60))
        elif status == "backing off":
            await hf.fail(claim, "later")
        elif status == "continued":
            await hf.complete(claim, Continue(2))

    assert await line(hf) == [("head", True), ("next", False)]
    assert {claim.run_id for claim in await hf.claim_next(limit=5)} <= {"head"}


async def test_a_head_that_lost_its_worker_is_taken_over_before_the_next_comes(hf: Holdfast, clock: FakeClock) -> None:
    await queue_up(hf, "head", "next")
    await claim_one(hf)
    clock.advance(LEASE_S)

    assert await finish(hf) == "head"
    assert await finish(hf) == "next"


@pytest.mark.parametrize("end", ["idle", "done", "failed", "cancelled", "deleted"])
async def test_the_head_leaves_at_rest_and_at_its_end(hf: Holdfast, end: str) -> None:
    await queue_up(hf, "head", "next")
    claim = await claim_one(hf)

    if end == "idle":
        await hf.complete(claim, Ok())
    elif end == "done":
        await hf.complete(claim)
    elif end == "failed":
        await hf.fail(claim, "broken", retry=False)
    elif end == "cancelled":
        await hf.cancel("head", force=True)
    else:
        await hf.delete_run("head", force=True)

    assert await line(hf) == [("next", True)]
    assert await finish(hf) == "next"


async def test_a_run_at_rest_that_gets_a_signal_queues_at_the_end(hf: Holdfast) -> None:
    await idle(hf, run_id="a", lane="main")
    await queue_up(hf, "head", "next")

    await hf.signal("a", "wake up")

    assert await line(hf) == [("head", True), ("next", False), ("a", False)]
    assert [await finish(hf) for _ in range(3)] == ["head", "next", "a"]


async def test_a_head_that_rests_and_is_woken_goes_behind_those_who_waited(hf: Holdfast) -> None:
    await queue_up(hf, "head", "next")
    await hf.complete(await claim_one(hf), Ok())

    await hf.signal("head", "again")

    assert [await finish(hf), await finish(hf)] == ["next", "head"]


@in_process
async def test_rest_and_wake_in_one_commit_do_not_overtake(hf: Holdfast) -> None:
    await queue_up(hf, "head", "next")
    claim = await claim_one(hf)

    await asyncio.gather(hf.complete(claim, Ok()), hf.signal("head", "again"))

    assert [await finish(hf), await finish(hf)] == ["next", "head"]


async def test_a_head_with_mail_goes_on_before_the_others(hf: Holdfast) -> None:
    await queue_up(hf, "head", "next")
    claim = await claim_one(hf)
    await hf.signal("head", "more")

    after = await hf.complete(claim, Ok())

    assert (after.status, await line(hf)) == ("pending", [("head", True), ("next", False)])


async def test_an_empty_lane_costs_no_waiting(hf: Holdfast) -> None:
    (run,) = await queue_up(hf, "only")

    assert (run.status, run.lane) == ("pending", "main")
    assert await kinds(hf, "only") == ["run_created", "lane_entered"]
    assert await finish(hf) == "only"


async def test_a_waiting_run_looks_pending_and_says_so_in_the_journal_when_its_turn_comes(hf: Holdfast) -> None:
    await queue_up(hf, "head", "next")

    assert (await look(hf, "next")).status == "pending"
    assert await kinds(hf, "next") == ["run_created"]
    await finish(hf)
    assert await kinds(hf, "next") == ["run_created", "lane_entered"]


async def test_waiting_runs_cost_the_claim_nothing(hf: Holdfast) -> None:
    await queue_up(hf, "head", *(f"w{number:02}" for number in range(30)))
    await create(hf, run_id="free")

    # As many places as there are due items: none of them may be spent on a run that cannot be claimed.
    claims = await hf.claim_next(limit=2)

    assert {claim.run_id for claim in claims} == {"head", "free"}
    sql = "SELECT count(*) FROM {s}work WHERE due_at <= $1"
    assert await hf.journal.store.fetch(sql, await hf.journal.store.now()) == [(0,)]


async def test_nobody_claims_out_of_turn(hf: Holdfast) -> None:
    await queue_up(hf, "head", "next")

    claim = commands.Claim(claim_id="x", claim_token_hash="x", owner_id="w", lease_us=1)
    executed = await hf.journal.execute("next", claim, exact=True)

    assert executed.decision.refusal == "attempt_not_visible"


async def test_a_waiting_run_can_be_cancelled_deleted_and_passed_over(hf: Holdfast) -> None:
    await queue_up(hf, "head", "cancelled", "deleted", "last")

    assert (await hf.cancel("cancelled")).status == "cancelled"
    await hf.delete_run("deleted")

    assert await line(hf) == [("head", True), ("last", False)]
    assert [await finish(hf), await finish(hf)] == ["head", "last"]


async def test_a_waiting_run_that_is_paused_keeps_its_place(hf: Holdfast) -> None:
    await queue_up(hf, "head", "asked", "last")
    await hf.pause("asked", "review")

    assert await finish(hf) == "head"
    assert await line(hf) == [("asked", True), ("last", False)]
    assert await hf.claim_next() == []
    await hf.resume("asked")

    assert [await finish(hf), await finish(hf)] == ["asked", "last"]


@in_process
@pytest.mark.clause("S-54")
async def test_a_crash_between_leaving_and_entering_is_repaired_by_the_sweep(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    await queue_up(hf, "head", "next", "last")

    async def die(*_: object) -> None:
        raise Conflict("the process is gone")

    with monkeypatch.context() as crash:
        crash.setattr(lanes, "promote", die)
        await finish(hf)
    assert await line(hf) == [("next", False), ("last", False)]
    assert await hf.claim_next() == []

    assert await hf.journal.sweep() == 1
    assert await hf.journal.sweep() == 0
    assert [await finish(hf), await finish(hf)] == ["next", "last"]


@in_process
async def test_who_comes_while_nobody_holds_the_lane_does_not_overtake(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    await queue_up(hf, "head", "next")

    async def die(*_: object) -> None:
        raise Conflict("the process is gone")

    with monkeypatch.context() as crash:
        crash.setattr(lanes, "promote", die)
        await finish(hf)
        await queue_up(hf, "late")
    await hf.journal.sweep()

    assert [await finish(hf), await finish(hf)] == ["next", "late"]


async def test_senders_that_race_never_make_two_heads(hf: Holdfast) -> None:
    names = [f"r{number:02}" for number in range(12)]
    await asyncio.gather(*(queue_up(hf, name) for name in names))

    seen = []
    while claims := await hf.claim_next(limit=5):
        assert len(claims) == 1
        seen.append(claims[0].run_id)
        await hf.complete(claims[0], Done())

    assert sorted(seen) == names
    assert await line(hf) == []


async def test_signals_and_ends_that_race_leave_exactly_one_head(hf: Holdfast) -> None:
    for name in ("a", "b", "c", "d"):
        await idle(hf, run_id=name, lane="main")
    ticks = 0
    for _ in range(4):
        await asyncio.gather(*(hf.signal(name, "go") for name in ("a", "b", "c", "d")))
        claim = await claim_one(hf)
        await asyncio.gather(hf.complete(claim, Ok()), hf.signal(claim.run_id, "and again"))
        ticks += 1
        assert sum(held for _, held in await line(hf)) == 1
    while claims := await hf.claim_next(limit=5):
        (claim,) = claims
        await hf.complete(claim, Ok())
        ticks += 1

    assert ticks == 4 * 4 + 4
    assert await line(hf) == []


@pytest.mark.parametrize("configuration", ["file", "postgres"])
async def test_two_runtimes_on_one_database_share_the_lane(
    hf: Holdfast, database_url: str, schema: str, clock: FakeClock
) -> None:
    async with Holdfast(database_url, schema=schema, clock=clock) as other:
        runtimes = [hf, other]
        await asyncio.gather(*(queue_up(runtimes[n % 2], f"r{n:02}") for n in range(20)))
        done = 0
        while True:
            taken = [claim for each in runtimes for claim in await each.claim_next(limit=3)]
            if not taken:
                break
            (claim,) = taken
            await runtimes[done % 2].complete(claim, Done())
            done += 1

    assert done == 20
