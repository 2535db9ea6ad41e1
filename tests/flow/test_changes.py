"""Changed code: what no longer fits fails closed with the name of the step, and is found out before a deployment."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Flow, FlowContext, Holdfast, RunFailed, check_flow


async def one() -> int:
    return 1


async def before(ctx: FlowContext, input: Any) -> Any:
    await ctx.step("reserve", one)
    await ctx.step("charge", one)
    await ctx.sleep(60)
    await ctx.receive("go")
    await ctx.approval("sure")
    return await ctx.step("ship", one)


async def removed(ctx: FlowContext, input: Any) -> Any:
    await ctx.step("charge", one)
    await ctx.sleep(60)
    return await ctx.step("ship", one)


async def renamed(ctx: FlowContext, input: Any) -> Any:
    await ctx.step("reserve", one)
    await ctx.step("bill", one)
    await ctx.sleep(60)


async def inserted(ctx: FlowContext, input: Any) -> Any:
    await ctx.step("reserve", one)
    await ctx.step("look up", one)
    await ctx.step("charge", one)
    await ctx.sleep(60)


async def shortened(ctx: FlowContext, input: Any) -> Any:
    return await ctx.step("reserve", one)


async def longer_at_the_end(ctx: FlowContext, input: Any) -> Any:
    shipped = await before(ctx, input)
    await ctx.step("thank", one)
    return shipped


CHANGES: dict[str, tuple[Any, str]] = {
    "removed": (removed, "reserve"),
    "renamed": (renamed, "charge"),
    "inserted": (inserted, "charge"),
    "shortened": (shortened, "charge"),
}


def swap(hf: Holdfast, body: Callable[..., Any]) -> None:
    """The same flow and version with other code, as after a deployment."""
    hf._flows["f"]._versions["1"] = Flow("f", body)


@pytest.mark.clause("SB-12")
@pytest.mark.parametrize("change", CHANGES)
async def test_code_that_does_not_fit_fails_with_the_name_of_the_step(hf: Holdfast, change: str) -> None:
    body, step = CHANGES[change]
    run = await hf.start(hf.flow("f")(before), session_id="s")
    await hf.advance()

    swap(hf, body)
    await hf.drain()

    with pytest.raises(RunFailed) as caught:
        await hf.result(run.run_id)
    failed: Any = caught.value.run
    assert failed.error_kind == "flow_changed"
    assert repr(step) in failed.last_error


async def test_a_change_is_found_inside_a_task_group(hf: Holdfast) -> None:
    async def grouped(ctx: FlowContext, input: Any) -> Any:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(ctx.step("other", one))

    run = await hf.start(hf.flow("f")(before), session_id="s")
    await hf.advance()
    swap(hf, grouped)
    await hf.drain()

    failed = await hf.get_run(run.run_id)
    assert failed is not None
    assert failed.error_kind == "flow_changed"


async def test_code_may_change_after_what_was_recorded(hf: Holdfast) -> None:
    run = await hf.start(hf.flow("f")(before), session_id="s")
    await hf.advance()

    swap(hf, longer_at_the_end)
    await hf.signal(run.run_id, name="go")
    await hf.drain()
    await hf.approve(run.run_id, actor="ann")
    await hf.drain()

    assert await hf.result(run.run_id) == 1


async def test_a_run_goes_on_with_the_version_it_began_with(hf: Holdfast) -> None:
    @hf.flow("v", version="a")
    async def old(ctx: FlowContext, input: Any) -> str:
        await ctx.step("old", one)
        await ctx.sleep(60)
        return "old"

    started = await hf.start(old, session_id="s")
    await hf.advance()

    @hf.flow("v", version="b")
    async def new(ctx: FlowContext, input: Any) -> str:
        return "new"

    later = await hf.start(new, session_id="s")
    await hf.drain()

    assert [await hf.result(run.run_id) for run in (started, later)] == ["old", "new"]
    with pytest.raises(ValueError, match="has a version b already"):
        hf.flow("v", version="b")(before)


async def journals(hf: Holdfast) -> list[Any]:
    """One run in the middle, one that waits for a person, one that is done."""
    flow = hf.flow("f")(before)
    runs = [(await hf.start(flow, session_id="s")).run_id for _ in range(3)]
    await hf.advance()
    for run_id in runs[1:]:
        await hf.signal(run_id, name="go")
    await hf.drain()
    await hf.approve(runs[2], actor="ann")
    await hf.drain()
    return [await hf.journal.read(f"run:{run_id}") for run_id in runs]


@pytest.mark.parametrize("change", CHANGES)
async def test_recorded_journals_tell_before_a_deployment(hf: Holdfast, change: str) -> None:
    body, step = CHANGES[change]
    recorded = await journals(hf)

    fits = await check_flow(Flow("f", before), recorded)
    mismatches = await check_flow(Flow("f", body), recorded)

    assert fits == []
    assert len(mismatches) == 3
    assert all(repr(step) in mismatch.problem for mismatch in mismatches)


async def test_a_check_runs_no_step_and_knows_what_is_none_of_its_business(hf: Holdfast) -> None:
    recorded = await journals(hf)
    other = await hf.create_run(session_id="s", clog_id="other", input=1)
    recorded.append(await hf.journal.read(f"run:{other.run_id}"))

    async def broken() -> None:
        raise AssertionError("a step was run")

    async def body(ctx: FlowContext, input: Any) -> Any:
        await ctx.step("reserve", broken)
        await ctx.step("charge", broken)
        await ctx.sleep(60)
        await ctx.receive("go")
        await ctx.approval("sure")
        return await ctx.step("ship", broken)

    assert await check_flow(Flow("f", body), recorded) == []
    assert await check_flow(Flow("f", shortened, version=2), recorded) == []
    assert await check_flow(Flow("f", body), [[]]) == []
    (mismatch,) = await check_flow(Flow("f", longer_at_the_end), recorded)
    assert "the code goes on to 'thank'" in mismatch.problem


async def test_a_check_knows_children_failures_and_bugs(hf: Holdfast) -> None:
    @hf.flow("leaf")
    async def leaf(ctx: FlowContext, input: Any) -> Any:
        return input

    @hf.flow("tree")
    async def tree(ctx: FlowContext, input: Any) -> Any:
        started = await ctx.child("leaf", key="free", input=1)
        value = await ctx.run(leaf, key="k", input=2)
        return [started.clog_id, value]

    run = await hf.start(tree, session_id="s")
    await hf.drain()
    recorded = [await hf.journal.read(f"run:{run.run_id}")]

    async def buggy(ctx: FlowContext, input: Any) -> Any:
        raise KeyError("oops")

    async def more(ctx: FlowContext, input: Any) -> Any:
        await ctx.child("leaf", key="another", input=1)

    assert await check_flow(tree, recorded) == []
    (bug,) = await check_flow(Flow("tree", buggy), recorded)
    (added,) = await check_flow(Flow("tree", more), recorded)
    assert "the body raised KeyError" in bug.problem
    assert "the code goes on to 'child another'" in added.problem
