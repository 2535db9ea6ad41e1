"""A flow's memory is in its journal: it survives a rebuild, an export, a fork and the end of its children's rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from holdfast import FlowContext, Holdfast
from tests.conftest import FakeClock
from tests.contract.builders import assert_sound


def define(hf: Holdfast, calls: list[str]) -> Any:
    async def note(word: str) -> str:
        calls.append(word)
        return word

    @hf.flow("leaf")
    async def leaf(ctx: FlowContext, value: int) -> int:
        return value

    @hf.flow("f")
    async def flow(ctx: FlowContext, input: Any) -> Any:
        first = await ctx.step("note", note, "one")
        child = await ctx.run(leaf, key="k", input=7)
        got = await ctx.receive("go")
        decision = await ctx.approval("sure")
        await ctx.sleep(60)
        return [first, child, got, decision.actor, await ctx.step("note", note, "two")]

    return flow


async def in_the_middle(hf: Holdfast, calls: list[str]) -> str:
    """A run that has done everything but its last step, and sleeps."""
    run = await hf.start(define(hf, calls), session_id="s")
    await hf.signal(run.run_id, "now", name="go")
    await hf.drain()
    await hf.approve(run.run_id, actor="ann")
    await hf.advance()
    return run.run_id


END = ["one", 7, "now", "ann", "two"]


async def test_rows_of_a_flow_can_be_built_again(hf: Holdfast) -> None:
    calls: list[str] = []
    run_id = await in_the_middle(hf, calls)
    await hf.journal.store.execute(("DELETE FROM {s}steps", ()), ("UPDATE {s}work SET awaits = 'x'", ()))
    assert not (await hf.fsck()).ok

    await hf.rebuild()
    await assert_sound(hf)
    await hf.drain()

    assert await hf.result(run_id) == END
    assert calls == ["one", "two"]


async def test_a_flow_goes_on_in_another_database(hf: Holdfast, clock: FakeClock, tmp_path: Path) -> None:
    calls: list[str] = []
    run_id = await in_the_middle(hf, calls)
    await hf.export_run(run_id, tmp_path / "run.json")

    async with Holdfast(":memory:", clock=clock) as other:
        define(other, calls)
        await other.import_run(tmp_path / "run.json")
        await other.drain()

        assert await other.result(run_id) == END
        await assert_sound(other)
    assert calls == ["one", "two"]


async def test_a_fork_goes_on_from_its_copy_of_the_memory(hf: Holdfast) -> None:
    calls: list[str] = []
    run_id = await in_the_middle(hf, calls)
    run = await hf.get_run(run_id)
    assert run is not None

    fork = await hf.fork(run_id, at_rev=run.rev)
    await hf.drain()

    assert await hf.result(fork.run_id) == await hf.result(run_id) == END
    assert calls == ["one", "two", "two"]


async def test_a_child_that_is_gone_has_still_answered(hf: Holdfast) -> None:
    calls: list[str] = []
    run_id = await in_the_middle(hf, calls)
    (child,) = (await hf.list_runs(clog_id="leaf")).items
    await hf.purge(child.run_id)

    await hf.drain()

    assert await hf.result(run_id) == END


async def test_a_past_moment_of_a_flow_shows_its_steps(hf: Holdfast) -> None:
    run_id = await in_the_middle(hf, [])

    state = await hf.journal.state(run_id, rev=5)

    assert state is not None
    assert set(state.steps) == {("note", 0), ("@start", 0)}
