"""`check_flow`: recorded journals against the present code, without running a single step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import msgspec

from holdfast.flow.answers import FlowChanged, Suspended
from holdfast.flow.context import FlowContext
from holdfast.flow.definition import Flow
from holdfast.flow.memory import Memory, remembered, result_of
from holdfast.journal import JournalEntry
from holdfast.protocol import facts
from holdfast.protocol.flows import START
from holdfast.protocol.state import RunState
from holdfast.runtime import RunInfo
from holdfast.runtime.records import run_info

LATER = 1 << 62


class FlowMismatch(msgspec.Struct, frozen=True, kw_only=True):
    """A run that the present code cannot go on with."""

    run_id: str
    problem: str


async def check_flow(flow: Flow, journals: Iterable[Sequence[JournalEntry]]) -> list[FlowMismatch]:
    """Which of these journals, each as `journal.read("run:…")` answered it, no longer fit the code of this flow.

    The body runs on the recorded answers; whatever was not recorded stops it. Runs of other flows and versions are
    passed over.
    """
    found = [await _check(flow, journal) for journal in journals if journal]
    return [mismatch for mismatch in found if mismatch is not None]


async def _check(flow: Flow, journal: Sequence[JournalEntry]) -> FlowMismatch | None:
    run_id = journal[0].thread.removeprefix("run:")
    told = [
        (entry.rev, facts.from_value(entry.kind, entry.data), round(entry.at.timestamp() * 1e6)) for entry in journal
    ]
    memory, state = remembered(run_id, told)
    started = memory.answer(START, 0)
    if started is None or state.clog_id != flow.name:
        return None
    begun = result_of(started.fact)
    if str(begun["version"]) != str(flow.version):
        return None
    problem = await _replayed(flow, begun["input"], memory, state)
    return None if problem is None else FlowMismatch(run_id=run_id, problem=problem)


async def _replayed(flow: Flow, input: Any, memory: Memory, state: RunState) -> str | None:
    body = _Recorded(memory, state, flow)
    try:
        await flow.body(body, input)
    except Suspended:
        if state.status == "done" and memory.unvisited() is None:
            return f"the run is done, and the code goes on to {body.beyond!r}"
    except FlowChanged as changed:
        return str(changed)
    except Exception as error:
        if state.status != "failed":
            return f"the body raised {type(error).__name__}: {error}"
    missed = memory.unvisited()
    return None if missed is None else f"step {missed!r} was recorded, and the code no longer comes to it"


class _Recorded(FlowContext):
    """A flow's context that answers from memory and does nothing else."""

    def __init__(self, memory: Memory, state: RunState, flow: Flow) -> None:
        # Time is past every sleep: whether one was over is shown by what was recorded after it.
        tick: Any = SimpleNamespace(state=SimpleNamespace(at=LATER))
        names = ("run_id", "session_id", "user_id", "clog_id", "attempt", "deliveries")
        told = {name: getattr(state, name) for name in names}
        context: Any = SimpleNamespace(**told, tick_id="", signal=None, parent=None, cancelled=False)
        super().__init__(context, tick, memory, flow.retry)
        self._state = state
        self.beyond = ""

    async def child(self, clog_id: str, *, key: str, **options: Any) -> RunInfo:
        known = self._state.child_ids.get(("", clog_id, key))
        if known is None:
            await self._begin(f"child {key}")
        assert known is not None
        return run_info(RunState(run_id=known, clog_id=clog_id), pending_input=None, output=None)

    async def _begin(self, name: str) -> None:
        await super()._begin(name)
        self.beyond = self.beyond or name
        raise Suspended

    async def _run_info(self, run_id: str) -> RunInfo | None:
        return None
