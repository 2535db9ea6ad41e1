"""Irreversible steps: what cannot be taken back is not done again by accident."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import Conflict, FlowContext, Holdfast, RetryPolicy, StepFailed
from tests.contract.builders import entries, quiet


def shop(hf: Holdfast, charges: list[int]) -> Any:
    async def charge(amount: int) -> int:
        charges.append(amount)
        if amount < 0:
            raise ValueError("negative")
        return amount

    @hf.flow("shop", retry=RetryPolicy(max_attempts=1))
    async def flow(ctx: FlowContext, amount: int) -> Any:
        await ctx.step("reserve", lambda: "reserved")
        try:
            paid = await ctx.step("charge", charge, amount, irreversible=True)
        except StepFailed:
            paid = None
        await ctx.sleep(60)
        return [paid, await ctx.step("ship", lambda: "shipped")]

    return flow


def marks(found: list[Any]) -> list[tuple[str, str]]:
    return [(entry.data["name"], entry.data.get("status", "done")) for entry in found if entry.data.get("irreversible")]


async def refused(order: Any) -> str:
    with pytest.raises(Conflict) as caught:
        await order
    assert caught.value.code == "irreversible"
    return str(caught.value)


@pytest.mark.clause("SB-13")
async def test_a_replay_needs_explicit_permission(hf: Holdfast) -> None:
    charges: list[int] = []
    run = await hf.start(shop(hf, charges), 5, session_id="s")
    await hf.drain()

    assert "'charge'" in await refused(hf.replay(run.run_id))
    for almost in (1, "yes", [True]):
        await refused(hf.replay(run.run_id, allow_irreversible=almost))  # type: ignore[arg-type]
    again = await hf.replay(run.run_id, allow_irreversible=True)
    await hf.drain()

    assert await hf.result(again.run_id) == [5, "shipped"]
    assert charges == [5, 5]
    assert marks(await entries(hf, run.run_id)) == [("charge", "begun"), ("charge", "done")]


@pytest.mark.clause("SB-13")
async def test_a_run_that_has_not_come_to_it_can_be_replayed(hf: Holdfast) -> None:
    run = await hf.start(shop(hf, []), 5, session_id="s")

    again = await hf.replay(run.run_id)

    assert again.status == "pending"


@pytest.mark.clause("SB-13")
async def test_what_failed_may_have_been_done_all_the_same(hf: Holdfast) -> None:
    run = await hf.start(shop(hf, []), -1, session_id="s")
    await hf.drain()

    assert await hf.result(run.run_id) == [None, "shipped"]
    assert "'charge'" in await refused(hf.replay(run.run_id))


@pytest.mark.clause("SB-13")
async def test_a_worker_that_died_in_the_step_leaves_the_mark(hf: Holdfast) -> None:
    begun = asyncio.Event()

    @hf.flow("shop")
    async def flow(ctx: FlowContext, input: Any) -> None:
        async def charge() -> None:
            begun.set()
            await asyncio.Event().wait()

        await ctx.step("charge", charge, irreversible=True)

    run = await hf.start(flow, session_id="s")
    dying = asyncio.create_task(hf.advance())
    await begun.wait()
    await hf.cancel(run.run_id, force=True)

    assert "'charge'" in await refused(hf.replay(run.run_id))
    dying.cancel()
    await asyncio.gather(dying, return_exceptions=True)


@pytest.mark.clause("SB-13")
async def test_a_child_that_did_it_counts_too(hf: Holdfast) -> None:
    flow = shop(hf, [])

    @hf.flow("parent")
    async def parent(ctx: FlowContext, input: Any) -> Any:
        return await ctx.run(flow, key="k", input=5)

    run = await hf.start(parent, session_id="s")
    await hf.drain()
    (child,) = (await hf.list_runs(clog_id="shop")).items

    assert f"'charge' of child run {child.run_id}" in await refused(hf.replay(run.run_id))
    ends = [entry.rev for entry in await entries(hf, run.run_id) if entry.kind == "child_run_finished"]
    await refused(hf.fork(run.run_id, at_rev=ends[0] - 1))
    fork = await hf.fork(run.run_id, at_rev=ends[0])
    await hf.drain()
    assert await hf.result(fork.run_id) == [5, "shipped"]
    assert len((await hf.list_runs(clog_id="shop")).items) == 1


@pytest.mark.clause("SB-13")
async def test_a_fork_that_copies_the_result_is_free_to_go_on(hf: Holdfast) -> None:
    charges: list[int] = []
    run = await hf.start(shop(hf, charges), 5, session_id="s")
    await hf.advance()
    await quiet(hf)
    recorded = {
        (entry.data["name"], entry.data.get("status", "done")): entry.rev
        for entry in await entries(hf, run.run_id)
        if entry.kind == "step_recorded"
    }

    fork = await hf.fork(run.run_id)
    for rev in (recorded["reserve", "done"], recorded["charge", "begun"]):
        assert "'charge'" in await refused(hf.fork(run.run_id, at_rev=rev))
    permitted = await hf.fork(run.run_id, at_rev=recorded["reserve", "done"], allow_irreversible=True)
    await hf.drain()

    assert [await hf.result(each.run_id) for each in (run, fork, permitted)] == [[5, "shipped"]] * 3
    assert charges == [5, 5]
