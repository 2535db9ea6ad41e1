"""`execute_next`: one item from its claim to its end, kept alive meanwhile. Leases here are real and short."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import Context, Done, Holdfast, InvalidValue, Ok
from tests.contract.builders import anomalies, create, kinds, look
from tests.runtime.clogs import answering, inputs, on_advance, until

LEASE_MS = 1_500
"""Real time: beats of a third must not be late by two on a machine that is busy."""
LONGER_S = 3.2
"""More than two leases."""


async def slow(given: Any, ctx: Context) -> Done:
    await asyncio.sleep(LONGER_S)
    return Done("finished")


@pytest.mark.clause("S-40", "H-O11", "S-36")
async def test_a_step_longer_than_its_lease_is_kept_by_heartbeats(real: Holdfast) -> None:
    on_advance(real, slow)
    run = await create(real)

    result = await real.execute_next(lease_ms=LEASE_MS, heartbeat_interval_ms=50)

    assert result is not None
    assert (result.run_id, result.outcome, result.status) == (run.run_id, "done", "done")
    assert (await look(real, run.run_id)).output == "finished"
    assert (await kinds(real, run.run_id)).count("attempt_heartbeat") >= 3


@pytest.mark.clause("H-O11", "S-40")
async def test_heartbeats_come_by_themselves_at_a_third_of_the_lease(real: Holdfast) -> None:
    on_advance(real, slow)
    run = await create(real)

    assert await real.execute_next(lease_ms=LEASE_MS) is not None
    assert (await kinds(real, run.run_id)).count("attempt_heartbeat") >= 3


@pytest.mark.clause("S-41", "S-37")
async def test_a_step_longer_than_its_lease_without_heartbeats_completes_nothing(real: Holdfast) -> None:
    stopped: list[bool] = []

    async def outlives(given: Any, ctx: Context) -> Done:
        try:
            await asyncio.sleep(LONGER_S)
        except asyncio.CancelledError:
            stopped.append(True)
            raise
        return Done("too late")

    seen = answering(real, outlives)
    run = await create(real)

    assert await real.execute_next(lease_ms=LEASE_MS, heartbeat_interval_ms=60_000) is None
    assert stopped == [True]
    after = await look(real, run.run_id)
    assert (after.status, after.output) == ("active", None)
    # The holder counts from before its claim, so it gives up a moment before the database does.
    await until(real.execute_next)
    assert [each.deliveries for each in seen] == [1, 2]


@pytest.mark.clause("S-41")
async def test_a_handler_that_blocks_past_its_lease_completes_nothing(real: Holdfast) -> None:
    """It cannot be stopped, so the database has the last word."""

    async def deaf(given: Any, ctx: Context) -> Done:
        try:
            await asyncio.sleep(LONGER_S)
        except asyncio.CancelledError:
            await asyncio.sleep(LONGER_S)
        return Done("too late")

    answering(real, deaf)
    run = await create(real)

    assert await real.execute_next(lease_ms=LEASE_MS, heartbeat_interval_ms=60_000) is None
    assert (await look(real, run.run_id)).output is None
    assert await anomalies(real, run.run_id) == [("expired_claim", "tick_settled")]


@pytest.mark.clause("S-33", "S-30")
async def test_with_nothing_due_there_is_nothing_to_execute(hf: Holdfast) -> None:
    seen = answering(hf)
    await create(hf, queue="other")

    assert await hf.execute_next() is None
    assert await hf.execute_next("other") is not None
    assert inputs(seen) == ["hello"]


@pytest.mark.clause("S-33", "H-O15")
async def test_one_call_executes_one_item_that_it_knows(hf: Holdfast) -> None:
    answering(hf)
    await create(hf, clog_id="nobodys")
    mine = [(await create(hf)).run_id for _ in range(2)]

    results = [await hf.execute_next() for _ in range(3)]

    assert [result and result.run_id for result in results] == [*mine, None]


@pytest.mark.clause("S-26", "C-5", "C-10")
async def test_the_owner_may_be_named(hf: Holdfast) -> None:
    owners: list[str | None] = []

    async def looks(given: Any, ctx: Context) -> Ok:
        owners.append((await look(hf, ctx.run_id)).locked_by)
        return Ok()

    answering(hf, looks)
    await create(hf)
    await hf.execute_next(owner="runner-7")

    assert owners == ["runner-7"]


@pytest.mark.parametrize("options", [{"heartbeat_interval_ms": 0}, {"lease_ms": 0}, {"queue": "a b"}, {"owner": ""}])
async def test_an_order_that_makes_no_sense_is_refused(hf: Holdfast, options: dict[str, Any]) -> None:
    answering(hf)
    await create(hf)

    with pytest.raises(InvalidValue):
        await hf.execute_next(**options)
