"""Maps: one call for each item of a list, a bounded number of them open, one result in the order of the items."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import Fail, Holdfast, RetryPolicy, Workflow
from holdfast.protocol.planning import OPEN_MAX
from tests.conftest import FakeClock
from tests.workflow.test_steps import ended, started


def mapped(items: Any, function: Any = None, **options: Any) -> Workflow:
    flow = Workflow("mapped")

    @flow.step()
    async def load(ctx: Any, input: Any) -> Any:
        return items

    async def double(ctx: Any, item: Any) -> Any:
        return item * 2

    flow.map("lines", over="load", **options)(function or double)

    @flow.step(after=["lines"])
    async def join(ctx: Any, lines: Any) -> Any:
        return lines

    return flow


async def open_items(hf: Holdfast, run_id: str) -> list[str]:
    seen = await hf.inspect(run_id)
    assert seen is not None
    return sorted(item.runnable_key for item in seen.attempts if item.status in ("available", "claimed"))


@pytest.mark.parametrize("count", [0, 1, 3, 17])
async def test_a_map_joins_the_results_in_the_order_of_the_items(hf: Holdfast, count: int) -> None:
    assert await ended(hf, mapped(list(range(count)))) == {"join": [2 * number for number in range(count)]}


async def test_at_most_its_limit_of_items_is_open(hf: Holdfast) -> None:
    run = await started(hf, mapped(list(range(10)), limit=3))
    for _ in range(3):
        await hf.advance()

    assert await open_items(hf, run.run_id) == ["lines[0]", "lines[1]", "lines[2]"]
    await hf.advance()
    assert len(await open_items(hf, run.run_id)) == 3
    await hf.drain()
    assert await hf.result(run.run_id) == {"join": [2 * number for number in range(10)]}


async def test_a_wide_map_never_has_more_open_than_a_run_may(hf: Holdfast) -> None:
    run = await started(hf, mapped(list(range(OPEN_MAX + 50))))
    for _ in range(3):
        await hf.advance()

    assert len(await open_items(hf, run.run_id)) == OPEN_MAX
    claims = await hf.claim_next(limit=7)
    await asyncio.gather(*(hf.complete(claim, 0) for claim in claims))
    assert len(await open_items(hf, run.run_id)) == OPEN_MAX


async def test_many_steps_that_are_ready_at_once_wait_for_room(hf: Holdfast) -> None:
    flow = Workflow("crowd")
    for number in range(OPEN_MAX + 20):

        @flow.step(f"s{number}")
        async def step(ctx: Any, input: Any) -> None:
            return None

    run = await started(hf, flow)
    await hf.advance()

    assert len(await open_items(hf, run.run_id)) == OPEN_MAX
    for _ in range(40):
        for claim in await hf.claim_next(limit=10):
            await (hf.complete(claim, 1) if claim.runnable_key else hf.release(claim))
            assert len(await open_items(hf, run.run_id)) <= OPEN_MAX
    await hf.drain()
    assert len(await hf.result(run.run_id)) == OPEN_MAX + 20


async def test_the_last_items_of_a_map_that_end_together_join_once(hf: Holdfast) -> None:
    run = await started(hf, mapped(list(range(8))))
    for _ in range(3):
        await hf.advance()
    claims = await hf.claim_next(limit=20)

    await asyncio.gather(*(hf.complete(claim, claim.runnable_key) for claim in claims))
    await hf.drain()

    assert await hf.result(run.run_id) == {"join": [f"lines[{number}]" for number in range(8)]}
    kinds = [(entry.kind, entry.data.get("runnable_key")) for entry in await hf.journal.read(f"run:{run.run_id}")]
    assert kinds.count(("attempt_scheduled", "join")) == kinds.count(("runnable_applied", "lines")) == 1


async def test_an_item_is_tried_again_by_itself(hf: Holdfast, clock: FakeClock) -> None:
    calls: list[int] = []

    async def shaky(ctx: Any, item: int) -> int:
        calls.append(item)
        if item == 1 and ctx.attempt == 0:
            raise ValueError("once")
        return item

    assert await ended(hf, mapped([0, 1, 2], shaky)) == {"join": [0, 1, 2]}
    assert sorted(calls) == [0, 1, 1, 2]


async def test_what_an_item_does_to_its_value_is_its_own_business(hf: Holdfast) -> None:
    async def spoil(ctx: Any, item: dict[str, int]) -> int:
        item["n"] += 1
        if ctx.attempt == 0:
            raise ValueError("once")
        return item["n"]

    assert await ended(hf, mapped([{"n": 1}, {"n": 5}], spoil)) == {"join": [2, 6]}


async def test_an_item_that_fails_for_good_fails_the_map_and_the_run(hf: Holdfast) -> None:
    async def picky(ctx: Any, item: int) -> Any:
        return Fail("bad line") if item == 2 else item

    run = await started(hf, mapped([0, 1, 2, 3], picky))
    await hf.drain()

    info = await hf.get_run(run.run_id)
    assert info is not None
    assert (info.status, info.last_error) == ("failed", "step lines failed: bad line")


async def test_a_map_that_failed_goes_its_error_route_and_begins_no_more_items(hf: Holdfast) -> None:
    calls: list[int] = []
    flow = Workflow("mapped")

    @flow.step()
    async def load(ctx: Any, input: Any) -> list[int]:
        return list(range(9))

    @flow.map("lines", over="load", limit=2, on_error="report", retry=RetryPolicy(max_attempts=1))
    async def line(ctx: Any, item: int) -> None:
        calls.append(item)
        raise ValueError(f"line {item}")

    @flow.step()
    async def report(ctx: Any, error: dict[str, Any]) -> str:
        return f"{error['step']}: {error['message']}"

    answer = await ended(hf, flow)

    assert answer["report"].startswith("lines: line ")
    assert len(calls) == 2


@pytest.mark.parametrize("items", [None, {"a": 1}, "text", 7])
async def test_what_is_no_list_fails_with_a_word_about_whose_result_it_is(hf: Holdfast, items: Any) -> None:
    run = await started(hf, mapped(items))
    await hf.drain()

    info = await hf.get_run(run.run_id)
    assert info is not None
    assert info.error_kind == "invalid_map"
    assert "lines goes over the result of load, which is a" in str(info.last_error)


async def test_a_map_may_be_skipped_and_maps_may_follow_each_other(hf: Holdfast) -> None:
    flow = Workflow("chain")

    @flow.step()
    async def load(ctx: Any, input: int) -> list[int]:
        return list(range(input))

    @flow.map("first", over="load")
    async def first(ctx: Any, item: int) -> int:
        return item + 1

    @flow.map("second", over="first", after=["load"], limit=2)
    def second(ctx: Any, item: int) -> int:
        return item * 10

    @flow.map("never", over="load", when=lambda results: len(results["load"]) > 100)
    async def never(ctx: Any, item: int) -> None:
        raise AssertionError("not wanted")

    assert await ended(hf, flow, 4) == {"second": [10, 20, 30, 40], "never": None}


async def test_the_graph_of_a_map_counts_its_items(hf: Holdfast) -> None:
    run = await started(hf, mapped(list(range(5))))
    for _ in range(5):
        await hf.advance()

    seen = await hf.graph(run.run_id)

    assert seen is not None
    (lines,) = [node for node in seen.nodes if node.id == "lines"]
    assert (lines.kind, lines.state, lines.items, lines.items_done) == ("map", "running", 5, 2)
    assert "lines 2/5" in seen.to_mermaid()
