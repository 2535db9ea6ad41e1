"""Tools under seeded schedules: workers die at every commit boundary, and every call is accounted for."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import Clog, Context, Continue, Done, FlowContext, Holdfast
from holdfast.testing import simulate
from tests.simulation.playing import BEFORE_OR_AFTER, blocks, dies_at_every_commit

BLOCKS = blocks(1, 4)
EACH = 30


async def story(hf: Holdfast) -> None:
    shop = Clog("shop")

    async def charge(args: Any, key: str) -> Any:
        return {"amount": args, "key": key}

    @shop.on_advance
    async def advance(given: int, ctx: Context) -> Any:
        first = await ctx.tool("charge", given, charge)
        second = await ctx.tool("charge", given, charge)
        await ctx.outbox("mail", {"keys": [first["key"], second["key"]], "given": given})
        return Continue(given + 1) if given < 2 else Done(given)

    @hf.flow("order")
    async def order(ctx: FlowContext, amount: int) -> Any:
        async def step() -> Any:
            return await ctx.tool("charge", amount, charge)

        first = await ctx.tool("charge", amount, charge)
        await ctx.sleep(5)
        sides = await ctx.gather(ctx.step("left", step), ctx.step("right", step))
        return [first, *sides]

    hf.register(shop)
    await hf.create_run(session_id="s", clog_id="shop", input=0, run_id="c", max_deliveries=50)
    await hf.start(order, 7, session_id="s", run_id="f", max_deliveries=50)


async def is_right(hf: Holdfast) -> None:
    for run_id, calls in (("c", 6), ("f", 3)):
        run = await hf.get_run(run_id)
        assert run is not None
        assert run.status == "done", run
        told = await hf.audit.list_tool_calls_by_parent(run_id)
        assert len(told) == calls, told
        assert {req.status for req, _ in told} == {"completed"}
        answered = [entry for entry in await hf.journal.read(f"run:{run_id}") if entry.kind == "tool_answered"]
        assert len(answered) == calls
    keys = [
        key
        for (payload,) in await hf.journal.store.fetch("SELECT payload FROM {s}outbox")
        for key in payload.split('"')
    ]
    assert len([key for key in set(keys) if len(key) == 36]) == 6, keys
    order = await hf.get_run("f")
    assert order is not None
    assert len({answer["key"] for answer in order.output}) == 3


@pytest.mark.timeout(300)
@pytest.mark.parametrize("block", BLOCKS)
def test_every_call_is_answered_once_whoever_dies(block: int) -> None:
    report = simulate(story, seeds=range(block * EACH, (block + 1) * EACH), check=is_right)

    assert report.crashes >= EACH / 2
    assert report.leases_lost > 0


@pytest.mark.timeout(300)
@BEFORE_OR_AFTER
def test_a_worker_may_die_at_every_single_commit(sides: tuple[bool, ...]) -> None:
    assert dies_at_every_commit(story, is_right, sides) > 20
