"""Many children of one flow: whatever is asked or removed for each of them is asked and removed for all at once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from holdfast import Clog, Context, Done, FlowContext, Holdfast, RunCancelled
from holdfast.protocol.commands import Delete
from tests.contract.builders import quiet

WIDTH = 20


def leaf(hf: Holdfast) -> None:
    """A clog that answers the key under which it was started."""
    clog = Clog("leaf")

    @clog.on_advance
    async def advance(given: Any, ctx: Context) -> Done:
        assert ctx.parent is not None
        return Done(ctx.parent.child_key)

    hf.register(clog)


async def outputs(hf: Holdfast) -> list[Any]:
    return sorted([await hf.result(child.run_id) for child in (await hf.list_runs(clog_id="leaf")).items])


@pytest.fixture
def heard(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[int]]:
    """How many children each question to the store was about, by its name."""
    store, told = hf.journal.store, dict[str, list[int]]()

    def listen(name: str) -> None:
        real = getattr(store, name)

        async def asked(about: Sequence[Any]) -> Any:
            told.setdefault(name, []).append(len(about))
            return await real(about)

        monkeypatch.setattr(store, name, asked)

    listen("used_among")
    listen("entries_at")
    real_drop = store._dropping._work

    async def dropped(keys: list[Any]) -> Any:
        told.setdefault("drop_handoff", []).append(len(keys))
        return await real_drop(keys)

    monkeypatch.setattr(store._dropping, "_work", dropped)
    return told


async def test_children_that_start_side_by_side_are_looked_for_together(
    hf: Holdfast, heard: dict[str, list[int]]
) -> None:
    @hf.flow("fan_out")
    async def fan_out(ctx: FlowContext, input: Any) -> int:
        return len(await ctx.gather(*(ctx.child("leaf", key=str(number), input=number) for number in range(WIDTH))))

    leaf(hf)
    run = await hf.start(fan_out, session_id="s")
    await hf.drain()
    await quiet(hf)

    assert await hf.result(run.run_id) == WIDTH
    assert heard["used_among"] == [WIDTH]
    assert await outputs(hf) == sorted(str(number) for number in range(WIDTH))


async def test_what_many_children_leave_for_a_run_that_is_over_is_removed_together(
    hf: Holdfast, heard: dict[str, list[int]]
) -> None:
    @hf.flow("fan_out")
    async def fan_out(ctx: FlowContext, input: Any) -> None:
        await ctx.gather(*(ctx.child("leaf", key=str(number), input=number) for number in range(WIDTH)))

    leaf(hf)
    await hf.start(fan_out, session_id="s")
    await hf.advance()
    await quiet(hf)
    children = (await hf.list_runs(clog_id="leaf")).items
    await asyncio.gather(*(hf.cancel(child.run_id) for child in children))
    await quiet(hf)

    assert max(heard["drop_handoff"]) >= WIDTH / 2
    assert await hf.journal.store.handoffs() == []


async def test_a_childs_first_tick_reads_nothing_to_know_its_parent(hf: Holdfast, heard: dict[str, list[int]]) -> None:
    @hf.flow("fan_out")
    async def fan_out(ctx: FlowContext, input: Any) -> None:
        await ctx.child("leaf", key="k", input=1)

    leaf(hf)
    await hf.start(fan_out, session_id="s")
    await hf.advance()
    await quiet(hf)
    heard.clear()
    await hf.advance()

    assert "entries_at" not in heard
    assert await outputs(hf) == ["k"]


async def test_a_flow_that_waits_knows_its_open_children_by_itself(hf: Holdfast, heard: dict[str, list[int]]) -> None:
    @hf.flow("patient")
    async def patient(ctx: FlowContext, input: Any) -> Any:
        return await ctx.gather(ctx.receive("news"), *(ctx.run("leaf", key=str(number)) for number in range(WIDTH)))

    leaf(hf)
    run = await hf.start(patient, session_id="s", queue="parents")
    await hf.advance(queues=["parents"])
    await quiet(hf)
    heard.clear()
    await hf.signal(run.run_id, "new", name="news")
    await hf.advance(queues=["parents"])
    assert "used_among" not in heard

    await hf.drain()
    assert await hf.result(run.run_id) == ["new", *(str(number) for number in range(WIDTH))]


async def test_a_child_that_is_deleted_while_its_flow_waits_counts_as_cancelled(hf: Holdfast) -> None:
    @hf.flow("patient")
    async def patient(ctx: FlowContext, input: Any) -> Any:
        try:
            return await ctx.run("leaf", key="k")
        except RunCancelled:
            return "cancelled"

    leaf(hf)
    run = await hf.start(patient, session_id="s", queue="parents")
    await hf.advance(queues=["parents"])
    await quiet(hf)
    (child,) = (await hf.list_runs(clog_id="leaf")).items
    await hf.journal.execute(child.run_id, Delete())
    await quiet(hf)
    await hf.drain()

    assert await hf.result(run.run_id) == "cancelled"
