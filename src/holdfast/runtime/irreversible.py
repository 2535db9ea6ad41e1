"""Which irreversible steps a run has begun, and which of them have a result that a copy keeps. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from holdfast.protocol import facts
from holdfast.protocol.facts import Fact
from holdfast.protocol.flows import UNANSWERED
from holdfast.protocol.graphs import UNDO, step_of


def begun(told: Iterable[Fact]) -> dict[Hashable, str]:
    """The irreversible steps in these facts, by what they are known by, with their names.

    A step that was begun may have been done, whatever became of its worker. One that was not wanted was not.
    """
    found: dict[Hashable, str] = {}
    marked: set[str] = set()
    for fact in told:
        match fact:
            case facts.StepRecorded(irreversible=True):
                found[fact.name, fact.occurrence] = fact.name
            case facts.WorkflowStarted():
                marked = {node.name for node in fact.graph.nodes if node.irreversible}
            case facts.AttemptClaimed(runnable_key=key) if step_of(key) in marked and not key.startswith(UNDO):
                found[key] = step_of(key)
            case facts.AttemptCompleted(skipped=True):
                found.pop(fact.runnable_key, None)
    return found


def answered(told: Iterable[Fact]) -> set[Hashable]:
    """Steps that have their answers, by the same names, and children that are over."""
    found: set[Hashable] = set()
    for fact in told:
        match fact:
            case facts.StepRecorded() if fact.status not in UNANSWERED:
                found.add((fact.name, fact.occurrence))
            case facts.AttemptCompleted():
                found.add(fact.runnable_key)
            case facts.ChildRunFinished():
                found.add(fact.child_run_id)
    return found
