"""Programs for the failpoint suite: each is a whole life of some runs, with people and letters, and a known end.

A program must be safe to begin again: whoever comes after a crash does everything from the start, and only what was
not yet done may happen. To have another kind of run killed at every commit, add a program to `LIVES`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from holdfast import Clog, Context, Continue, Done, FlowContext, Holdfast, Retry, Workflow

DRAINS_MAX = 30


class Life:
    """One program on one database, with a diary of what it did outside."""

    runs: Sequence[str] = ()
    """Runs that the program begins; those that they start are found by their parents."""
    effects: Sequence[str] = ()
    """What is done outside the database, each thing once when nothing crashes."""
    races: frozenset[str] = frozenset()
    """Events that depend on who is faster, crash or not."""

    def __init__(self, hf: Holdfast, diary: str, ledger: str) -> None:
        self.hf = hf
        self.ledger = ledger
        self._diary = os.open(diary, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def note(self, what: str) -> str:
        """Do something in the world outside, which nothing takes back."""
        os.write(self._diary, f"{what}\n".encode())
        return what

    def register(self) -> None:
        raise NotImplementedError

    async def begin(self) -> None:
        raise NotImplementedError

    async def answer(self) -> None:
        """What people do when they come by."""

    async def live(self) -> None:
        """From wherever it stands to its end."""
        await self.hf.journal.store.execute((f"CREATE TABLE IF NOT EXISTS {self.ledger} (amount integer)", ()))
        await self.begin()
        for _ in range(DRAINS_MAX):
            await self.hf.drain()
            while await self.hf.journal.sweep():
                pass
            await self.answer()
            if await self._is_over():
                return
        raise AssertionError("the program does not come to its end")

    async def _is_over(self) -> bool:
        store = self.hf.journal.store
        ((open_runs,),) = await store.fetch(
            "SELECT count(*) FROM {s}runs WHERE status NOT IN ('done', 'failed', 'cancelled')"
        )
        return open_runs == 0 and not await store.handoffs()


class Order(Life):
    """A flow with everything: steps, a child, a transaction, a question, a sleep, a letter, deliveries."""

    runs = ("order",)
    effects = ("reserve", "pack", "charge")

    def register(self) -> None:
        hf = self.hf

        @hf.flow("parcel")
        async def parcel(ctx: FlowContext, weight: int) -> int:
            await ctx.emit("note", "parcel")
            packed = await ctx.step("pack", self.note, "pack")
            await ctx.outbox("mail", packed)
            return weight + 1

        @hf.flow("order")
        async def order(ctx: FlowContext, amount: int) -> Any:
            async def reserve() -> str:
                await ctx.emit("note", "reserving")
                await ctx.outbox("mail", "reserved", key="reserved")
                return self.note("reserve")

            await ctx.emit("note", "begun")
            first = await ctx.step("reserve", reserve)
            weight = await ctx.run(parcel, key="only", input=amount)
            entry = (f"INSERT INTO {self.ledger} (amount) VALUES ($1)", (amount,))
            await ctx.tx("book", [entry], outbox=[("mail", "booked")], events=[("note", "booked")])
            decision = await ctx.approval("go", details={"amount": amount})
            await ctx.sleep(60)
            letter = await ctx.receive("address")
            charged = await ctx.step("charge", self.note, "charge", irreversible=True)
            await ctx.outbox("mail", "done")
            return [first, weight, decision.actor, letter, charged]

    async def begin(self) -> None:
        await self.hf.start("order", 5, session_id="s", run_id="order")
        await self.hf.signal("order", "here", name="address", key="address")

    async def answer(self) -> None:
        for question in (await self.hf.approvals()).items:
            told = {"actor": "ann", "comment": "fine", "seen_rev": question.rev, "key": "go"}
            for _ in range(2):
                await self.hf.approve(question.run_id, step="go", **told)  # type: ignore[arg-type]


class Stopped(Life):
    """A flow that is paused by hand, goes on, and is stopped while one child shares its fate and one does not."""

    runs = ("parent",)
    effects = ("work",)

    def register(self) -> None:
        hf = self.hf

        @hf.flow("helper")
        async def helper(ctx: FlowContext, word: str) -> str:
            if word == "stay":
                await ctx.receive("never")
            await ctx.sleep(30)
            return str(await ctx.step("work", self.note, "work"))

        @hf.flow("parent")
        async def parent(ctx: FlowContext, input: Any) -> None:
            async def start() -> None:
                await ctx.child("helper", key="free", input="go", on_cancel="abandon")
                await ctx.outbox("mail", "started")

            await ctx.pause("look")
            await ctx.step("start", start)
            await ctx.run("helper", key="bound", input="stay")

    async def begin(self) -> None:
        await self.hf.start("parent", session_id="s", run_id="parent")

    async def answer(self) -> None:
        for question in (await self.hf.approvals(kind="pause")).items:
            await self.hf.resume(question.run_id, actor="ann", step="look", key="look")
        run = await self.hf.inspect("parent")
        assert run is not None
        if len(run.child_runs) == 2 and not run.terminal:
            await self.hf.cancel("parent", "enough", actor="ann")


class Errand(Life):
    """Clogs without a flow: storage, a child with the outcome, a retry, and an approval by hand."""

    runs = ("errand",)
    effects = ("helper",)
    races = frozenset({"child_finished"})

    def register(self) -> None:
        errand, helper = Clog("errand"), Clog("runner")
        self.hf.register(errand, helper)

        @errand.on_advance
        async def advance(given: Any, ctx: Context) -> Any:
            (count,) = await ctx.read(("run",))
            await ctx.write(("run.set", (count or 0) + 1))
            await ctx.emit("note", count)
            if count is None:
                await ctx.child("runner", key="k", input="go")
                await ctx.outbox("mail", "sent", key="sent")
                return Continue("more")
            if ctx.attempt == 0:
                return Retry("not yet", after=5)
            return Done(count)

        @helper.on_advance
        async def run(given: Any, ctx: Context) -> Any:
            return Done(self.note("helper"))

    async def begin(self) -> None:
        known = await self.hf.create_run(session_id="s", clog_id="errand", run_id="errand", input="go")
        if known.rev == 1:
            await self.hf.pause("errand", "first", "approval", {"why": "new"})

    async def answer(self) -> None:
        for question in (await self.hf.approvals()).items:
            await self.hf.approve(question.run_id, actor="ann", seen_rev=question.rev, key="first")


class Bill(Life):
    """A workflow: two steps at once and a join, a child, a wait, a question, and what is sent on the way."""

    runs = ("bill",)
    effects = ("load", "left", "right", "join", "paid")
    races = frozenset({"child_finished"})

    def register(self) -> None:
        hf = self.hf
        flow = Workflow("bill")

        @hf.flow("receipt")
        async def receipt(ctx: FlowContext, word: str) -> str:
            return word

        @flow.step()
        async def load(ctx: Context, input: int) -> int:
            await ctx.outbox("mail", "loaded", key="loaded")
            self.note("load")
            return input

        @flow.step(after=["load"])
        async def left(ctx: Context, load: int) -> int:
            await ctx.child("receipt", key="k", input=self.note("left"))
            return load + 1

        @flow.step(after=["load"])
        async def right(ctx: Context, load: int) -> int:
            self.note("right")
            return load + 2

        @flow.step(after=["left", "right"])
        async def join(ctx: Context, left: int, right: int) -> int:
            self.note("join")
            return left + right

        flow.wait("cool", seconds=5, after=["join"])
        flow.approval("manager", after=["cool"])

        @flow.step(after=["manager", "join"], irreversible=True)
        async def paid(ctx: Context, join: int, **rest: Any) -> int:
            self.note("paid")
            return join

        hf.register(flow)

    async def begin(self) -> None:
        await self.hf.start("bill", 5, session_id="s", run_id="bill")

    async def answer(self) -> None:
        for question in (await self.hf.approvals()).items:
            await self.hf.approve(question.run_id, actor="ann", seen_rev=question.rev, key="manager")


LIVES: dict[str, type[Life]] = {"order": Order, "stopped": Stopped, "errand": Errand, "bill": Bill}
