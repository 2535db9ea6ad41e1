"""`advance`: one pass over what is due, each run at most one tick, and when to come back."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from holdfast import AdvanceResult, Clog, Context, Continue, Done, Fail, Holdfast, InvalidValue, Ok, RetryPolicy, Wait
from tests.conftest import FakeClock, Opener
from tests.contract.builders import LEASE_S, claim_one, create, idle, kinds, look
from tests.runtime.clogs import answering, inputs, on_advance, shared

MILLISECOND = 0.001


@pytest.mark.clause("O-04", "O-26", "OB-2")
async def test_a_run_without_input_is_not_advanced(hf: Holdfast) -> None:
    seen = answering(hf)
    await idle(hf)

    assert await hf.advance() == AdvanceResult(advanced=0, results=(), budget_exhausted=False, next_wake_at=None)
    assert seen == []


@pytest.mark.clause("O-04", "OB-2", "O-38")
@pytest.mark.parametrize("given", [0, False, "", None, {}, []])
async def test_falsy_inputs_are_inputs_and_arrive_unchanged(hf: Holdfast, given: Any) -> None:
    seen = answering(hf)
    run = await create(hf, input=given)

    await hf.advance()

    assert run.status == "pending"
    assert inputs(seen) == [given]
    assert type(seen[0].input) is type(given)


@pytest.mark.clause("O-25", "H-O7", "O-35")
async def test_a_tick_is_reported_with_its_outcome_and_the_runs_status(hf: Holdfast) -> None:
    seen = answering(hf, Continue(1), Wait(seconds=1), ValueError("no"), Fail("broken"))
    runs = [(await create(hf)).run_id for _ in range(5)]

    result = await hf.advance()

    assert result.advanced == 5
    assert [(each.run_id, each.outcome, each.status) for each in result.results] == [
        (runs[0], "continue", "pending"),
        (runs[1], "wait", "waiting"),
        (runs[2], "retry", "pending"),
        (runs[3], "failed", "failed"),
        (runs[4], "ok", "idle"),
    ]
    assert [each.tick_id for each in result.results] == [each.tick_id for each in seen]
    assert {(await look(hf, run_id)).locked_by for run_id in runs} == {None}


@pytest.mark.clause("O-17", "O-25", "OB-4")
async def test_an_exhausted_retry_is_reported_as_a_retry_that_failed(hf: Holdfast) -> None:
    answering(hf, ValueError("no"))
    await create(hf, retry=RetryPolicy(max_attempts=1))

    (result,) = (await hf.advance()).results

    assert (result.outcome, result.status) == ("retry", "failed")


@pytest.mark.clause("O-11", "O-13", "O-36", "O-08")
async def test_a_run_is_signalled_and_rests_as_often_as_one_likes(hf: Holdfast) -> None:
    seen = answering(hf)
    run = await idle(hf)
    revs = [run.rev]

    for turn in range(5):
        await hf.signal(run.run_id, turn)
        await hf.advance()
        after = await look(hf, run.run_id)
        assert (after.status, after.attempt, after.last_error) == ("idle", 0, None)
        revs.append(after.rev)

    assert inputs(seen) == list(range(5))
    assert len({each.tick_id for each in seen}) == 5
    assert revs == sorted(set(revs))


@pytest.mark.clause("O-12", "H-O13", "C-20")
@pytest.mark.parametrize("outcome", [Done("result"), Fail("broken")])
async def test_a_run_that_is_over_stays_over_and_keeps_late_signals(hf: Holdfast, outcome: Any) -> None:
    seen = answering(hf, outcome)
    run = await create(hf)
    await hf.advance()
    ended = (await look(hf, run.run_id)).status

    receipt = await hf.signal(run.run_id, "late")

    assert (receipt.accepted, receipt.reason) == (False, "terminal")
    assert (await hf.advance()).advanced == 0
    assert (await look(hf, run.run_id)).status == ended
    assert len(seen) == 1
    assert (await kinds(hf, run.run_id))[-1] == "signal_received"


@pytest.mark.clause("O-18", "O-19", "OB-4")
async def test_a_failing_outcome_ends_the_run_though_retries_are_left(hf: Holdfast) -> None:
    answering(hf, Fail("broken"))
    run = await create(hf)

    await hf.advance()

    after = await look(hf, run.run_id)
    assert (after.status, after.attempt, after.last_error) == ("failed", 0, "broken")


@pytest.mark.clause("O-17", "O-21", "H-O4", "OB-10", "C-7")
async def test_retries_wait_exactly_as_long_as_the_backoff_says(hf: Holdfast, clock: FakeClock) -> None:
    seen = answering(hf, *[ValueError("no")] * 11)
    await create(hf, retry=RetryPolicy(max_attempts=12))
    await hf.advance()

    for delay in (1, 2, 4, 8, 16, 32, 60, 60, 60, 60):
        clock.advance(delay - MILLISECOND)
        assert (await hf.advance()).advanced == 0
        clock.advance(MILLISECOND)
        assert (await hf.advance()).advanced == 1

    assert [each.attempt for each in seen] == list(range(11))


@pytest.mark.clause("O-22", "O-23", "OB-3", "OB-5", "H-O5")
async def test_every_attempt_sees_the_same_input_until_there_are_no_more(hf: Holdfast) -> None:
    seen = answering(hf, ValueError("first"), ValueError("second"), ValueError("third"))
    run = await create(hf, input={"n": 1})

    await hf.drain()

    after = await look(hf, run.run_id)
    assert [(each.attempt, each.deliveries, each.input) for each in seen] == [(n, 1, {"n": 1}) for n in range(3)]
    assert (after.status, after.attempt, after.last_error) == ("failed", 3, "third")


@pytest.mark.clause("OB-4", "O-17")
async def test_a_success_forgets_the_attempts_before_it(hf: Holdfast, clock: FakeClock) -> None:
    seen = answering(hf, ValueError("no"), Continue("next"), Ok())
    run = await create(hf)
    await hf.advance()
    clock.advance(1)
    await hf.advance()

    after = await look(hf, run.run_id)
    await hf.advance()

    assert (after.attempt, after.last_error, after.wake_at) == (0, None, None)
    assert [(each.attempt, each.input) for each in seen] == [(0, "hello"), (1, "hello"), (0, "next")]


@pytest.mark.clause("O-16", "OB-10", "C-16")
async def test_a_sleeper_wakes_at_its_instant_and_not_before(hf: Holdfast, clock: FakeClock) -> None:
    seen = answering(hf, Wait(until=clock.now() + timedelta(hours=8)))
    await create(hf)
    await hf.advance()

    clock.advance(8 * 3_600 - MILLISECOND)
    assert (await hf.advance()).advanced == 0
    clock.advance(MILLISECOND)
    assert (await hf.advance()).advanced == 1
    assert inputs(seen) == ["hello", None]


@pytest.mark.clause("O-16")
async def test_a_jump_of_the_clock_wakes_every_sleeper(hf: Holdfast, clock: FakeClock) -> None:
    answering(hf, *[Wait(seconds=n) for n in (10, 3_600, 86_400)])
    for _ in range(3):
        await create(hf)
    await hf.advance()

    clock.advance(86_400 * 365)

    assert (await hf.advance()).advanced == 3


@pytest.mark.clause("O-37", "H-O2")
async def test_a_signal_wakes_a_sleeper_without_the_clock(hf: Holdfast) -> None:
    seen = answering(hf, Wait(seconds=3_600))
    run = await create(hf)
    await hf.advance()

    await hf.signal(run.run_id, "up")
    woken = await look(hf, run.run_id)
    await hf.advance()

    assert (woken.status, woken.wake_at) == ("pending", None)
    assert inputs(seen) == ["hello", "up"]


@pytest.mark.clause("O-27", "H-O7", "O-15")
async def test_each_pass_runs_one_link_of_a_chain_and_everybody_elses_tick(hf: Holdfast) -> None:
    seen = answering(hf, *[Continue(link) for link in range(1, 10)], Done())
    other = answering(hf, *[Continue(link) for link in range(1, 10)], name="other")
    run = await create(hf, input=0)
    await create(hf, clog_id="other", input=0)

    for link in range(10):
        assert (await hf.advance()).advanced == 2
        assert (len(seen), len(other)) == (link + 1, link + 1)

    assert inputs(seen) == inputs(other) == list(range(10))
    assert (await look(hf, run.run_id)).status == "done"


@pytest.mark.clause("OB-21", "H-O7")
async def test_drain_runs_whole_chains_and_stops_after_so_many_ticks(hf: Holdfast) -> None:
    seen = answering(hf, *[Continue(link) for link in range(1, 10)], Done())
    await create(hf, input=0)

    assert await hf.drain(5) == 5
    assert inputs(seen) == [0, 1, 2, 3, 4]
    assert await hf.drain() == 5


@pytest.mark.clause("OB-21")
async def test_drain_jumps_the_clock_to_whatever_is_due_next(hf: Holdfast, clock: FakeClock) -> None:
    start = clock.now()
    answering(hf, Wait(seconds=3_600), ValueError("no"), Done())
    run = await create(hf)

    assert await hf.drain() == 3
    assert (await look(hf, run.run_id)).status == "done"
    assert clock.now() - start == timedelta(seconds=3_601)


@pytest.mark.clause("OB-21")
async def test_drain_jumps_over_what_it_cannot_run(hf: Holdfast) -> None:
    seen = answering(hf, Wait(seconds=60))
    await create(hf, clog_id="nobodys")
    await hf.pause((await create(hf, clog_id="chat")).run_id, "review")
    await create(hf)

    assert await hf.drain() == 2
    assert inputs(seen) == ["hello", None]


@pytest.mark.clause("O-27", "H-O7")
async def test_an_empty_budget_starts_nothing(hf: Holdfast) -> None:
    seen = answering(hf)
    run = await create(hf)

    result = await hf.advance(budget_ms=0)

    assert (result.advanced, result.budget_exhausted, seen) == (0, True, [])
    assert (await look(hf, run.run_id)).status == "pending"
    assert result.next_wake_at == run.created_at


@pytest.mark.clause("O-27", "H-O7")
async def test_a_budget_begins_no_more_ticks_and_cuts_none(hf: Holdfast) -> None:
    async def slow(given: Any, ctx: Context) -> Ok:
        # The budget is real time, and must last until the first tick has begun on a machine that is busy.
        await asyncio.sleep(0.6)
        return Ok()

    seen = answering(hf, slow, slow)
    for _ in range(2):
        await create(hf)

    result = await hf.advance(budget_ms=500)

    assert (result.advanced, result.budget_exhausted, len(seen)) == (1, True, 1)
    assert result.results[0].status == "idle"


@pytest.mark.clause("OB-1", "H-O7")
async def test_max_runs_takes_the_oldest_first(hf: Holdfast, clock: FakeClock) -> None:
    seen = answering(hf)
    for name in ("first", "second", "third"):
        await create(hf, input=name)
        clock.advance(1)

    one = await hf.advance(max_runs=1)
    assert (one.advanced, one.budget_exhausted, inputs(seen)) == (1, False, ["first"])
    assert (await hf.advance(max_runs=0)).advanced == 0
    assert (await hf.advance(max_runs=5)).advanced == 2
    assert inputs(seen) == ["first", "second", "third"]


@pytest.mark.parametrize("options", [{"budget_ms": -1}, {"max_runs": 1.5}, {"max_runs": True}, {"queues": ["a b"]}])
async def test_a_pass_that_makes_no_sense_is_refused(hf: Holdfast, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue):
        await hf.advance(**options)


@pytest.mark.clause("H-O7")
async def test_next_wake_at_is_when_something_here_is_due_again(hf: Holdfast, clock: FakeClock) -> None:
    answering(hf, Wait(seconds=60), Wait(seconds=30), Wait(), Continue())
    await create(hf, clog_id="nobodys")
    await hf.pause((await create(hf)).run_id, "review")
    for _ in range(3):
        await create(hf)

    assert (await hf.advance()).next_wake_at == clock.now() + timedelta(seconds=30)
    await create(hf)
    assert (await hf.advance()).next_wake_at == clock.now()


@pytest.mark.clause("H-O7")
async def test_an_answer_due_in_the_past_waits_for_the_next_pass(real: Holdfast) -> None:
    long_ago = (await create(real)).created_at
    assert long_ago is not None
    seen = answering(real, Wait(until=long_ago - timedelta(days=1)), Done())

    assert (await real.advance()).advanced == 1
    assert len(seen) == 1
    assert (await real.advance()).advanced == 1


@pytest.mark.clause("H-O7", "O-27")
async def test_a_run_has_one_tick_in_a_pass_however_often_it_is_due(real: Holdfast) -> None:
    run = await create(real)

    async def signalled(given: Any, ctx: Context) -> Ok:
        await real.signal(run.run_id, "more")
        return Ok()

    seen = answering(real, signalled, signalled, ValueError("no"))
    await create(real)

    assert (await real.advance()).advanced == 2
    assert (await real.advance()).advanced == 1
    assert len(seen) == 3


@pytest.mark.clause("O-24")
async def test_every_queue_is_served_unless_some_are_named(hf: Holdfast) -> None:
    seen = answering(hf)
    for queue in ("default", "slow", "urgent"):
        await create(hf, queue=queue, input=queue)

    assert (await hf.advance(queues=["slow"])).advanced == 1
    assert (await hf.advance(queues=[])).advanced == 0
    assert (await hf.advance()).advanced == 2
    assert sorted(inputs(seen)) == ["default", "slow", "urgent"]


@pytest.mark.clause("C-2")
async def test_a_single_run_is_done_when_its_handler_is(hf: Holdfast) -> None:
    answering(hf)
    run = await create(hf, mode="single")

    (result,) = (await hf.advance()).results

    assert (result.outcome, result.status) == ("ok", "done")
    assert (await look(hf, run.run_id)).status == "done"


@pytest.mark.clause("O-30", "O-31", "O-34")
async def test_the_run_is_locked_by_this_instance_while_its_handler_runs(hf: Holdfast, clock: FakeClock) -> None:
    async def look_at_it(given: Any, ctx: Context) -> Ok:
        run = await look(hf, ctx.run_id)
        assert (run.status, run.locked_by, run.pending_input) == ("active", hf.owner_id, None)
        assert run.lock_expires_at == clock.now() + timedelta(seconds=LEASE_S)
        assert (await hf.advance()).advanced == 0
        return Ok()

    answering(hf, look_at_it)
    await create(hf)

    assert [each.outcome for each in (await hf.advance()).results] == ["ok"]


@shared
@pytest.mark.clause("O-32", "O-01")
async def test_of_two_instances_one_gets_the_run(hf: Holdfast, another: Opener) -> None:
    rival = await another()
    seen, theirs = answering(hf), answering(rival)
    await create(hf)

    results = await asyncio.gather(hf.advance(), rival.advance())

    assert sorted(result.advanced for result in results) == [0, 1]
    assert len(seen) + len(theirs) == 1


@shared
@pytest.mark.clause("O-32", "O-24")
async def test_two_instances_share_the_work(hf: Holdfast, another: Opener) -> None:
    rival = await another()
    met = asyncio.Barrier(2)

    async def meet(given: Any, ctx: Context) -> Ok:
        async with asyncio.timeout(10):
            await met.wait()
        return Ok()

    on_advance(hf, meet)
    on_advance(rival, meet)
    for _ in range(2):
        await create(hf)

    results = await asyncio.gather(hf.advance(), rival.advance())

    assert [result.advanced for result in results] == [1, 1]


@shared
@pytest.mark.clause("O-33", "H-O1", "O-01")
async def test_what_a_stopped_instance_left_is_taken_by_another(
    hf: Holdfast, another: Opener, clock: FakeClock
) -> None:
    gone = await another()
    seen = answering(hf)
    await create(hf)
    await claim_one(gone)
    await gone.close()

    assert (await hf.advance()).advanced == 0
    clock.advance(LEASE_S)
    assert (await hf.advance()).advanced == 1
    assert [(each.input, each.attempt, each.deliveries) for each in seen] == [("hello", 0, 2)]


@pytest.mark.clause("H-O15", "O-02")
async def test_runs_of_clogs_that_nobody_registered_are_left_alone(hf: Holdfast) -> None:
    run = await create(hf, clog_id="nobodys")

    assert (await hf.advance()).advanced == 0
    hf.register(Clog("chat"))
    assert (await hf.advance()).advanced == 0
    assert (await look(hf, run.run_id)).status == "pending"
    explained = await hf.explain(run.run_id)
    assert explained is not None
    assert "no_handler_here" in str(explained.to_dict())
