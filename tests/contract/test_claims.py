"""Claims: who gets what, in which order, from which instant on and until when."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from holdfast import Done, Fail, Holdfast, Ok, Retry, RetryPolicy, Wait
from tests.conftest import FakeClock
from tests.contract.builders import (
    INSTANT,
    LEASE_S,
    active,
    claim_one,
    create,
    entries,
    event_types,
    hash_of,
    kinds,
    look,
)


@pytest.mark.clause("S-29", "O-30", "O-31", "C-5", "C-10", "SB-6")
async def test_a_claim_is_an_owner_an_id_a_token_and_an_end(hf: Holdfast, clock: FakeClock) -> None:
    run = await create(hf, input={"n": 1})

    claim = await claim_one(hf, owner="w1", lease_ms=5_000)

    until = clock.now() + timedelta(seconds=5)
    assert (claim.run_id, claim.runnable_key, claim.input, claim.attempt) == (run.run_id, "", {"n": 1}, 0)
    assert (claim.lease_until, claim.tick_id) == (until, claim.claim_id)
    seen = await look(hf, run.run_id)
    assert (seen.status, seen.locked_by, seen.lock_expires_at, seen.deliveries) == ("active", "w1", until, 1)
    assert (seen.started_at, seen.pending_input) == (clock.now(), None)


@pytest.mark.clause("S-29", "H-S9", "SB-3")
async def test_the_token_is_known_to_its_holder_alone(hf: Holdfast) -> None:
    claim = await active(hf)
    await hf.heartbeat(claim)

    journal = repr(await hf.journal.store.read(f"run:{claim.run_id}"))
    stored = repr((await hf.journal.store.run_rows(claim.run_id)).tables)

    assert claim.token not in journal + stored + repr(claim)
    assert hash_of(claim) in stored
    assert hash_of(claim) not in repr(await look(hf, claim.run_id))
    assert hash_of(claim) not in repr([event async for event in hf.events(claim.run_id)])


@pytest.mark.clause("O-26", "S-33")
async def test_with_nothing_due_there_is_nothing_to_claim(hf: Holdfast) -> None:
    await active(hf)

    assert await hf.claim_next(limit=10) == []
    assert await hf.claim_next("nobody") == []


async def test_whoever_asks_for_nothing_gets_nothing(hf: Holdfast) -> None:
    run = await hf.create_run(session_id="s", clog_id="noop", input=1)

    assert await hf.claim_next(limit=0) == []
    assert [claim.run_id for claim in await hf.claim_next()] == [run.run_id]


@pytest.mark.clause("S-30", "C-16", "OB-10", "O-16")
async def test_an_item_becomes_visible_at_its_instant_and_not_before(hf: Holdfast, clock: FakeClock) -> None:
    claim = await active(hf)
    resting = await hf.complete(claim, Wait(seconds=10))
    assert (resting.status, resting.wake_at) == ("waiting", clock.now() + timedelta(seconds=10))

    clock.advance(10 - INSTANT)
    assert await hf.claim_next() == []
    clock.advance(INSTANT)

    assert (await claim_one(hf)).run_id == claim.run_id


@pytest.mark.clause("C-18", "SB-6")
async def test_higher_priorities_come_first_and_the_oldest_due_within_one(hf: Holdfast, clock: FakeClock) -> None:
    for name, priority in (("a", 0), ("b", 5), ("c", -32_768), ("d", 5), ("e", 32_767), ("f", 0)):
        await create(hf, run_id=name, priority=priority)
        clock.advance(0.001)

    claims = await hf.claim_next(limit=10)

    assert [claim.run_id for claim in claims] == ["e", "b", "d", "a", "f", "c"]


@pytest.mark.clause("C-18", "H-O1")
async def test_an_expired_item_queues_by_the_end_of_its_lease(hf: Holdfast, clock: FakeClock) -> None:
    await active(hf, run_id="expired")
    clock.advance(LEASE_S - 1)
    await create(hf, run_id="before")
    clock.advance(2)
    await create(hf, run_id="after")

    claims = [await claim_one(hf) for _ in range(3)]

    assert [claim.run_id for claim in claims] == ["before", "expired", "after"]


@pytest.mark.clause("S-33", "H-O1")
async def test_one_call_takes_fresh_and_expired_items_together(hf: Holdfast, clock: FakeClock) -> None:
    for name in ("x1", "x2", "x3"):
        await active(hf, run_id=name)
        clock.advance(1)
    for name in ("f1", "f2", "f3"):
        await create(hf, run_id=name)
    clock.advance(LEASE_S)

    claims = await hf.claim_next(limit=6)

    assert sorted(claim.run_id for claim in claims) == ["f1", "f2", "f3", "x1", "x2", "x3"]
    assert len({claim.claim_id for claim in claims}) == 6
    assert len({claim.token for claim in claims}) == 6
    for claim in claims:
        assert (await hf.complete(claim, claim.run_id)).output == claim.run_id


@pytest.mark.clause("O-02", "S-33")
async def test_queues_and_clogs_are_served_apart(hf: Holdfast) -> None:
    await create(hf, run_id="a", queue="slow")
    await create(hf, run_id="b", clog_id="other")
    await create(hf, run_id="c")

    assert [claim.run_id for claim in await hf.claim_next("slow", limit=5)] == ["a"]
    assert [claim.run_id for claim in await hf.claim_next(limit=5, clogs=["other", "third"])] == ["b"]
    assert await hf.claim_next(limit=5, clogs=["third"]) == []
    assert [claim.run_id for claim in await hf.claim_next(limit=5)] == ["c"]


@pytest.mark.clause("O-32", "S-34", "C-18")
async def test_two_claimers_never_get_the_same_run(hf: Holdfast) -> None:
    names = sorted([(await create(hf)).run_id for _ in range(12)])

    answers = await asyncio.gather(*(hf.claim_next(owner=f"w{i}", limit=3) for i in range(6)))

    assert sorted(claim.run_id for claims in answers for claim in claims) == names
    for name in names:
        assert await kinds(hf, name) == ["run_created", "attempt_claimed"]


@pytest.mark.clause("O-32", "S-34", "S-31")
async def test_of_several_who_take_over_one_expired_claim_exactly_one_gets_it(hf: Holdfast, clock: FakeClock) -> None:
    lost = await active(hf)
    clock.advance(LEASE_S)

    answers = await asyncio.gather(*(hf.claim_next(owner=f"w{i}") for i in range(5)))

    (claim,) = [claim for claims in answers for claim in claims]
    assert claim.run_id == lost.run_id
    assert await kinds(hf, lost.run_id, after=2) == ["tick_abandoned", "attempt_claimed"]


@pytest.mark.clause("O-34", "S-31", "C-16", "OB-10", "S-41")
async def test_a_lease_holds_until_its_end_and_not_at_it(hf: Holdfast, clock: FakeClock) -> None:
    claim = await active(hf)

    clock.advance(LEASE_S - INSTANT)
    assert await hf.claim_next() == []
    await hf.emit(claim, "text", "just in time")
    clock.advance(INSTANT)

    assert (await claim_one(hf)).run_id == claim.run_id


@pytest.mark.clause("H-O1", "H-O5", "O-33", "S-35", "OB-5", "H-W1", "H-O16")
async def test_a_take_over_closes_the_lost_tick_and_delivers_the_same_input(hf: Holdfast, clock: FakeClock) -> None:
    lost = await active(hf, input="precious")
    await hf.emit(lost, "text", "half a sen")
    clock.advance(LEASE_S)

    claim = await claim_one(hf, owner="w2")

    assert (claim.input, claim.attempt) == ("precious", 0)
    abandoned, claimed = await entries(hf, lost.run_id, after=3)
    assert (abandoned.kind, claimed.kind) == ("tick_abandoned", "attempt_claimed")
    assert (abandoned.data["tick_id"], abandoned.data["from_seq"]) == (lost.tick_id, 2)
    seen = await look(hf, lost.run_id)
    assert (seen.deliveries, seen.attempt, seen.locked_by) == (2, 0, "w2")
    outcomes = await hf.journal.store.fetch("SELECT tick_id, outcome FROM {s}ticks ORDER BY claimed_rev")
    assert outcomes == [(lost.tick_id, "abandoned"), (claim.tick_id, None)]


@pytest.mark.clause("H-O12", "H-W6")
async def test_a_run_that_loses_its_workers_fails_at_its_limit(hf: Holdfast, clock: FakeClock) -> None:
    claim = await active(hf, max_deliveries=3)
    for _ in range(2):
        clock.advance(LEASE_S)
        assert (await claim_one(hf)).run_id == claim.run_id
    clock.advance(LEASE_S)

    assert await hf.claim_next() == []

    ended = await look(hf, claim.run_id)
    assert (ended.status, ended.error_kind, ended.attempt) == ("failed", "worker_lost", 0)
    assert await kinds(hf, claim.run_id, after=6) == ["tick_abandoned", "event", "run_terminal"]
    assert (await event_types(hf, claim.run_id))[-2:] == ["error", "done"]


@pytest.mark.clause("H-O12", "S-33")
async def test_a_run_that_ends_at_its_limit_does_not_cost_the_others_their_claim(
    hf: Holdfast, clock: FakeClock
) -> None:
    await active(hf, run_id="poison", max_deliveries=1)
    clock.advance(LEASE_S)
    await create(hf, run_id="healthy")

    claims = await hf.claim_next(limit=2)

    assert [claim.run_id for claim in claims] == ["healthy"]
    assert (await look(hf, "poison")).status == "failed"


@pytest.mark.clause("H-O12")
@pytest.mark.parametrize("outcome", [Ok(), Retry("again", after=0)], ids=["ok", "retry"])
async def test_a_committed_outcome_counts_deliveries_anew(hf: Holdfast, clock: FakeClock, outcome: Ok | Retry) -> None:
    lost = await active(hf, max_deliveries=2)
    clock.advance(LEASE_S)
    second = await claim_one(hf)
    await hf.signal(lost.run_id, "next")
    await hf.complete(second, outcome)

    third = await claim_one(hf)

    assert (await look(hf, lost.run_id)).deliveries == 1
    assert third.input == ("next" if outcome == Ok() else "hello")


@pytest.mark.clause("S-36", "S-39", "C-5")
async def test_a_heartbeat_starts_the_lease_anew(hf: Holdfast, clock: FakeClock) -> None:
    claim = await active(hf)
    clock.advance(LEASE_S - 1)

    until = await hf.heartbeat(claim)
    clock.advance(LEASE_S - 1)
    longer = await hf.heartbeat(claim, lease_ms=100_000)
    clock.advance(99)

    assert until == clock.now() - timedelta(seconds=99 - 1)
    assert longer == clock.now() + timedelta(seconds=1)
    assert (await look(hf, claim.run_id)).lock_expires_at == longer
    assert (await hf.complete(claim, Done("in time"))).output == "in time"
    assert await kinds(hf, claim.run_id, after=2) == ["attempt_heartbeat", "attempt_heartbeat", "run_terminal"]


@pytest.mark.clause("H-O12", "O-35")
async def test_a_released_claim_leaves_no_trace_in_the_counters(hf: Holdfast) -> None:
    claim = await active(hf, input="precious", max_deliveries=1)

    first = await hf.release(claim)
    again = await hf.release(claim)

    assert (first.status, first.deliveries, first.pending_input, first.locked_by) == ("pending", 0, "precious", None)
    assert again == first
    next_claim = await claim_one(hf)
    assert (next_claim.input, (await look(hf, claim.run_id)).deliveries) == ("precious", 1)
    assert await kinds(hf, claim.run_id, after=2) == ["tick_abandoned", "attempt_claimed"]


@pytest.mark.clause("H-S8", "C-16")
async def test_a_clock_that_is_set_back_lengthens_leases_and_reverses_nothing(hf: Holdfast, clock: FakeClock) -> None:
    claim = await active(hf)
    claimed_at = clock.now()

    clock.advance(-600)
    await hf.emit(claim, "text", "from the past")
    until = await hf.heartbeat(claim)
    clock.advance(600 + LEASE_S - INSTANT)

    assert until == claim.lease_until
    assert {entry.at for entry in await entries(hf, claim.run_id)} == {claimed_at}
    assert await hf.claim_next() == []
    assert (await hf.complete(claim)).status == "done"


@pytest.mark.clause("O-35", "O-12")
async def test_every_outcome_releases_the_lock(hf: Holdfast) -> None:
    for outcome in (Ok(), Wait(seconds=60), Retry("later"), Done(), Fail("broken")):
        claim = await active(hf)

        after = await hf.complete(claim, outcome)

        assert (after.locked_by, after.lock_expires_at) == (None, None)
        assert await hf.claim_next() == []


@pytest.mark.clause("S-27", "S-28", "SB-19")
async def test_a_foreign_runner_finds_all_that_a_queue_offers(hf: Holdfast, clock: FakeClock) -> None:
    """Queueing, delayed visibility, claim, heartbeat, completion, retry and dead letter, by the claim calls alone."""
    good = await hf.create_run(session_id="s", clog_id="foreign", input="good", queue="q")
    bad = await hf.create_run(
        session_id="s", clog_id="foreign", input="bad", queue="q", retry=RetryPolicy(max_attempts=2, backoff_ms=500)
    )

    claims = {claim.run_id: claim for claim in await hf.claim_next("q", limit=5, lease_ms=1_000)}
    clock.advance(0.9)
    assert await hf.heartbeat(claims[good.run_id], lease_ms=5_000) == clock.now() + timedelta(seconds=5)
    assert (await hf.fail(claims[bad.run_id], "no")).status == "pending"
    assert (await hf.complete(claims[good.run_id], "well")).output == "well"
    assert await hf.claim_next("q") == []
    clock.advance(0.5)
    (again,) = await hf.claim_next("q")

    assert (again.run_id, again.attempt, again.input) == (bad.run_id, 1, "bad")
    dead = await hf.fail(again, "no")
    assert (dead.status, dead.last_error, dead.attempt) == ("failed", "no", 2)


@pytest.mark.clause("S-10", "S-33")
async def test_a_run_whose_rows_lag_behind_does_not_hold_up_its_queue(hf: Holdfast) -> None:
    damaged, healthy = [await create(hf, input=1) for _ in range(2)]
    behind = "UPDATE {s}runs SET rev = rev - 1 WHERE run_id = $1"
    await hf.journal.store.execute((behind, (damaged.run_id,)))

    claims = await hf.claim_next(limit=5)

    assert [claim.run_id for claim in claims] == [healthy.run_id]
    assert not (await hf.fsck()).ok
    assert (await hf.rebuild()).ok
