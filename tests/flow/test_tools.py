"""Tools in flows: in the body memoised like a step, in a step kept though the step is tried again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import Holdfast, RetryPolicy, StepFailed, check_flow
from tests.conftest import FakeClock
from tests.contract.builders import LEASE_S, look


class Bank:
    def __init__(self, clock: FakeClock) -> None:
        self.keys: list[str] = []
        self.dies = 0
        self._clock = clock

    def charge(self, args: Any, key: str) -> Any:
        self.keys.append(key)
        if self.dies:
            self.dies -= 1
            self._clock.advance(LEASE_S)
        return {"charged": args}


@pytest.fixture
def bank(clock: FakeClock) -> Bank:
    return Bank(clock)


async def go_on(hf: Holdfast) -> None:
    for _ in range(4):
        await hf.drain()


async def test_a_tool_in_the_body_runs_once_however_often_the_body_does(hf: Holdfast, bank: Bank) -> None:
    @hf.flow("pay")
    async def pay(ctx: Any, amount: int) -> Any:
        first = await ctx.tool("charge", amount, bank.charge)
        await ctx.sleep(60)
        second = await ctx.tool("charge", amount, bank.charge)
        await ctx.sleep(60)
        return [first, second]

    run = await hf.start(pay, 5, session_id="s")
    await go_on(hf)

    assert (await look(hf, run.run_id)).output == [{"charged": 5}, {"charged": 5}]
    assert len(set(bank.keys)) == len(bank.keys) == 2
    calls = await hf.audit.list_tool_calls_by_parent(run.run_id)
    assert [req.status for req, _ in calls] == ["completed", "completed"]
    types = [event.type async for event in hf.events(run.run_id)]
    assert types.count("tool_call") == types.count("tool_result") == 2


async def test_a_tool_in_a_step_keeps_its_answer_when_the_step_is_tried_again(hf: Holdfast, bank: Bank) -> None:
    tries: list[int] = []

    @hf.flow("pay", retry=RetryPolicy(max_attempts=3, backoff_ms=10))
    async def pay(ctx: Any, amount: int) -> Any:
        async def step() -> Any:
            answer = await ctx.tool("charge", amount, bank.charge)
            tries.append(1)
            if len(tries) < 3:
                raise ConnectionError("after the tool")
            return answer

        return await ctx.step("pay", step)

    run = await hf.start(pay, 5, session_id="s")
    await go_on(hf)

    assert (await look(hf, run.run_id)).output == {"charged": 5}
    assert len(tries) == 3
    assert len(bank.keys) == 1


async def test_a_tool_that_fails_in_the_body_fails_so_in_every_replay(hf: Holdfast) -> None:
    calls: list[Any] = []

    def broken(args: Any) -> None:
        calls.append(args)
        raise ValueError("no such account")

    @hf.flow("pay")
    async def pay(ctx: Any, amount: int) -> Any:
        try:
            await ctx.tool("charge", amount, broken)
        except StepFailed as error:
            await ctx.sleep(60)
            return error.kind
        return None

    run = await hf.start(pay, 5, session_id="s")
    await go_on(hf)

    assert (await look(hf, run.run_id)).output == "ValueError"
    assert calls == [5]


@pytest.mark.parametrize("in_step", [True, False])
@pytest.mark.parametrize("policy", ["retry", "ask"])
async def test_an_unknown_tool_of_a_flow_runs_again_with_its_key(
    hf: Holdfast, bank: Bank, in_step: bool, policy: str
) -> None:
    @hf.flow("pay")
    async def pay(ctx: Any, amount: int) -> Any:
        async def use() -> Any:
            return await ctx.tool("charge", amount, bank.charge, on_unknown=policy)

        return await (ctx.step("pay", use) if in_step else use())

    bank.dies = 1
    run = await hf.start(pay, 5, session_id="s")
    await go_on(hf)
    if policy == "ask":
        assert (await look(hf, run.run_id)).status == "paused"
        assert len(bank.keys) == 1
        await hf.approve(run.run_id, actor="ada")
        await go_on(hf)

    assert (await look(hf, run.run_id)).output == {"charged": 5}
    assert len(bank.keys) == 2
    assert len(set(bank.keys)) == 1


async def test_tools_side_by_side_keep_their_answers_apart(hf: Holdfast) -> None:
    calls: list[int] = []

    async def slowly(args: int) -> int:
        calls.append(args)
        await asyncio.sleep(0.01 * (3 - args))
        return args

    @hf.flow("fan")
    async def fan(ctx: Any, given: Any) -> Any:
        answers = await ctx.gather(*(ctx.tool("wait", number, slowly) for number in range(4)))
        await ctx.sleep(60)
        return answers

    run = await hf.start(fan, session_id="s")
    await go_on(hf)

    assert (await look(hf, run.run_id)).output == [0, 1, 2, 3]
    assert sorted(calls) == [0, 1, 2, 3]
    assert await check_flow(fan, [await hf.journal.read(f"run:{run.run_id}")]) == []


async def test_a_fork_keeps_answers_and_asks_anew_for_what_was_only_asked_for(hf: Holdfast, bank: Bank) -> None:
    @hf.flow("pay")
    async def pay(ctx: Any, amount: int) -> Any:
        first = await ctx.tool("charge", 1, bank.charge)
        second = await ctx.tool("charge", 2, bank.charge)
        return [first, second]

    run = await hf.start(pay, 5, session_id="s")
    await go_on(hf)
    requests = [e.rev for e in await hf.journal.read(f"run:{run.run_id}") if e.kind == "tool_requested"]

    copy = await hf.fork(run.run_id, at_rev=requests[1])
    await go_on(hf)

    assert (await look(hf, copy.run_id)).output == [{"charged": 1}, {"charged": 2}]
    assert len(set(bank.keys)) == 3
    (again,) = await hf.audit.list_tool_calls_by_parent(copy.run_id)
    assert again[0].status == "completed"
