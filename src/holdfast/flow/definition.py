"""`Flow`: a durable function by name and version, as a clog whose handler the library supplies."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from holdfast.errors import RunFailed
from holdfast.flow.answers import FlowChanged, StepFailed, Suspended
from holdfast.flow.context import FlowContext
from holdfast.flow.memory import Memory, load, result_of
from holdfast.handlers import ClaimedTick, Clog, Context
from holdfast.identity import check_id, check_name
from holdfast.moments import from_us
from holdfast.protocol import commands
from holdfast.protocol.backoff import RetryPolicy
from holdfast.protocol.flows import START, handler_of
from holdfast.protocol.outcomes import Done, Fail, Outcome, Wait

Body = Callable[[FlowContext, Any], Awaitable[Any]]
CHANGED = "flow_changed"
ADVICE = "give changed code a new version, and keep the old one until its runs are over"


async def _alone(work: Awaitable[Any]) -> Any:
    """What a body's own task group wrapped up comes out as what it is; an error counts before a wait."""
    try:
        return await work
    except BaseExceptionGroup as group:
        changed, others = group.split(FlowChanged)
        _, errors = others.split(Suspended) if others is not None else (None, None)
        if changed is not None:
            raise _first(changed) from group
        if errors is not None:
            raise errors from None
        raise _first(group) from group


def _first(group: BaseExceptionGroup[Any]) -> BaseException:
    inner = group.exceptions[0]
    return _first(inner) if isinstance(inner, BaseExceptionGroup) else inner


class Flow:
    """A body and what it is known as. Calling it is calling the body, for tests of its own."""

    def __init__(self, name: str, body: Body, *, version: int | str = 1, retry: RetryPolicy | None = None) -> None:
        self.name = check_id(name, "flow name")
        check_name(str(version), "flow version", longest=128)
        self.version = version
        self.retry = retry or RetryPolicy()
        self.body = body

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self.body(*args, **options)


class Flows:
    """The versions of one flow that this process knows. A run goes on with the version it began with.

    A run whose version is not known here is never claimed here: its work item names the version it needs.
    """

    def __init__(self, name: str) -> None:
        self.clog = Clog(name)
        self.clog.on_advance(self._advance)
        self._versions: dict[str, Flow] = {}
        self._newest: Flow | None = None

    def add(self, flow: Flow) -> None:
        """The flow that was added last is the one that new runs begin with."""
        if self._versions.setdefault(str(flow.version), flow) is not flow:
            raise ValueError(f"flow {flow.name} has a version {flow.version} already; give the new code a new version")
        self.clog.handlers = (*self.clog.handlers, handler_of(flow.name, flow.version))
        self._newest = flow

    async def _advance(self, input: Any, context: Context) -> Outcome:
        tick = context.tick
        assert isinstance(tick, ClaimedTick)
        assert self._newest is not None
        memory = Memory() if tick.is_first else await load(tick.journal, tick.state.run_id)
        tick.is_flow = True
        started = memory.answer(START, 0)
        if started is None:
            begun = {"version": self._newest.version, "input": input}
            tick.order_first(commands.RecordStep, name=START, result=begun)
        else:
            begun = result_of(started.fact)
        flow = self._versions[str(begun["version"])]
        body = FlowContext(context, tick, memory, flow.retry)
        try:
            outcome: Outcome = Done(await _alone(flow.body(body, begun["input"])))
        except Suspended:
            until, tick.awaits = body.rest()
            outcome = Wait(until=None if until is None else from_us(until))
        except FlowChanged as changed:
            return Fail(f"{changed}; {ADVICE}", kind=CHANGED)
        except (StepFailed, RunFailed) as error:
            # It was tried as often as it may be; running the body again would only find the same answer.
            outcome = Fail(str(error), kind=getattr(error, "kind", "") or error.code)
        missed = memory.unvisited()
        if missed is not None:
            return Fail(f"step {missed!r} was recorded, and the code no longer comes to it; {ADVICE}", kind=CHANGED)
        return outcome
