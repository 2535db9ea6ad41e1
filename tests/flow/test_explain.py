"""Why a flow does not go on, in words."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import FlowContext, Holdfast
from tests.contract.builders import quiet

SAID = {
    "sleep": "It waits until 2030-01-01 00:01:00 UTC, in 60 s.",
    "signal": "It waits for signal 'go' or until 2030-01-01 00:01:00 UTC, in 60 s.",
    "any signal": "It waits for a signal.",
    "child": "It waits for child run {child}. Of its child runs 1 is not over.",
    "ask": "It needs approval: someone must approve or reject step 'sure'.",
}


@pytest.mark.parametrize("what", SAID)
async def test_a_flow_says_what_it_waits_for(hf: Holdfast, what: str) -> None:
    @hf.flow("leaf")
    async def leaf(ctx: FlowContext, input: Any) -> None:
        await ctx.sleep(60)

    @hf.flow("f")
    async def flow(ctx: FlowContext, input: str) -> None:
        match input:
            case "sleep":
                await ctx.sleep(60)
            case "signal":
                await ctx.receive("go", timeout=60)
            case "any signal":
                await ctx.receive()
            case "child":
                await ctx.run(leaf, key="k", input=1)
            case _:
                await ctx.approval("sure")

    run = await hf.start(flow, what, session_id="s")
    await hf.advance()
    await quiet(hf)

    told = await hf.explain(run.run_id)
    children = (await hf.list_runs(clog_id="leaf")).items

    assert told is not None
    assert told.summary == SAID[what].format(child=children[0].run_id if children else "")
    assert "pause" not in told.evidence["counts"]["commands"]
