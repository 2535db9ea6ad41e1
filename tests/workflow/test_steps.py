"""Steps, parents, joins and conditions: what runs, with what, how often."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import Conflict, Continue, Fail, Holdfast, Retry, RetryPolicy, RunFailed, Wait, Workflow
from holdfast.runtime import RunInfo
from tests.conftest import FakeClock, Opener

SHARED = pytest.mark.parametrize("configuration", ["file", "postgres"])


async def started(hf: Holdfast, flow: Workflow, input: Any = None, **options: Any) -> RunInfo:
    hf.register(flow)
    return await hf.start(flow, input, session_id="s", **options)


async def ended(hf: Holdfast, flow: Workflow, input: Any = None) -> Any:
    run = await started(hf, flow, input)
    await hf.drain()
    return await hf.result(run.run_id)


def diamond(calls: list[str] | None = None) -> Workflow:
    flow = Workflow("diamond")
    seen = [] if calls is None else calls

    @flow.step()
    async def top(ctx: Any, input: int) -> int:
        seen.append("top")
        return input

    @flow.step(after=["top"])
    async def left(ctx: Any, top: int) -> int:
        seen.append("left")
        return top + 1

    @flow.step(after=["top"])
    def right(ctx: Any, top: int) -> int:
        seen.append("right")
        return top * 10

    @flow.step(after=["left", "right"])
    async def bottom(ctx: Any, left: int, right: int) -> list[int]:
        seen.append("bottom")
        return [left, right]

    return flow


@pytest.mark.clause("S-24", "S-25")
async def test_steps_get_their_parents_results_by_name_and_run_once(hf: Holdfast) -> None:
    calls: list[str] = []

    assert await ended(hf, diamond(calls), 4) == {"bottom": [5, 40]}

    assert sorted(calls) == ["bottom", "left", "right", "top"]


async def test_a_workflow_also_starts_by_its_name(hf: Holdfast) -> None:
    hf.register(diamond())

    run = await hf.create_run(session_id="s", clog_id="diamond", input=1)
    await hf.drain()

    assert await hf.result(run.run_id) == {"bottom": [2, 10]}


async def test_the_output_holds_every_step_that_nothing_comes_after(hf: Holdfast) -> None:
    flow = Workflow("ends")

    @flow.step()
    async def one(ctx: Any, input: Any) -> int:
        return 1

    @flow.step("two-and-a-half")
    async def two(ctx: Any, input: Any) -> float:
        return 2.5

    @flow.step(after="one")
    async def three(ctx: Any) -> None:
        return None

    assert await ended(hf, flow) == {"two-and-a-half": 2.5, "three": None}


async def test_a_step_may_ask_for_the_input_for_some_parents_or_for_all_of_them(hf: Holdfast) -> None:
    flow = Workflow("asking")
    for name in ("a", "b"):

        @flow.step(name)
        async def root(ctx: Any, input: Any, name: str = name) -> str:
            return name

    @flow.step(after=["a", "b"])
    async def some(ctx: Any, a: str, input: Any) -> list[Any]:
        return [a, input]

    @flow.step(after=["a", "b"])
    async def everything(ctx: Any, **given: Any) -> dict[str, Any]:
        return given

    assert await ended(hf, flow, 7) == {"some": ["a", 7], "everything": {"a": "a", "b": "b", "input": 7}}


@pytest.mark.clause("S-25")
@pytest.mark.parametrize("order", [("left", "right"), ("right", "left")])
async def test_a_join_is_planned_once_whichever_parent_ends_first(hf: Holdfast, order: tuple[str, str]) -> None:
    hf.register(diamond())
    run = await hf.start("diamond", 1, session_id="s")
    await hf.advance()
    await hf.advance()

    claims = {claim.runnable_key: claim for claim in await hf.claim_next(limit=5)}
    assert sorted(claims) == ["left", "right"]
    await hf.complete(claims[order[0]], 1)
    assert await hf.claim_next(limit=5) == []
    await hf.complete(claims[order[1]], 2)

    kinds = [(entry.kind, entry.data.get("runnable_key")) for entry in await hf.journal.read(f"run:{run.run_id}")]
    assert kinds.count(("runnable_planned", "bottom")) == 1
    assert kinds.count(("attempt_scheduled", "bottom")) == 1
    await hf.drain()
    assert (await hf.result(run.run_id)).keys() == {"bottom"}


@pytest.mark.clause("S-25")
async def test_parents_that_end_at_the_same_time_plan_their_join_once(hf: Holdfast) -> None:
    flow = Workflow("wide")
    for number in range(12):

        @flow.step(f"root{number}")
        async def root(ctx: Any, input: Any, number: int = number) -> int:
            return number

    @flow.step(after=[f"root{number}" for number in range(12)])
    async def join(ctx: Any, **roots: int) -> int:
        return sum(value for name, value in roots.items() if name != "input")

    run = await started(hf, flow)
    await hf.advance()
    claims = await hf.claim_next(limit=20)
    assert len(claims) == 12

    await asyncio.gather(*(hf.complete(claim, 1) for claim in claims))
    await hf.drain()

    assert await hf.result(run.run_id) == {"join": 12}
    kinds = [entry.kind for entry in await hf.journal.read(f"run:{run.run_id}")]
    assert kinds.count("runnable_planned") == 13


@pytest.mark.clause("S-24")
async def test_a_join_never_runs_if_a_parent_fails(hf: Holdfast) -> None:
    calls: list[str] = []
    flow = Workflow("halved")

    @flow.step()
    async def good(ctx: Any, input: Any) -> None:
        calls.append("good")

    @flow.step()
    async def bad(ctx: Any, input: Any) -> Fail:
        return Fail("no", kind="refused")

    @flow.step(after=["good", "bad"])
    async def join(ctx: Any) -> None:
        calls.append("join")

    run = await started(hf, flow)
    await hf.drain()

    assert "join" not in calls
    info = await hf.get_run(run.run_id)
    assert info is not None
    assert (info.status, info.error_kind, info.last_error) == ("failed", "refused", "step bad failed: no")


async def test_a_step_that_raises_is_tried_as_often_as_its_own_policy_says(hf: Holdfast, clock: FakeClock) -> None:
    attempts: list[int] = []
    flow = Workflow("stubborn")

    @flow.step(retry=RetryPolicy(max_attempts=5, backoff_ms=1_000))
    async def shaky(ctx: Any, input: Any) -> int:
        attempts.append(ctx.attempt)
        if ctx.attempt < 3:
            raise ValueError("not yet")
        return len(attempts) - 1

    assert await ended(hf, flow) == {"shaky": 3}
    assert attempts == [0, 1, 2, 3]


@pytest.mark.clause("H-S4", "H-S7")
async def test_a_step_that_fails_too_often_ends_the_run_with_its_words(hf: Holdfast) -> None:
    flow = Workflow("hopeless")

    @flow.step(retry=RetryPolicy(max_attempts=2))
    def broken(ctx: Any, input: Any) -> None:
        raise ValueError("the disk is on fire")

    run = await started(hf, flow)
    await hf.drain()

    with pytest.raises(RunFailed, match="step broken failed: the disk is on fire"):
        await hf.result(run.run_id)


@pytest.mark.parametrize(
    "answer", [Retry("later", after=3), Wait(seconds=3), Continue()], ids=["retry", "wait", "continue"]
)
async def test_a_step_may_come_back_to_its_work(hf: Holdfast, clock: FakeClock, answer: Any) -> None:
    calls = 0
    flow = Workflow("again")

    @flow.step()
    async def poll(ctx: Any, input: Any) -> Any:
        nonlocal calls
        calls += 1
        return answer if calls == 1 else "there"

    assert await ended(hf, flow) == {"poll": "there"}
    assert calls == 2


async def test_a_step_cannot_wait_for_nothing(hf: Holdfast) -> None:
    flow = Workflow("bare")

    @flow.step(retry=RetryPolicy(max_attempts=1))
    async def bare(ctx: Any, input: Any) -> Wait:
        return Wait()

    run = await started(hf, flow)
    await hf.drain()

    info = await hf.get_run(run.run_id)
    assert info is not None
    assert (info.status, info.error_kind) == ("failed", "invalid_outcome")


async def test_parents_may_have_any_name(hf: Holdfast) -> None:
    flow = Workflow("names")
    names = ["timeout", "function", "self", "args", "named"]
    for name in names:

        @flow.step(name)
        async def root(ctx: Any, input: Any, name: str = name) -> str:
            return name

    @flow.step(after=names)
    def join(ctx: Any, **given: Any) -> list[str]:
        return sorted(given)

    assert await ended(hf, flow) == {"join": sorted([*names, "input"])}


async def test_a_step_that_is_not_wanted_is_skipped_and_its_children_see_none(hf: Holdfast) -> None:
    calls: list[Any] = []
    flow = Workflow("picky")

    @flow.step()
    async def price(ctx: Any, input: int) -> int:
        return input

    @flow.step(after=["price"], when=lambda results: results["price"] > 100)
    async def check(ctx: Any, price: int) -> str:
        calls.append("check")
        return "checked"

    @flow.step(after=["check"])
    async def ship(ctx: Any, check: str | None) -> str | None:
        return check

    hf.register(flow)
    cheap = await hf.start(flow, 5, session_id="s")
    dear = await hf.start(flow, 500, session_id="s")
    await hf.drain()

    assert await hf.result(cheap.run_id) == {"ship": None}
    assert await hf.result(dear.run_id) == {"ship": "checked"}
    assert calls == ["check"]
    seen = await hf.graph(cheap.run_id)
    assert seen is not None
    assert {node.id: node.state for node in seen.nodes} == {
        "price": "completed",
        "check": "skipped",
        "ship": "completed",
    }


async def test_a_step_speaks_stores_delivers_and_starts_children_like_any_tick(hf: Holdfast) -> None:
    flow = Workflow("busy")

    @flow.step()
    async def work(ctx: Any, input: Any) -> str:
        await ctx.read(("run",))
        await ctx.write(("run.set", {"seen": True}))
        await ctx.emit("note", {"n": 1})
        await ctx.outbox("mail", {"to": "ann"}, key="k")
        child = await ctx.child("diamond", key="k", input=1)
        return str(child.run_id)

    @flow.step(after=["work"])
    async def same_key(ctx: Any, work: str) -> bool:
        child = await ctx.child("diamond", key="k", input=1)
        return bool(child.run_id == work)

    hf.register(diamond())
    run = await started(hf, flow)
    await hf.drain()

    # The same key of another step is another child.
    assert await hf.result(run.run_id) == {"same_key": False}
    seen = await hf.inspect(run.run_id)
    assert seen is not None
    assert [child.step for child in seen.child_runs] == ["work", "same_key"]
    assert [await hf.result(child.run_id) for child in seen.child_runs] == [{"bottom": [2, 10]}] * 2
    assert [event.data async for event in hf.events(run.run_id) if event.type == "note"] == [{"n": 1}]


@SHARED
async def test_siblings_are_claimed_by_several_workers_at_once(hf: Holdfast, another: Opener) -> None:
    """Both are inside their step at the same time, each in a runtime of its own."""
    other = await another()
    inside: list[str] = []
    both = asyncio.Event()
    for runtime in (hf, other):
        flow = Workflow("pair")
        for name in ("a", "b"):

            @flow.step(name)
            async def root(ctx: Any, input: Any, name: str = name) -> None:
                inside.append(name)
                if len(inside) == 2:
                    both.set()
                await asyncio.wait_for(both.wait(), 10)

        runtime.register(flow)
    run = await hf.start("pair", session_id="s")
    await hf.advance()

    await asyncio.gather(hf.execute_next(), other.execute_next())

    assert sorted(inside) == ["a", "b"]
    await hf.drain()
    assert await hf.result(run.run_id) == {"a": None, "b": None}


@SHARED
@pytest.mark.clause("S-14")
async def test_a_run_goes_on_after_a_restart(hf: Holdfast, another: Opener) -> None:
    hf.register(diamond())
    run = await hf.start("diamond", 3, session_id="s")
    await hf.advance()
    await hf.advance()

    other = await another()
    other.register(diamond())
    await other.drain()

    assert await other.result(run.run_id) == {"bottom": [4, 30]}


@pytest.mark.parametrize("result", [1, Continue(), Wait(seconds=1)], ids=repr)
async def test_a_runner_of_ones_own_cannot_speak_for_the_planner(hf: Holdfast, result: Any) -> None:
    flow = Workflow("single")

    @flow.step()
    async def only(ctx: Any, input: Any) -> int:
        return 7

    run = await started(hf, flow)
    await hf.advance()
    await hf.advance()
    (claim,) = await hf.claim_next()
    assert claim.runnable_key == ""

    with pytest.raises(Conflict) as caught:
        await hf.complete(claim, result)
    await hf.release(claim)
    await hf.drain()

    assert caught.value.code == "workflow_tick"
    assert await hf.result(run.run_id) == {"only": 7}


async def test_cancel_stops_what_was_not_begun(hf: Holdfast) -> None:
    calls: list[str] = []
    hf.register(diamond(calls))
    run = await hf.start("diamond", 1, session_id="s")
    await hf.advance()
    await hf.advance()

    await hf.cancel(run.run_id)
    await hf.drain()

    info = await hf.get_run(run.run_id)
    assert info is not None
    assert (info.status, calls) == ("cancelled", ["top"])


async def test_signals_wake_no_step_and_are_kept(hf: Holdfast, clock: FakeClock) -> None:
    flow = Workflow("deaf")
    flow.wait("nap", seconds=60)
    run = await started(hf, flow)
    await hf.advance()

    assert (await hf.signal(run.run_id, "hey")).accepted
    assert (await hf.advance()).advanced == 0
    clock.advance(60)
    await hf.drain()

    assert await hf.result(run.run_id) == {"nap": None}
