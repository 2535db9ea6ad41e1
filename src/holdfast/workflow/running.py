"""`Workflows`: a workflow as a clog whose handler the library supplies. A tick is one step, or a look at the whole."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import msgspec

from holdfast.errors import InvalidValue
from holdfast.flow.answers import Decision
from holdfast.handlers import ClaimedTick, Clog, Context
from holdfast.handlers.context import BlockingContext
from holdfast.handlers.threads import in_thread, is_async
from holdfast.protocol import commands
from holdfast.protocol.commands import Plan
from holdfast.protocol.facts import ROOT
from holdfast.protocol.graphs import CHANGED, UNDO, Node, index_of, map_of, step_of
from holdfast.protocol.outcomes import Continue, Done, Fail, Ok, Outcome, Retry, Wait
from holdfast.protocol.planning import ended_by, unhandled, verdict
from holdfast.protocol.state import RunState
from holdfast.protocol.values import clean
from holdfast.workflow.checking import accepted
from holdfast.workflow.definition import ITEMS_MAX, Workflow
from holdfast.workflow.results import Results

INVALID_INPUT = "invalid_input"


class Workflows:
    """The definitions of one workflow that this process knows. A run follows the one it began with."""

    def __init__(self, name: str) -> None:
        self.clog = Clog(name)
        self.clog.on_advance(self._advance)
        self._definitions: dict[str, Workflow] = {}
        self._newest: Workflow | None = None
        self._results = Results()

    def add(self, workflow: Workflow) -> None:
        """The definition that was added last is the one that new runs begin with."""
        self._definitions[workflow.fingerprint] = workflow
        self._newest = workflow

    @property
    def newest(self) -> str | None:
        """The fingerprint of what new runs begin with."""
        return self._newest.fingerprint if self._newest else None

    async def _advance(self, input: Any, context: Context) -> Outcome:
        tick = context.tick
        assert isinstance(tick, ClaimedTick)
        tick.is_flow = True
        workflow = self._newest if tick.state.definition is None else self._definitions.get(tick.state.definition)
        if workflow is None:
            text = f"the definition of workflow {self.clog.name} that this run began with is not registered here"
            return Fail(f"{text}; keep the old definition beside a changed one until its runs are over", kind=CHANGED)
        tick.plan = Plan(graph=workflow.graph)
        work = _Tick(workflow, tick, context, self._results)
        try:
            return await (work.look() if tick.key == ROOT else work.step())
        except InvalidValue as error:
            if error.code != INVALID_INPUT:
                raise
            # It would come to the same whenever it is tried again.
            return Fail(str(error), kind=INVALID_INPUT)


class _Tick:
    """One claim on a workflow's run, and what it has to do."""

    def __init__(self, workflow: Workflow, tick: ClaimedTick, context: Context, results: Results) -> None:
        self._workflow = workflow
        self._graph = workflow.graph
        self._tick = tick
        self._context = context
        self._results = results
        self._journal = tick.journal
        self._run_id = tick.state.run_id

    async def look(self) -> Outcome:
        """The run's own tick: plan what is ready, or end the run."""
        state = (await self._journal.slices([self._run_id], with_steps=True))[self._run_id]
        match verdict(self._graph, state):
            case "done":
                return Done(await self._output(state))
            case "failed":
                return await self._failure(state)
            case _:
                workflow = self._workflow
                if state.definition is None:
                    workflow.given(await self._results.input(self._journal, self._run_id))
                self._tick.plan = Plan(
                    graph=self._graph, version=workflow.version, fingerprint=workflow.fingerprint, looks=True
                )
                return Ok()

    async def step(self) -> Outcome:
        """A step's tick: an outcome counts as what it says, anything else is the step's result."""
        key = self._tick.key
        node = self._graph.by_name.get(step_of(key))
        if node is None:
            return Fail(f"workflow {self._workflow.name} has no step {step_of(key)!r}", kind="unknown_step")
        if key.startswith(UNDO):
            return await self._undo(node)
        if map_of(key):
            return await self._item(node, index_of(key))
        given = await self._results.of(self._journal, self._run_id, self._graph, node.after)
        code = self._workflow.code[node.name]
        if code.when is not None or node.kind != "wait":
            given["input"] = self._workflow.given(await self._results.input(self._journal, self._run_id))
        if node.name in self._graph.routes:
            given["error"] = await self._error_into(node)
        if code.when is not None and not code.when(dict(given)):
            self._tick.plan = Plan(graph=self._graph, skipped=True)
            return Done(None)
        match node.kind:
            case "wait":
                return Done(None)
            case "map":
                return await self._expand(node)
            case "approval" | "pause":
                return await self._ask(node, given)
            case _:
                return await self._call_step(node, given)

    async def _call_step(self, node: Node, given: dict[str, Any]) -> Outcome:
        code = self._workflow.code[node.name]
        assert code.function is not None
        if not node.after and node.name not in self._graph.routes:
            return await self._call(code.function, (given["input"],), code.timeout)
        return await self._call(code.function, (), code.timeout, accepted(code.function, given))

    async def _item(self, node: Node, index: int) -> Outcome:
        code = self._workflow.code[node.name]
        assert node.over is not None
        assert code.function is not None
        items = await self._results.list_of(self._journal, self._run_id, self._graph, node.over)
        # A copy: the list is kept for its other items, and a step may do with its own what it likes.
        return await self._call(code.function, (deepcopy(items[index]),), code.timeout)

    async def _expand(self, node: Node) -> Outcome:
        assert node.over is not None
        items = await self._results.list_of(self._journal, self._run_id, self._graph, node.over)
        if not isinstance(items, list) or len(items) > ITEMS_MAX:
            what = f"a list of {len(items)}" if isinstance(items, list) else f"a {type(items).__name__}"
            text = (
                f"{node.name} goes over the result of {node.over}, which is {what}; return a list of up to {ITEMS_MAX}"
            )
            return Fail(text, kind="invalid_map")
        self._tick.plan = Plan(graph=self._graph, items=len(items))
        return Ok()

    async def _ask(self, node: Node, given: dict[str, Any]) -> Outcome:
        """Open the question and let go; the answer makes the step claimable again."""
        answer = await self._results.answer(self._journal, self._run_id, node.name)
        if answer is None:
            details = self._workflow.code[node.name].details
            shown, repaired = clean(details(dict(given)) if callable(details) else details or {})
            await self._tick.order(
                commands.OpenBoundary,
                known=False,
                step=node.name,
                boundary=node.kind,
                metadata=shown,
                expires_us=node.expires_us,
                repaired=repaired,
            )
            # Another question may be open already. Either way nobody can claim this step before it is answered.
            return Continue()
        if node.kind == "pause":
            return Done(None)
        if answer.expired and node.on_expiry == "approve":
            answer = msgspec.structs.replace(answer, approved=True)
        return Done(msgspec.to_builtins(answer)) if answer.approved else _rejected(node, answer)

    async def _undo(self, node: Node) -> Outcome:
        results = await self._results.of(self._journal, self._run_id, self._graph, [node.name])
        return await self._call(self._workflow.undos[node.name], (results[node.name],))

    async def _call(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        timeout: float | None = None,
        named: dict[str, Any] | None = None,
    ) -> Outcome:
        given = named or {}
        async with asyncio.timeout(timeout):
            if is_async(function):
                answer = await function(self._context, *args, **given)
            else:
                blocking = BlockingContext(self._context, asyncio.get_running_loop())
                answer = await in_thread(lambda: function(blocking, *args, **given))
                answer = await answer if inspect.isawaitable(answer) else answer
        if isinstance(answer, Ok | Done | Continue | Wait | Retry | Fail):
            return answer
        return Done(answer)

    async def _error_into(self, node: Node) -> dict[str, Any]:
        """What failed into this error route: the first of the steps that name it."""
        state = (await self._journal.slices([self._run_id], with_steps=True))[self._run_id]
        sources = {each.name for each in self._graph.nodes if each.on_error == node.name}
        failed = [item for item in state.runnables.values() if item.key in sources and item.status == "failed"]
        first = min(failed, key=lambda item: item.result_rev or 0)
        assert first.result_rev is not None
        fact = await self._results.failure(self._journal, self._run_id, first.result_rev)
        return {"step": first.step, "message": fact.error, "kind": fact.error_kind}

    async def _output(self, state: RunState) -> dict[str, Any]:
        found = await self._results.of(self._journal, self._run_id, self._graph, self._graph.leaves)
        return {name: msgspec.to_builtins(value) for name, value in found.items()}

    async def _failure(self, state: RunState) -> Fail:
        failed = unhandled(self._graph, state)
        assert failed is not None
        assert failed.result_rev is not None
        fact = await self._results.failure(self._journal, self._run_id, failed.result_rev)
        text = ended_by(failed.step, fact.error)
        stuck = [item.step for item in state.runnables.values() if _is_stuck(item.key, item.status)]
        if stuck:
            text += f" (and {', '.join(sorted(stuck))} could not be undone)"
        return Fail(text, kind=fact.error_kind or "error")


def _is_stuck(key: str, status: str) -> bool:
    return key.startswith(UNDO) and status == "failed"


def _rejected(node: Node, answer: Decision) -> Fail:
    if answer.expired:
        return Fail(f"nobody answered {node.name} in time", kind="approval_expired")
    return Fail(answer.comment or f"{node.name} was rejected by {answer.actor}", kind="rejected")
