"""Flows: which steps have answers, and what a sleeping body is woken by.

A flow's body runs from its beginning in every tick; what it did before is answered from its recorded steps. So it must
be woken only by what it waits for, and each thing it received must stay received.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from holdfast.protocol import facts
from holdfast.protocol.facts import ROOT
from holdfast.protocol.state import RunState, Step

STATUSES = frozenset({"done", "failed", "retry", "begun"})
UNANSWERED = frozenset({"retry", "begun"})
"""A step that is not over: it is tried (again)."""
START = "@start"
"""The step that every flow records first: its version and its input."""
OURS = "@"
"""What the names of the library's own steps begin with."""
RECEIVE = "@receive:"
APPROVAL = "@approval:"
TOOL = "@tool:"


def awaited(signal_name: str | None) -> str:
    return f"signal:{signal_name or ''}"


def is_satisfied(state: RunState, awaits: Iterable[str]) -> bool:
    """Has any of these things happened already?"""
    return any(_has_happened(state, *what.split(":", 1)) for what in awaits)


def _has_happened(state: RunState, kind: str, name: str) -> bool:
    match kind:
        case "signal":
            return oldest_signal(state, name or None) is not None
        case "child":
            child = state.children.get(name)
            return child is not None and child.status is not None
        case "approval":
            # Answered, whether or not somebody has opened another question since.
            return state.boundary is None or state.boundary.step != name
        case _:
            return False


def oldest_signal(state: RunState, name: str | None) -> int | None:
    """The signal of this name that has waited longest. One that is bound to a tick as its input is not waiting."""
    waiting = (seq for seq in state.mailbox if seq != state.input_rev)
    return next((seq for seq in waiting if state.signals[seq].name == name), None)


def wake(state: RunState, what: str, at: int) -> RunState:
    """The body's next tick is due now, if it waits for this."""
    root = state.work.get(ROOT)
    if root is None or root.claim is not None or not root.waiting or what not in root.awaits:
        return state
    return replace(state, wake_at=None).with_work(replace(root, visible_at=at, waiting=False, awaits=()))


def record(state: RunState, fact: facts.StepRecorded) -> RunState:
    """Remember the answer, and that what was said for it stays said."""
    known = state.steps.get((fact.name, fact.occurrence))
    if known is not None and not _is_news(known, fact):
        return state
    step = Step(rev=state.rev, status=fact.status, attempt=fact.attempt)
    state = replace(state, steps=state.steps.set((fact.name, fact.occurrence), step))
    if fact.name == START:
        state = _bind_version(state, fact)
    return state if fact.status in UNANSWERED else keep(state, fact.claim_id, fact.said)


def _is_news(known: Step, fact: facts.StepRecorded) -> bool:
    """An answer always is, for a step that has none; another attempt is if it is a later one."""
    if known.status not in UNANSWERED:
        return False
    return fact.status not in UNANSWERED or fact.attempt > known.attempt


def handler_of(clog_id: str, version: object) -> str:
    """What a worker must know to go on with this version. No clog has such a name: ids have no slash."""
    return f"{clog_id}/{version}"


def _bind_version(state: RunState, fact: facts.StepRecorded) -> RunState:
    """From now on only workers that know the version may claim the run."""
    version = fact.result.get("version") if isinstance(fact.result, dict) else None
    if not isinstance(version, int | str):
        return state
    work = state.work[fact.runnable_key]
    return state.with_work(replace(work, handler=handler_of(state.clog_id, version)))


def keep(state: RunState, tick_id: str, said: Sequence[Sequence[int]]) -> RunState:
    tick = state.ticks.get(tick_id)
    if tick is None or not (said or tick.kept):
        return state
    kept = joined([*tick.kept, *said])
    if kept[-1][1] == state.rev - 1:
        # The record itself is no handler's event. Counted in, what a tick says step by step stays one range.
        kept = (*kept[:-1], (kept[-1][0], state.rev))
    return replace(state, ticks=state.ticks.set(tick_id, replace(tick, kept=kept)))


def joined(ranges: Iterable[Sequence[int]]) -> tuple[tuple[int, int], ...]:
    """The same ranges in order, neighbours as one."""
    answer: list[tuple[int, int]] = []
    for first, last in sorted((low, high) for low, high in ranges):
        if answer and first <= answer[-1][1] + 1:
            answer[-1] = (answer[-1][0], max(last, answer[-1][1]))
        else:
            answer.append((first, last))
    return tuple(answer)


def take(state: RunState, fact: facts.SignalTaken) -> RunState:
    """The signal is consumed by the tick that received it, and by none other."""
    if (fact.step, fact.occurrence) in state.steps:
        return state
    spent = replace(state.signals[fact.seq], tick_id=fact.claim_id)
    return replace(
        state,
        mailbox=tuple(seq for seq in state.mailbox if seq != fact.seq),
        signals=state.signals.set(fact.seq, spent),
        steps=state.steps.set((fact.step, fact.occurrence), Step(rev=state.rev, status="done")),
    )
