"""Random programs as flows: a few commands in any order, workers that die anywhere, and sums that must be right."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from holdfast import FlowContext, Holdfast, RetryPolicy, RunCancelled, StepFailed
from holdfast.identity import new_id
from holdfast.protocol import commands
from holdfast.testing import simulate

COMMANDS = (
    *("step", "shaky", "failing", "sleep", "receive", "missing", "send", "child", "cancel", "ask", "outbox", "emit"),
    *("tx", "pair"),
)
LENGTH_MAX = 20
BLOCKS = 5
EACH = 20
PATIENT = RetryPolicy(max_attempts=30, backoff_ms=1_000, backoff_max_ms=1_000)
Program = list[str]


def program(seed: int) -> Program:
    chance = random.Random(seed)
    return [chance.choice(COMMANDS) for _ in range(chance.randint(1, LENGTH_MAX))]


def known(todo: Program) -> list[Any]:
    """What each command answers, whatever happens on the way."""
    answers = {
        "step": 1,
        "shaky": 2,
        "failing": "failed",
        "sleep": None,
        "missing": "timeout",
        "send": "posted",
        "child": 7,
        "cancel": "cancelled",
        "ask": True,
        "outbox": "sent",
        "emit": "said",
        "tx": "committed",
        "pair": [3, 4],
    }
    letters = iter(range(LENGTH_MAX))
    return [next(letters) if command == "receive" else answers[command] for command in todo]


class Machine:
    """One program as a flow."""

    def __init__(self, ctx: FlowContext) -> None:
        self.ctx = ctx

    async def play(self, place: int, command: str) -> Any:
        ctx = self.ctx
        match command:
            case "step":
                return await ctx.step("step", self.note, place, 1)
            case "shaky":
                return await ctx.step("shaky", self.shaky, retry=PATIENT)
            case "failing":
                return await self.failing()
            case "sleep":
                return await ctx.sleep(30)
            case "receive":
                return await ctx.receive("letter")
            case "missing":
                return await self.missing()
            case "send":
                return await ctx.step("send", self.send, place)
            case "child":
                return await ctx.run("leaf", key=str(place), input=7, max_deliveries=90)
            case "cancel":
                return await self.cancel(str(place))
            case "ask":
                return (await ctx.approval("ask", expires=20)).expired
            case "outbox":
                await ctx.outbox("mail", place)
                return "sent"
            case "emit":
                await ctx.emit("note", place)
                return "said"
            case "tx":
                return await ctx.tx("tx", outbox=[("mail", place)], events=[("note", place)], result="committed")
            case _:
                return await ctx.gather(self.branch(place, 3), self.branch(place, 4))

    async def note(self, place: int, value: int) -> int:
        await self.ctx.outbox("mail", [place, value])
        return value

    async def shaky(self) -> int:
        # Fails or not by chance alone; every failure is recorded, so it ends some day.
        if await self.ctx.random() < 0.4:
            raise ConnectionError("down")
        return 2

    async def failing(self) -> str:
        async def fail() -> None:
            await self.ctx.outbox("mail", "never")
            raise ValueError("no")

        try:
            await self.ctx.step("failing", fail, retry=RetryPolicy(max_attempts=2))
        except StepFailed:
            return "failed"
        return "?"

    async def missing(self) -> str:
        try:
            await self.ctx.receive("nothing", timeout=15)
        except TimeoutError:
            return "timeout"
        return "?"

    async def send(self, place: int) -> str:
        """A letter to another run. A step that is tried again sends the same one."""
        letter = commands.Signal(
            signal_id=new_id(), name="post", has_input=True, input=place, key=f"letter-{place}", key_digest="same"
        )
        await self.order("box", letter)
        return "posted"

    async def cancel(self, key: str) -> str:
        """Stop a child that would sleep for ever, and hear that it was stopped."""
        child = await self.ctx.child("leaf", key=key, input="never", max_deliveries=90)
        await self.ctx.emit("note", key)
        await self.ctx.sleep(1)
        await self.ctx.step("cancel", self.order, child.run_id, commands.Cancel(), retry=PATIENT)
        try:
            await self.ctx.run("leaf", key=key, input="never", max_deliveries=90)
        except RunCancelled:
            return "cancelled"
        return "?"

    async def order(self, run_id: str, command: Any) -> None:
        """As anybody outside would, but through the database of the process that does it."""
        executed = await self.ctx._tick.journal.execute(run_id, command)
        if executed.decision.refusal is not None:
            raise LookupError(executed.decision.refusal)

    async def branch(self, place: int, value: int) -> int:
        await self.ctx.step("branch", self.note, place, value)
        await self.ctx.sleep(value)
        # Who comes here first gets the lower number, now and in every replay.
        return int(await self.ctx.step("twig", self.note, place, value + 10)) - 10


def expected_mail(todo: Program) -> int:
    each = {"step": 1, "outbox": 1, "tx": 1, "pair": 4}
    return sum(each.get(command, 0) for command in todo)


def story(todo: Program) -> tuple[Callable[[Holdfast], Awaitable[Any]], Callable[[Holdfast], Awaitable[Any]]]:
    async def setup(hf: Holdfast) -> None:
        @hf.flow("leaf")
        async def leaf(ctx: FlowContext, value: Any) -> Any:
            await (ctx.receive("nothing") if value == "never" else ctx.sleep(3))
            return value

        @hf.flow("box")
        async def box(ctx: FlowContext, count: int) -> int:
            return sum([await ctx.receive("post") for _ in range(count)])

        @hf.flow("program")
        async def flow(ctx: FlowContext, given: Program) -> list[Any]:
            machine = Machine(ctx)
            return [await machine.play(place, command) for place, command in enumerate(given)]

        await hf.start(flow, todo, session_id="s", run_id="p", max_deliveries=90)
        await hf.start(box, todo.count("send"), session_id="s", run_id="box", max_deliveries=90)
        for letter in range(todo.count("receive")):
            await hf.signal("p", letter, name="letter")

    async def check(hf: Holdfast) -> None:
        run = await hf.get_run("p")
        assert run is not None
        assert (run.status, run.output) == ("done", known(todo)), (todo, run)
        sent = Counter(await hf.journal.store.fetch("SELECT payload FROM {s}outbox"))
        assert sum(sent.values()) == expected_mail(todo), (todo, sent)
        ends = Counter(item.status for item in (await hf.list_runs(clog_id="leaf", limit=100)).items)
        assert (ends["done"], ends["cancelled"]) == (todo.count("child"), todo.count("cancel")), (todo, ends)
        posted = await hf.get_run("box")
        assert posted is not None
        sent_by = [place for place, command in enumerate(todo) if command == "send"]
        assert (posted.status, posted.output) == ("done", sum(sent_by)), (todo, posted)

    return setup, check


def play(seeds: range) -> None:
    for seed in seeds:
        setup, check = story(program(seed))
        simulate(setup, seeds=[seed], check=check)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("block", range(BLOCKS))
def test_random_programs_come_to_their_known_end(block: int) -> None:
    play(range(block * EACH, (block + 1) * EACH))


@pytest.mark.slow
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("block", range(20))
def test_two_thousand_random_programs(block: int) -> None:
    play(range(block * 100, (block + 1) * 100))
