"""Flows with workers, a real clock and without an event loop of the caller's."""

from __future__ import annotations

import asyncio
from typing import Any

from holdfast import FlowContext, Holdfast, RetryPolicy
from tests.contract.builders import assert_sound


async def test_workers_run_flows_as_they_become_due(database_url: str, schema: str) -> None:
    async with Holdfast(database_url, schema=schema) as hf:
        calls: list[int] = []

        def flaky(number: int) -> int:
            calls.append(number)
            if len(calls) == 1:
                raise ConnectionError("down")
            return number

        @hf.flow("child")
        async def child(ctx: FlowContext, number: int) -> int:
            await ctx.sleep(0.05)
            return number + 1

        @hf.flow("parent", retry=RetryPolicy(max_attempts=3, backoff_ms=20))
        async def parent(ctx: FlowContext, number: int) -> Any:
            first = await ctx.step("flaky", flaky, number)
            second = await ctx.run(child, key="k", input=first)
            return [second, await ctx.receive("go", timeout=30)]

        workers = [hf.worker(), hf.worker()]
        running = [asyncio.create_task(worker.run()) for worker in workers]
        run = await hf.start(parent, 1, session_id="s")
        await hf.signal(run.run_id, "early", name="go")

        assert await hf.result(run.run_id, timeout=30) == [2, "early"]
        assert calls == [1, 1]

        for worker in workers:
            worker.stop()
        await asyncio.gather(*running)
        await assert_sound(hf)


async def test_a_cancel_reaches_the_body_and_its_next_step_never_begins(hf: Holdfast) -> None:
    calls: list[str] = []

    @hf.flow("f")
    async def flow(ctx: FlowContext, input: Any) -> None:
        async def stop() -> None:
            calls.append("stop")
            await hf.cancel(ctx.run_id)

        async def never() -> None:
            calls.append("never")

        await ctx.step("stop", stop)
        await ctx.sleep(1)
        await ctx.step("never", never)

    run = await hf.start(flow, session_id="s")
    await hf.drain()

    ended = await hf.get_run(run.run_id)
    assert ended is not None
    assert ended.status == "cancelled"
    assert calls == ["stop"]


def test_a_flow_without_a_loop_of_its_own() -> None:
    holdfast = Holdfast(":memory:")

    @holdfast.flow("f")
    async def flow(ctx: FlowContext, name: str) -> Any:
        return await ctx.step("greet", lambda: f"hello {name}")

    with holdfast.sync as hf:
        run = hf.start(flow, "ann", session_id="s")
        hf.advance()

        assert hf.result(run.run_id) == "hello ann"
