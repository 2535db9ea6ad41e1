"""Flows under seeded schedules: workers die at every commit boundary, and what was committed happened once."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from holdfast import FlowContext, Holdfast
from holdfast.testing import simulate
from tests.simulation.playing import BEFORE_OR_AFTER, blocks, dies_at_every_commit

BLOCKS = blocks(1, 8)
EACH = 40


async def story(hf: Holdfast) -> None:
    @hf.flow("pay")
    async def pay(ctx: FlowContext, amount: int) -> int:
        await ctx.sleep(5)
        await ctx.outbox("bank", {"run": ctx.run_id, "amount": amount})
        return amount

    @hf.flow("order")
    async def order(ctx: FlowContext, input: Any) -> Any:
        async def send(what: str) -> str:
            await ctx.emit("note", what)
            await ctx.outbox("mail", {"run": ctx.run_id, "what": what})
            return what

        first = await ctx.step("send", send, "first")
        sides = await ctx.gather(ctx.step("send", send, "left"), ctx.step("send", send, "right"))
        await ctx.emit("progress", 1)
        await ctx.sleep(60)
        letters = [await ctx.receive("letter"), await ctx.receive("letter")]
        try:
            await ctx.receive("never", timeout=30)
        except TimeoutError:
            letters.append("timeout")
        decision = await ctx.approval("go", expires=30)
        paid = await ctx.run(pay, key="k", input=7, max_deliveries=50)
        await ctx.tx("done", outbox=[("mail", {"run": ctx.run_id, "what": "done"})], events=[("note", "done")])
        return [first, sides, letters, decision.expired, paid]

    run = await hf.start(order, session_id="s", run_id="o", max_deliveries=50)
    for letter in ("a", "b"):
        await hf.signal(run.run_id, letter, name="letter")


async def is_right(hf: Holdfast) -> None:
    run = await hf.get_run("o")
    assert run is not None
    assert run.status == "done", run
    assert run.output == ["first", ["left", "right"], ["a", "b", "timeout"], True, 7], run.output
    sent = await hf.journal.store.fetch("SELECT payload FROM {s}outbox")
    assert len(sent) == len(set(sent)) == 5, sent
    recorded: Counter[Any] = Counter()
    for entry in await hf.journal.read("run:o"):
        if entry.kind == "step_recorded" and entry.data.get("status", "done") == "done":
            recorded[entry.data["name"], entry.data.get("occurrence", 0)] += 1
    assert set(recorded.values()) == {1}, recorded


@pytest.mark.timeout(300)
@pytest.mark.parametrize("block", BLOCKS)
def test_a_flow_keeps_every_committed_effect_once(block: int) -> None:
    report = simulate(story, seeds=range(block * EACH, (block + 1) * EACH), check=is_right)

    assert report.crashes >= EACH / 2
    assert report.leases_lost > 0


@pytest.mark.timeout(300)
@BEFORE_OR_AFTER
def test_a_worker_may_die_at_every_single_commit(sides: tuple[bool, ...]) -> None:
    assert dies_at_every_commit(story, is_right, sides) > 30
