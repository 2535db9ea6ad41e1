"""Children of flows: the parent waits without a worker, hears how they ended, and takes them along when stopped."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import Conflict, FlowContext, Holdfast, InvalidValue, NotFound, RetryPolicy, RunCancelled, RunFailed
from holdfast.identity import child_id
from tests.contract.builders import kinds, quiet


def family(hf: Holdfast) -> tuple[Any, Any]:
    @hf.flow("child", retry=RetryPolicy(max_attempts=1))
    async def child(ctx: FlowContext, number: int) -> int:
        await ctx.sleep(5)
        if number < 0:
            raise ValueError("negative")
        return number * 2

    @hf.flow("parent")
    async def parent(ctx: FlowContext, numbers: list[int]) -> Any:
        runs = [ctx.run(child, key=str(number), input=number) for number in numbers]
        return await ctx.gather(*runs)

    return parent, child


@pytest.mark.clause("S-50", "S-51", "S-54")
async def test_a_parent_waits_for_its_children_without_a_worker(hf: Holdfast) -> None:
    parent, _ = family(hf)
    run = await hf.start(parent, [1, 2, 3], session_id="s")
    await hf.advance()
    await quiet(hf)
    waiting = await hf.get_run(run.run_id)
    assert waiting is not None
    assert (waiting.status, waiting.locked_by) == ("waiting", None)
    await hf.drain()

    assert await hf.result(run.run_id) == [2, 4, 6]
    runs = (await hf.list_runs(clog_id="child")).items
    assert len(runs) == 3
    assert {item.parent_run_id for item in runs} == {run.run_id}


async def test_a_child_that_fails_raises_in_its_parent(hf: Holdfast) -> None:
    parent, _ = family(hf)
    run = await hf.start(parent, [1, -1], session_id="s")
    await hf.drain()

    with pytest.raises(RunFailed) as caught:
        await hf.result(run.run_id)
    failed: Any = caught.value.run
    assert "negative" in failed.last_error


async def test_a_parent_may_catch_the_failure_of_its_child(hf: Holdfast) -> None:
    _, child = family(hf)

    @hf.flow("careful")
    async def careful(ctx: FlowContext, input: Any) -> Any:
        try:
            await ctx.run(child, key="k", input=-1)
        except RunFailed as failed:
            run: Any = failed.run
            await ctx.sleep(1)
            return [run.status, isinstance(failed, RunCancelled)]

    run = await hf.start(careful, session_id="s")
    await hf.drain()

    assert await hf.result(run.run_id) == ["failed", False]


async def test_a_child_that_is_cancelled_raises_run_cancelled(hf: Holdfast) -> None:
    _, child = family(hf)

    @hf.flow("careful")
    async def careful(ctx: FlowContext, input: Any) -> Any:
        try:
            await ctx.run(child, key="k", input=1)
        except RunCancelled:
            return "cancelled"

    run = await hf.start(careful, session_id="s")
    await hf.advance()
    await quiet(hf)
    (child_run,) = (await hf.list_runs(clog_id="child")).items
    await hf.cancel(child_run.run_id)
    await quiet(hf)
    await hf.drain()

    assert await hf.result(run.run_id) == "cancelled"


@pytest.mark.clause("SB-14")
async def test_whoever_stops_the_parent_stops_its_child(hf: Holdfast) -> None:
    parent, _ = family(hf)
    run = await hf.start(parent, [1], session_id="s")
    await hf.advance()
    await quiet(hf)

    await hf.cancel(run.run_id)
    await quiet(hf)
    await hf.drain()

    (child_run,) = (await hf.list_runs(clog_id="child")).items
    assert child_run.status == "cancelled"
    with pytest.raises(RunCancelled):
        await hf.result(run.run_id)


async def test_a_child_may_be_started_and_left_to_itself(hf: Holdfast) -> None:
    family(hf)

    @hf.flow("starter")
    async def starter(ctx: FlowContext, input: Any) -> Any:
        outside = await ctx.child("child", key="a", input=1)

        async def inside() -> str:
            return (await ctx.child("child", key="b", input=2)).run_id

        first = await ctx.step("inside", inside)
        await ctx.sleep(1)
        again = await ctx.child("child", key="a", input=1)
        return [outside.run_id == again.run_id, first]

    run = await hf.start(starter, session_id="s")
    await hf.drain()

    same, inside_id = await hf.result(run.run_id)
    assert same
    assert await hf.result(inside_id) == 4
    assert len((await hf.list_runs(clog_id="child")).items) == 2


async def test_a_fork_keeps_the_results_of_finished_children(hf: Holdfast) -> None:
    parent, _ = family(hf)
    run = await hf.start(parent, [1, 2], session_id="s")
    await hf.drain()
    ends = [entry.rev for entry in await hf.journal.read(f"run:{run.run_id}") if entry.kind == "child_run_finished"]

    fork = await hf.fork(run.run_id, at_rev=ends[-1])
    await hf.drain()

    assert await hf.result(fork.run_id) == [2, 4]
    assert len((await hf.list_runs(clog_id="child")).items) == 2


async def test_a_result_is_waited_for(hf: Holdfast) -> None:
    parent, _ = family(hf)
    run = await hf.start(parent, [1], session_id="s")

    with pytest.raises(TimeoutError):
        await hf.result(run.run_id, timeout=0.01)
    with pytest.raises(NotFound):
        await hf.result("nobody")


@pytest.mark.clause("SB-14")
@pytest.mark.parametrize("how", ["run", "child", "inside a step"])
@pytest.mark.parametrize(("policy", "then"), [("cancel", "cancelled"), ("abandon", "done")])
async def test_a_cancel_reaches_the_child_or_leaves_it_alone(hf: Holdfast, how: str, policy: str, then: str) -> None:
    _, child = family(hf)

    @hf.flow("starter")
    async def starter(ctx: FlowContext, input: Any) -> None:
        async def start() -> None:
            await ctx.child("child", key="k", input=1, on_cancel=policy)

        match how:
            case "run":
                await ctx.run(child, key="k", input=1, on_cancel=policy)
            case "child":
                await start()
            case _:
                await ctx.step("start", start)
        await ctx.receive("never")

    run = await hf.start(starter, session_id="s")
    await hf.advance(max_runs=1)
    await quiet(hf)
    seen = await hf.inspect(run.run_id)
    assert seen is not None
    assert [each.on_cancel for each in seen.child_runs] == [policy]

    await hf.cancel(run.run_id)
    await quiet(hf)
    await hf.drain()

    (child_run,) = (await hf.list_runs(clog_id="child")).items
    assert child_run.status == then


@pytest.mark.clause("S-50", "S-55")
async def test_a_start_that_makes_no_sense_is_refused_at_the_call(hf: Holdfast) -> None:
    family(hf)

    @hf.flow("starter")
    async def starter(ctx: FlowContext, input: Any) -> list[str]:
        calls: list[Any] = [ctx.run, ctx.child]
        for call in calls:
            with pytest.raises(TypeError, match="key"):
                await call("child", input=1)
        for options in ({"on_cancel": "shrug"}, {"on_cancel": ["cancel"]}, {"key": ""}):
            with pytest.raises(InvalidValue):
                await ctx.child("child", **{"key": "k", "input": 1, **options})  # type: ignore[arg-type]
        with pytest.raises(Conflict) as foreign:
            await ctx.child("child", key="taken", input=1)
        return [foreign.value.code]

    await hf.create_run(run_id=child_id("r", "", "child", "taken"), session_id="s", clog_id="other")
    run = await hf.start(starter, session_id="s", run_id="r")
    await hf.drain()

    assert await hf.result(run.run_id) == ["conflicting_child_run"]
    assert "child_run_started" not in await kinds(hf, run.run_id)


@pytest.mark.clause("S-52", "S-53", "S-54")
async def test_a_childs_lineage_is_on_both_sides_and_once(hf: Holdfast) -> None:
    calls: list[int] = []

    @hf.flow("child")
    async def child(ctx: FlowContext, number: int) -> Any:
        assert ctx.parent is not None
        return [ctx.parent.run_id, ctx.parent.child_key]

    @hf.flow("parent", retry=RetryPolicy(max_attempts=3, backoff_ms=1_000))
    async def parent(ctx: FlowContext, input: Any) -> Any:
        info = await ctx.child("child", key="k", input=1)
        calls.append(1)
        if len(calls) < 3:
            raise ConnectionError("down")
        return [info.run_id, await ctx.run(child, key="k", input=1)]

    run = await hf.start(parent, session_id="s")
    await hf.drain()

    child_run_id, said = await hf.result(run.run_id)
    assert said == [run.run_id, "k"]
    assert (await kinds(hf, run.run_id)).count("child_run_started") == 1
    seen, of_child = await hf.inspect(run.run_id), await hf.inspect(child_run_id)
    assert seen is not None
    assert of_child is not None
    assert [(each.run_id, each.child_key, each.status) for each in seen.child_runs] == [(child_run_id, "k", "done")]
    assert of_child.parent_run is not None
    assert (of_child.parent_run.run_id, of_child.parent_run.child_key) == (run.run_id, "k")


async def test_a_child_that_is_waited_for_begins_at_once_with_or_without_an_input(hf: Holdfast) -> None:
    @hf.flow("child")
    async def child(ctx: FlowContext, input: Any) -> Any:
        return [input]

    @hf.flow("parent")
    async def parent(ctx: FlowContext, input: Any) -> Any:
        return await ctx.run(child, key="k")

    run = await hf.start(parent, session_id="s")
    await hf.drain()

    assert await hf.result(run.run_id) == [None]
