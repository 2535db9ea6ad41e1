"""Steps happen once, are tried again without a worker, and fail the same way whenever the body comes to them."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from holdfast import Conflict, FlowContext, Holdfast, InvalidValue, RetryPolicy, RunFailed, StepFailed
from tests.conftest import FakeClock

NO_RETRY = RetryPolicy(max_attempts=1)


async def ended(hf: Holdfast, flow: Any, input: Any = None) -> Any:
    """Start the flow and run it to its end; answer its output."""
    run = await hf.start(flow, input, session_id="s")
    await hf.drain()
    return await hf.result(run.run_id, timeout=5)


async def test_a_flow_is_told_whose_tick_it_is(hf: Holdfast) -> None:
    @hf.flow("f")
    async def flow(ctx: FlowContext, given: Any) -> Any:
        return [ctx.clog_id, ctx.run_id, ctx.session_id, ctx.tick_id, ctx.attempt, ctx.deliveries, ctx.signal]

    run = await hf.start(flow, 1, session_id="s")
    (result,) = (await hf.advance()).results

    assert await hf.result(run.run_id) == ["f", run.run_id, "s", result.tick_id, 0, 1, None]


async def test_a_step_is_called_once_however_often_the_body_runs(hf: Holdfast) -> None:
    calls: list[str] = []

    async def note(word: str, *, loud: bool = False) -> str:
        calls.append(word)
        return word.upper() if loud else word

    @hf.flow("f")
    async def flow(ctx: FlowContext, names: list[str]) -> Any:
        first = await ctx.step("note", note, names[0], loud=True)
        await ctx.sleep(1)
        second = await ctx.step("note", note, names[1])
        await ctx.sleep(1)
        return [first, second]

    assert await ended(hf, flow, ["a", "b"]) == ["A", "b"]
    assert calls == ["a", "b"]


async def test_a_plain_function_runs_in_a_thread(hf: Holdfast) -> None:
    def where() -> bool:
        return threading.current_thread() is threading.main_thread()

    @hf.flow("f")
    async def flow(ctx: FlowContext, input: Any) -> Any:
        return await ctx.step("where", where)

    assert await ended(hf, flow) is False


async def test_a_step_that_fails_is_tried_again_without_a_worker(hf: Holdfast, clock: FakeClock) -> None:
    tries: list[float] = []

    async def shaky() -> str:
        tries.append(clock.now().timestamp())
        if len(tries) < 3:
            raise ConnectionError("down")
        return "up"

    @hf.flow("f")
    async def flow(ctx: FlowContext, input: Any) -> Any:
        return await ctx.step("shaky", shaky, retry=RetryPolicy(max_attempts=5, backoff_ms=10_000))

    run = await hf.start(flow, session_id="s")
    await hf.advance()
    waiting = await hf.get_run(run.run_id)
    assert waiting is not None
    assert (waiting.status, waiting.locked_by) == ("waiting", None)
    await hf.drain()

    assert await hf.result(run.run_id) == "up"
    assert len(tries) == 3
    assert tries[2] - tries[1] > tries[1] - tries[0] >= 5
    shown = [event.data["status"] async for event in hf.events(run.run_id) if event.type == "step_complete"]
    assert shown == ["retrying", "retrying", "completed"]


async def test_a_step_that_takes_too_long_has_failed(hf: Holdfast) -> None:
    async def slow() -> None:
        await asyncio.sleep(30)

    @hf.flow("f", retry=NO_RETRY)
    async def flow(ctx: FlowContext, input: Any) -> Any:
        try:
            await ctx.step("slow", slow, timeout=0.01)
        except StepFailed as failed:
            return [failed.name, failed.kind]

    assert await ended(hf, flow) == ["slow", "TimeoutError"]


async def test_a_body_that_catches_a_failure_takes_the_same_way_in_a_replay(hf: Holdfast) -> None:
    calls: list[str] = []
    seen: list[str] = []

    async def charge() -> None:
        calls.append("charge")
        raise ValueError("no money")

    async def refuse() -> str:
        calls.append("refuse")
        return "refused"

    @hf.flow("f")
    async def flow(ctx: FlowContext, input: Any) -> Any:
        try:
            await ctx.step("charge", charge, retry=NO_RETRY)
        except StepFailed as failed:
            seen.append(f"{failed.kind}: {failed.message}")
            answer = await ctx.step("refuse", refuse)
        await ctx.sleep(1)
        return answer

    assert await ended(hf, flow) == "refused"
    assert calls == ["charge", "refuse"]
    assert seen == ["ValueError: no money"] * 2


async def test_a_failure_that_nobody_catches_fails_the_run(hf: Holdfast) -> None:
    async def broken() -> None:
        raise ValueError("no money")

    @hf.flow("f", retry=NO_RETRY)
    async def flow(ctx: FlowContext, input: Any) -> None:
        await ctx.step("charge", broken)

    with pytest.raises(RunFailed) as caught:
        await ended(hf, flow)

    run: Any = caught.value.run
    assert (run.status, run.error_kind, run.last_error) == ("failed", "ValueError", "step charge failed: no money")


async def test_a_bug_of_the_body_is_tried_again_and_keeps_its_steps(hf: Holdfast) -> None:
    calls: list[int] = []

    async def once() -> int:
        calls.append(1)
        return 7

    @hf.flow("f", retry=RetryPolicy(max_attempts=3))
    async def flow(ctx: FlowContext, input: Any) -> Any:
        value = await ctx.step("once", once)
        if ctx.attempt < 2:
            raise KeyError("oops")
        return value

    assert await ended(hf, flow) == 7
    assert calls == [1]


async def test_a_result_that_cannot_be_stored_fails_its_step_for_good(hf: Holdfast) -> None:
    calls: list[int] = []

    async def odd() -> object:
        calls.append(1)
        return object()

    @hf.flow("f")
    async def flow(ctx: FlowContext, input: Any) -> Any:
        try:
            await ctx.step("odd", odd)
        except StepFailed as failed:
            return failed.kind

    assert await ended(hf, flow) == "invalid_value"
    assert calls == [1]


async def test_branches_run_side_by_side_and_each_step_once(hf: Holdfast) -> None:
    running: list[int] = []
    most: list[int] = []

    async def load(number: int) -> int:
        running.append(number)
        most.append(len(running))
        await asyncio.sleep(0.01 * (3 - number))
        running.remove(number)
        return number * 10

    @hf.flow("f")
    async def flow(ctx: FlowContext, input: Any) -> Any:
        results = await ctx.gather(*(ctx.step("load", load, number) for number in range(3)))
        await ctx.sleep(1)
        return results

    assert await ended(hf, flow) == [0, 10, 20]
    assert max(most) == 3
    assert len(most) == 3


async def test_a_replay_hands_out_answers_in_the_order_in_which_they_came(hf: Holdfast) -> None:
    orders: list[list[int]] = []

    async def load(number: int) -> int:
        await asyncio.sleep(0.02 * (3 - number))
        return number

    async def save(number: int, place: int) -> list[int]:
        return [number, place]

    @hf.flow("f")
    async def flow(ctx: FlowContext, input: Any) -> Any:
        order: list[int] = []
        orders.append(order)

        async def branch(number: int) -> Any:
            loaded = await ctx.step("load", load, number)
            order.append(loaded)
            # Who saves first is known only from who loaded first.
            return await ctx.step("save", save, loaded, len(order))

        saved = await ctx.gather(*(branch(number) for number in range(3)))
        await ctx.sleep(1)
        await ctx.sleep(1)
        return saved

    assert await ended(hf, flow) == [[0, 3], [1, 2], [2, 1]]
    assert orders == [[2, 1, 0]] * 3


async def test_a_branch_that_waits_holds_nobody_else_up(hf: Holdfast, clock: FakeClock) -> None:
    calls: list[str] = []

    async def note(word: str) -> str:
        calls.append(word)
        return word

    @hf.flow("f")
    async def flow(ctx: FlowContext, input: Any) -> Any:
        async def slow() -> Any:
            await ctx.sleep(hours=1)
            return await ctx.step("slow", note, "slow")

        async def fast() -> Any:
            await ctx.receive("go")
            return await ctx.step("fast", note, "fast")

        return await ctx.gather(slow(), fast())

    run = await hf.start(flow, session_id="s")
    await hf.advance()
    await hf.signal(run.run_id, name="go")
    await hf.advance()
    assert calls == ["fast"]
    clock.advance(3_600)
    await hf.advance()

    assert await hf.result(run.run_id) == ["slow", "fast"]
    assert calls == ["fast", "slow"]


async def test_an_error_in_one_branch_is_raised_when_all_have_ended(hf: Holdfast) -> None:
    calls: list[str] = []

    async def broken() -> None:
        raise ValueError("no")

    async def fine() -> None:
        calls.append("fine")

    @hf.flow("f")
    async def flow(ctx: FlowContext, input: Any) -> Any:
        try:
            await ctx.gather(ctx.step("a", broken, retry=NO_RETRY), ctx.step("b", fine))
        except StepFailed as failed:
            await ctx.sleep(1)
            return failed.name

    assert await ended(hf, flow) == "a"
    assert calls == ["fine"]


async def test_what_waits_or_is_remembered_does_not_belong_inside_a_step(hf: Holdfast) -> None:
    refused: list[str] = []

    @hf.flow("f")
    async def flow(ctx: FlowContext, input: Any) -> Any:
        async def greedy() -> list[str]:
            for ask in (
                lambda: ctx.step("inner", len, "x"),
                lambda: ctx.sleep(1),
                lambda: ctx.receive(),
                lambda: ctx.approval("a"),
                lambda: ctx.run("g", key="k"),
                lambda: ctx.tx("t"),
            ):
                try:
                    await ask()
                except Conflict as error:
                    refused.append(str(error).split()[0])
            return [str(await ctx.uuid()), str(await ctx.now()), str(await ctx.random())]

        values = await ctx.step("greedy", greedy)
        await ctx.sleep(1)
        return len(values)

    assert await ended(hf, flow) == 3
    assert refused == ["step", "sleep", "receive", "approval", "run", "step"]


async def test_a_name_of_ours_is_refused(hf: Holdfast) -> None:
    @hf.flow("f", retry=NO_RETRY)
    async def flow(ctx: FlowContext, input: Any) -> Any:
        with pytest.raises(InvalidValue, match="must not begin with @"):
            await ctx.step("@now", len, "x")
        with pytest.raises(Conflict, match="inside a step"):
            ctx.stream("text", "hello")
        return True

    assert await ended(hf, flow) is True


async def test_a_wait_cannot_be_swallowed(hf: Holdfast) -> None:
    ticks: list[int] = []

    @hf.flow("f")
    async def flow(ctx: FlowContext, input: Any) -> Any:
        ticks.append(1)
        try:
            await ctx.sleep(60)
        except Exception:
            return "swallowed"
        return "slept"

    assert await ended(hf, flow) == "slept"
    assert len(ticks) == 2


async def test_time_and_chance_are_the_same_in_a_replay(hf: Holdfast, clock: FakeClock) -> None:
    seen: list[Any] = []

    @hf.flow("f")
    async def flow(ctx: FlowContext, input: Any) -> Any:
        seen.append([await ctx.now(), await ctx.random(), await ctx.uuid(), await ctx.uuid()])
        await ctx.sleep(60)
        return [ctx.run_id, ctx.session_id, ctx.user_id, ctx.attempt, ctx.cancelled, ctx.parent]

    start = clock.now()
    run_id, *about = await ended(hf, flow)

    assert seen[0] == seen[1]
    now, chance, one, other = seen[0]
    assert now == start
    assert 0 <= chance < 1
    assert one != other
    assert about == ["s", "local", 0, False, None]
    assert await hf.get_run(run_id) is not None


async def test_a_task_group_of_the_bodys_own_may_wait_too(hf: Holdfast) -> None:
    calls: list[str] = []

    async def note(word: str) -> str:
        calls.append(word)
        return word

    @hf.flow("f")
    async def flow(ctx: FlowContext, input: Any) -> Any:
        async def branch(word: str) -> str:
            await ctx.step("first", note, word)
            await ctx.sleep(5)
            return word

        async with asyncio.TaskGroup() as tasks:
            async with asyncio.TaskGroup() as inner:
                one = inner.create_task(branch("a"))
            other = tasks.create_task(branch("b"))
        return [one.result(), other.result()]

    assert await ended(hf, flow) == ["a", "b"]
    assert calls == ["a", "b"]


async def test_an_error_in_a_task_group_counts_before_a_wait(hf: Holdfast) -> None:
    @hf.flow("f", retry=NO_RETRY)
    async def flow(ctx: FlowContext, input: Any) -> Any:
        async def broken() -> None:
            raise KeyError("oops")

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(ctx.sleep(5))
            tasks.create_task(broken())

    with pytest.raises(RunFailed) as caught:
        await ended(hf, flow)

    run: Any = caught.value.run
    assert run.error_kind == "exception"
