"""Error routes and compensations: what happens when a step fails for good."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import Continue, Fail, Holdfast, Retry, RetryPolicy, Wait, Workflow
from holdfast.runtime import RunInfo
from tests.conftest import FakeClock
from tests.workflow.test_steps import ended, started

ONCE = RetryPolicy(max_attempts=1)


async def info_of(hf: Holdfast, run: RunInfo) -> RunInfo:
    found = await hf.get_run(run.run_id)
    assert found is not None
    return found


@pytest.mark.clause("H-S4")
async def test_a_failure_takes_its_error_route_and_the_run_ends_done(hf: Holdfast) -> None:
    flow = Workflow("routed")

    @flow.step(on_error="apologise", retry=RetryPolicy(max_attempts=2))
    async def charge(ctx: Any, input: Any) -> None:
        raise ValueError("card declined")

    @flow.step(after=["charge"])
    async def ship(ctx: Any, charge: None) -> str:
        return "shipped"

    @flow.step()
    async def apologise(ctx: Any, error: dict[str, Any]) -> dict[str, Any]:
        return error

    @flow.step(after=["apologise"])
    async def close(ctx: Any, apologise: dict[str, Any]) -> str:
        return str(apologise["message"])

    run = await started(hf, flow)
    await hf.drain()

    assert await hf.result(run.run_id) == {"close": "card declined"}
    seen = await hf.graph(run.run_id)
    assert seen is not None
    states = {node.id: node.state for node in seen.nodes}
    assert states == {"charge": "failed", "ship": "waiting", "apologise": "completed", "close": "completed"}
    ways = {edge.id: edge.state for edge in seen.edges}
    assert ways == {"charge->ship": "blocked", "charge->apologise": "selected", "apologise->close": "selected"}


async def test_an_error_route_may_decide_by_the_error_whether_it_runs(hf: Holdfast) -> None:
    flow = Workflow("choosy")

    @flow.step(on_error="help", retry=ONCE)
    async def bad(ctx: Any, input: Any) -> Fail:
        return Fail("no", kind="hopeless")

    @flow.step("help", when=lambda results: results["error"]["kind"] != "hopeless")
    async def helps(ctx: Any, error: Any) -> str:
        return "helped"

    assert await ended(hf, flow) == {"help": None}


async def test_an_error_route_that_is_not_needed_never_runs(hf: Holdfast) -> None:
    flow = Workflow("calm")

    @flow.step(on_error="never")
    async def fine(ctx: Any, input: Any) -> str:
        return "fine"

    @flow.step()
    async def never(ctx: Any, error: Any) -> None:
        raise AssertionError("nothing failed")

    assert await ended(hf, flow) == {"fine": "fine"}


async def test_an_error_route_that_fails_too_ends_the_run(hf: Holdfast) -> None:
    flow = Workflow("worse")

    @flow.step(on_error="help", retry=ONCE)
    async def bad(ctx: Any, input: Any) -> Fail:
        return Fail("first")

    @flow.step("help", retry=ONCE)
    async def helps(ctx: Any, error: Any) -> Fail:
        return Fail("second")

    run = await started(hf, flow)
    await hf.drain()

    assert (await info_of(hf, run)).last_error == "step help failed: second"


def booking(calls: list[str], last: Any, **options: Any) -> Workflow:
    flow = Workflow("booking")
    before: tuple[str, ...] = ()
    for name in ("flight", "hotel", "car"):

        @flow.step(name, after=before)
        async def book(ctx: Any, given: Any = None, *, name: str = name, **more: Any) -> str:
            calls.append(name)
            return f"{name}-7"

        @flow.compensate(name)
        async def cancel(ctx: Any, result: str) -> None:
            calls.append(f"cancel {result}")

        before = (name,)

    @flow.step(after=["car"], retry=ONCE, **options)
    async def pay(ctx: Any, car: str) -> Any:
        return last() if callable(last) else last

    return flow


@pytest.mark.clause("SB-13")
async def test_what_was_done_is_undone_the_latest_first(hf: Holdfast) -> None:
    calls: list[str] = []
    run = await started(hf, booking(calls, Fail("no money", kind="declined")))
    await hf.drain()

    assert calls == ["flight", "hotel", "car", "cancel car-7", "cancel hotel-7", "cancel flight-7"]
    info = await info_of(hf, run)
    assert (info.status, info.error_kind, info.last_error) == ("failed", "declined", "step pay failed: no money")
    events = [event.type async for event in hf.events(run.run_id)]
    assert events.count("compensation_begun") == 1
    seen = await hf.graph(run.run_id)
    assert seen is not None
    undone = {node.id: node.state for node in seen.nodes if node.kind == "compensation"}
    assert undone == {"undo:car": "completed", "undo:hotel": "completed", "undo:flight": "completed"}


@pytest.mark.clause("SB-13")
async def test_nothing_is_undone_when_a_failure_has_a_route(hf: Holdfast) -> None:
    calls: list[str] = []
    flow = booking(calls, Fail("no money"), on_error="later")

    @flow.step()
    async def later(ctx: Any, error: Any) -> str:
        return "invoice"

    assert await ended(hf, flow) == {"later": "invoice"}
    assert calls == ["flight", "hotel", "car"]


async def test_a_compensation_is_tried_again_and_one_that_never_works_is_told_of(
    hf: Holdfast, clock: FakeClock
) -> None:
    calls: list[str] = []
    flow = Workflow("sticky")

    @flow.step(retry=RetryPolicy(max_attempts=2))
    async def first(ctx: Any, input: Any) -> int:
        return 1

    @flow.compensate("first")
    def undo_first(ctx: Any, result: int) -> None:
        calls.append("undo first")
        raise ValueError("gone")

    @flow.step(after=["first"])
    async def second(ctx: Any, first: int) -> int:
        return 2

    @flow.compensate("second")
    async def undo_second(ctx: Any, result: int) -> Any:
        calls.append("undo second")
        return Retry("not yet") if calls.count("undo second") < 2 else None

    @flow.step(after=["second"], retry=ONCE)
    async def third(ctx: Any, second: int) -> Fail:
        return Fail("over")

    run = await started(hf, flow)
    await hf.drain()

    assert calls == ["undo second", "undo second", "undo first", "undo first"]
    assert (await info_of(hf, run)).last_error == "step third failed: over (and first could not be undone)"


async def test_siblings_that_nobody_holds_are_withdrawn_and_those_in_hand_are_waited_for_and_undone(
    hf: Holdfast,
) -> None:
    undone: list[str] = []
    flow = Workflow("crowded")
    flow.wait("nap", seconds=60)
    for name in ("a", "b"):

        @flow.step(name)
        async def root(ctx: Any, input: Any, name: str = name) -> str:
            return name

        @flow.compensate(name)
        async def undo(ctx: Any, result: str) -> None:
            undone.append(result)

    run = await started(hf, flow)
    await hf.advance()
    first, second = await hf.claim_next(limit=2)

    await hf.fail(first, "broken", retry=False)
    await hf.advance()
    assert (await hf.advance()).advanced == 0
    assert (await info_of(hf, run)).status == "active"
    await hf.complete(second, "in hand")
    await hf.drain()

    assert (await info_of(hf, run)).status == "failed"
    assert undone == ["in hand"]
    seen = await hf.graph(run.run_id)
    assert seen is not None
    states = sorted(node.state for node in seen.nodes if node.kind != "compensation")
    assert states == ["completed", "failed", "skipped"]


def two_and_a_map(undone: list[str]) -> Workflow:
    """A sibling that will fail beside a map, both with compensations."""
    flow = Workflow("beside")

    @flow.step()
    async def load(ctx: Any, input: Any) -> list[int]:
        return [1, 2]

    @flow.step(after=["load"])
    async def sibling(ctx: Any, load: Any) -> None:
        return None

    @flow.map("lines", over="load")
    async def line(ctx: Any, item: int) -> int:
        return item

    for name in ("load", "lines", "sibling"):

        @flow.compensate(name)
        async def undo(ctx: Any, result: Any, name: str = name) -> None:
            undone.append(name)

    return flow


async def test_a_map_in_hand_that_completes_while_others_are_undone_is_undone_too(hf: Holdfast) -> None:
    undone: list[str] = []
    run = await started(hf, two_and_a_map(undone))
    await hf.advance()
    await hf.advance()
    claims = {claim.runnable_key: claim for claim in await hf.claim_next(limit=2)}
    await hf.release(claims["lines"])
    await hf.execute_next()
    items = await hf.claim_next(limit=2)
    await hf.fail(claims["sibling"], "broken", retry=False)
    await hf.advance()

    for item in items:
        await hf.complete(item, 1)
    await hf.drain()

    assert undone == ["lines", "load"]
    assert (await info_of(hf, run)).last_error == "step sibling failed: broken"


@pytest.mark.parametrize("answer", [Wait(), Wait(seconds=86_400), Continue(), Retry("again")], ids=repr)
async def test_a_step_in_hand_cannot_hold_up_the_undoing(hf: Holdfast, answer: Any) -> None:
    undone: list[str] = []
    run = await started(hf, two_and_a_map(undone))
    await hf.advance()
    await hf.advance()
    claims = {claim.runnable_key: claim for claim in await hf.claim_next(limit=2)}
    await hf.fail(claims["sibling"], "broken", retry=False)
    await hf.advance()

    await hf.complete(claims["lines"], answer)
    await hf.drain()

    assert (await info_of(hf, run)).status == "failed"
    assert undone == ["load"]


@pytest.mark.parametrize("how", ["released", "lost"])
async def test_work_that_comes_back_while_others_are_undone_is_not_begun_again(
    hf: Holdfast, clock: FakeClock, how: str
) -> None:
    undone: list[str] = []
    flow = two_and_a_map(undone)
    flow.approval("ask", after=["load"])
    run = await started(hf, flow)
    await hf.advance()
    await hf.advance()
    claims = {claim.runnable_key: claim for claim in await hf.claim_next(limit=3)}
    await hf.fail(claims["sibling"], "broken", retry=False)
    await hf.advance()

    if how == "released":
        await hf.release(claims["lines"])
        await hf.release(claims["ask"])
    else:
        clock.advance(60)
    await hf.drain()

    assert (await info_of(hf, run)).status == "failed"
    assert undone == ["load"]
    assert (await hf.approvals()).items == []


async def test_a_lost_worker_does_not_stop_the_undoing(hf: Holdfast, clock: FakeClock) -> None:
    calls: list[str] = []
    flow = Workflow("lost")

    @flow.step()
    async def first(ctx: Any, input: Any) -> int:
        return 1

    @flow.compensate("first")
    async def undo(ctx: Any, result: int) -> None:
        calls.append("undone")

    @flow.step(after=["first"])
    async def deadly(ctx: Any, first: int) -> None:
        return None

    run = await started(hf, flow, max_deliveries=1)
    await hf.advance()
    await hf.advance()
    assert [claim.runnable_key for claim in await hf.claim_next()] == ["deadly"]
    clock.advance(60)
    await hf.drain()

    info = await info_of(hf, run)
    assert (info.status, info.error_kind, calls) == ("failed", "worker_lost", ["undone"])


@pytest.mark.clause("H-S7")
async def test_a_run_that_fails_while_siblings_run_ends_at_once_if_there_is_nothing_to_undo(hf: Holdfast) -> None:
    flow = Workflow("plain")
    for name in ("a", "b"):

        @flow.step(name)
        async def root(ctx: Any, input: Any) -> None:
            return None

    run = await started(hf, flow)
    await hf.advance()
    first, second = await hf.claim_next(limit=2)

    await hf.fail(first, "broken", retry=False)

    assert (await info_of(hf, run)).status == "failed"
    with pytest.raises(Exception, match="no longer held"):
        await hf.complete(second, "late")
