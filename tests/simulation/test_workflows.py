"""Workflows under seeded schedules: random graphs, workers that die at every commit, and results that are known."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from holdfast import Fail, Holdfast, RetryPolicy, Workflow
from holdfast.testing import simulate
from tests.simulation.playing import BEFORE_OR_AFTER, blocks, dies_at_every_commit

BLOCKS = blocks(1, 8)
EACH = 15
PATIENT = RetryPolicy(max_attempts=9, backoff_ms=100)


class Plan:
    """A random graph, and what its run must come to."""

    def __init__(self, seed: int) -> None:
        chance = random.Random(seed)
        self.names = [f"n{number}" for number in range(chance.randint(1, 10))]
        self.parents = {
            name: sorted(chance.sample(self.names[:place], min(place, chance.randint(0, 3))))
            for place, name in enumerate(self.names)
        }
        kinds = ("step", "step", "shaky", "sync", "wait", "ask", "skipped", "map")
        self.kinds = {name: chance.choice(kinds) for name in self.names}
        for name, kind in self.kinds.items():
            if kind == "map" and not self.parents[name]:
                self.kinds[name] = "step"
        self.items = {name: chance.randint(0, 6) for name in self.names}
        self.results: dict[str, Any] = {}
        for name in self.names:
            self.results[name] = self.result(name)
        self.leaves = [name for name in self.names if not any(name in after for after in self.parents.values())]

    def result(self, name: str) -> Any:
        match self.kinds[name]:
            case "wait" | "skipped":
                return None
            case "ask":
                return "asked"
            case "map":
                return [number * 2 for number in range(self.items[self.parents[name][0]])]
            case _:
                # Lists are what maps go over, so every plain step answers one.
                return list(range(self.items[name]))

    def is_sound(self) -> bool:
        """A map goes over its first parent, which must answer a list."""
        maps = [name for name in self.names if self.kinds[name] == "map"]
        return all(self.kinds[self.parents[name][0]] in ("step", "shaky", "sync") for name in maps)

    def workflow(self) -> Workflow:
        flow = Workflow("random")
        for name in self.names:
            self._declare(flow, name)
        return flow

    def _declare(self, flow: Workflow, name: str) -> None:
        after, kind = self.parents[name], self.kinds[name]
        expected = {parent: self.results[parent] for parent in after}

        def same(given: dict[str, Any]) -> bool:
            plain = {parent: given[parent] for parent in after if self.kinds[parent] != "ask"}
            return plain == {parent: value for parent, value in expected.items() if self.kinds[parent] != "ask"}

        async def step(ctx: Any, first: Any = None, **given: Any) -> Any:
            assert same(given), (name, given)
            if kind == "shaky" and ctx.attempt < 2:
                raise ValueError("shaky")
            await ctx.outbox("effects", {"step": name})
            return self.results[name]

        def sync(ctx: Any, first: Any = None, **given: Any) -> Any:
            assert same(given), (name, given)
            ctx.outbox("effects", {"step": name})
            return self.results[name]

        async def double(ctx: Any, item: int) -> int:
            await ctx.outbox("effects", {"step": name, "item": item})
            return item * 2

        match kind:
            case "wait":
                flow.wait(name, seconds=7, after=after)
            case "ask":
                flow.approval(name, after=after, expires=20, on_expiry="approve")
            case "map":
                flow.map(name, over=after[0], after=after, limit=2, retry=PATIENT)(double)
            case "skipped":
                flow.step(name, after=after, when=lambda results: False)(step)
            case _:
                flow.step(name, after=after, retry=PATIENT)(sync if kind == "sync" else step)

    def effects(self) -> int:
        plain = sum(1 for kind in self.kinds.values() if kind in ("step", "shaky", "sync"))
        return plain + sum(len(self.results[name]) for name, kind in self.kinds.items() if kind == "map")


def told(plan: Plan) -> tuple[Callable[[Holdfast], Awaitable[None]], Callable[[Holdfast], Awaitable[None]]]:
    async def story(hf: Holdfast) -> None:
        hf.register(plan.workflow())
        await hf.start("random", session_id="s", run_id="w", max_deliveries=50)

    async def is_right(hf: Holdfast) -> None:
        run = await hf.get_run("w")
        assert run is not None
        assert run.status == "done", run
        plain = {name: value for name, value in run.output.items() if plan.kinds[name] != "ask"}
        assert plain == {name: plan.results[name] for name in plan.leaves if plan.kinds[name] != "ask"}
        sent = await hf.journal.store.fetch("SELECT payload FROM {s}outbox")
        assert len(sent) == len(set(sent)) == plan.effects(), sent
        planned = Counter(
            (entry.kind, entry.data["runnable_key"])
            for entry in await hf.journal.read("run:w")
            if entry.kind in ("runnable_planned", "runnable_applied", "attempt_completed")
        )
        assert set(planned.values()) == {1}, planned

    return story, is_right


def plans(seeds: range) -> list[tuple[int, Plan]]:
    return [(seed, plan) for seed in seeds if (plan := Plan(seed)).is_sound()]


@pytest.mark.clause("S-25")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("block", BLOCKS)
def test_a_random_graph_comes_to_what_it_must(block: int) -> None:
    drawn = plans(range(block * EACH, (block + 1) * EACH))

    for seed, plan in drawn:
        story, is_right = told(plan)
        simulate(story, seeds=range(seed * 3, seed * 3 + 3), check=is_right)

    assert len(drawn) > EACH / 3


async def saga(hf: Holdfast) -> None:
    flow = Workflow("saga")

    @flow.step()
    async def load(ctx: Any, input: Any) -> list[int]:
        await ctx.outbox("effects", "load")
        return [1, 2, 3]

    @flow.compensate("load")
    async def unload(ctx: Any, result: list[int]) -> None:
        await ctx.outbox("effects", "undo load")

    @flow.map("lines", over="load", limit=2)
    async def line(ctx: Any, item: int) -> int:
        await ctx.outbox("effects", item)
        return item

    @flow.compensate("lines")
    async def unline(ctx: Any, result: list[int]) -> None:
        await ctx.outbox("effects", f"undo {result}")

    flow.approval("ask", after=["lines"], expires=10, on_expiry="approve")

    @flow.step(after=["ask"])
    async def child(ctx: Any, ask: Any) -> None:
        await ctx.child("leaf", key="k", input=1, max_deliveries=50)

    @flow.step(after=["child"], retry=RetryPolicy(max_attempts=2, backoff_ms=10))
    async def pay(ctx: Any, child: Any) -> Fail:
        raise ValueError("no money")

    @hf.flow("leaf")
    async def leaf(ctx: Any, input: int) -> int:
        return input

    hf.register(flow)
    await hf.start(flow, session_id="s", run_id="w", max_deliveries=50)


async def is_undone(hf: Holdfast) -> None:
    run = await hf.get_run("w")
    assert run is not None
    assert (run.status, run.last_error) == ("failed", "step pay failed: no money"), run
    sent = await hf.journal.store.fetch("SELECT payload FROM {s}outbox")
    undone = ['"undo [1,2,3]"', '"undo [1, 2, 3]"', '"undo load"']
    assert len(sent) == 6, sent
    assert sum(payload in undone for (payload,) in sent) == 2, sent
    (child,) = await hf.journal.store.fetch("SELECT child_run_id FROM {s}children WHERE run_id = 'w'")
    ended = await hf.get_run(child[0])
    assert ended is not None
    assert ended.status == "done"


@pytest.mark.clause("S-22", "S-23")
@pytest.mark.timeout(300)
@BEFORE_OR_AFTER
def test_a_worker_may_die_at_every_single_commit_of_a_workflow(sides: tuple[bool, ...]) -> None:
    assert dies_at_every_commit(saga, is_undone, sides) > 25
