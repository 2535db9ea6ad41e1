"""What a flow did before: its recorded answers, by name and occurrence, its children, and how they ended."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from holdfast.journal import Journal
from holdfast.protocol import facts
from holdfast.protocol.evolve import evolve
from holdfast.protocol.facts import Fact
from holdfast.protocol.flows import APPROVAL, TOOL
from holdfast.protocol.state import RunState

_STEPS = "SELECT name, occurrence, rev FROM {s}steps WHERE run_id = $1 ORDER BY rev"
_CHILDREN = "SELECT clog_id, child_key, child_run_id, finished_rev FROM {s}children WHERE run_id = $1 AND step = ''"
PAGE = 1_000


class Answer(NamedTuple):
    """An entry that answers a step: where it stands, when it was written, and the signal it speaks of."""

    rev: int
    fact: Fact
    at: int = 0
    signal: facts.SignalReceived | None = None


class ChildEnd(NamedTuple):
    """A child that is over, and where that stands."""

    rev: int
    fact: facts.ChildRunFinished


class Memory:
    """Loaded once for each tick. Whatever the body comes to is remembered as visited."""

    def __init__(
        self,
        answers: Mapping[tuple[str, int], Answer] = MappingProxyType({}),
        ends: Mapping[tuple[str, str], ChildEnd] = MappingProxyType({}),
        open_children: Mapping[tuple[str, str], str] = MappingProxyType({}),
    ) -> None:
        self._answers = answers
        # A tool asks a person only where nobody knows what became of it, which a body does not come to again.
        self._unvisited = dict.fromkeys(where for where in answers if not where[0].startswith(f"{APPROVAL}{TOOL}"))
        self._counts: dict[str, int] = {}
        self.child_ends = ends
        """By clog and key, which a fork shares with its original; the ids of the children it does not."""
        self.open_children = open_children
        """The ids of those that were started and are not over. However one ends, the flow is told."""

    def occurrence(self, name: str) -> int:
        """How often the body has come to a step of this name before."""
        number = self._counts.get(name, 0)
        self._counts[name] = number + 1
        self._unvisited.pop((name, number), None)
        return number

    def answer(self, name: str, occurrence: int) -> Answer | None:
        self._unvisited.pop((name, occurrence), None)
        return self._answers.get((name, occurrence))

    def unvisited(self) -> str | None:
        """The first step that was recorded and that the body has not come to."""
        return next(iter(self._unvisited))[0] if self._unvisited else None


async def load(journal: Journal, run_id: str) -> Memory:
    """Everything the flow recorded, in a number of reads that grows by one for each thousand steps."""
    steps = await journal.store.fetch(_STEPS, run_id)
    children = await journal.store.fetch(_CHILDREN, run_id)
    ended = [rev for *_, rev in children if rev is not None]
    found = await _facts(journal, run_id, [*(rev for *_, rev in steps), *ended])
    taken = {fact.seq for fact, _ in found.values() if isinstance(fact, facts.SignalTaken)}
    signals = await _facts(journal, run_id, sorted(taken))
    answers = {(name, number): _answer(rev, *found[rev], signals) for name, number, rev in steps}
    ends = {(clog_id, key): _end(rev, found[rev][0]) for clog_id, key, _, rev in children if rev is not None}
    return Memory(answers, ends, {(clog_id, key): child for clog_id, key, child, rev in children if rev is None})


def remembered(run_id: str, entries: Iterable[tuple[int, Fact, int]]) -> tuple[Memory, RunState]:
    """The same memory from a journal alone, as (revision, fact, instant); and the run as it stands there."""
    state = RunState(run_id=run_id)
    told: dict[int, tuple[Fact, int]] = {}
    for rev, fact, at in entries:
        state = evolve(state, fact, at)
        told[rev] = fact, at
    answers = {
        where: _answer(step.rev, *told[step.rev], told)
        for where, step in sorted(state.steps.items(), key=lambda item: item[1].rev)
    }
    children = {(child.clog_id, child.child_key): child for child in state.children.values() if not child.step}
    ends = {
        name: _end(child.finished_rev, told[child.finished_rev][0])
        for name, child in children.items()
        if child.finished_rev is not None
    }
    open_children = {name: child.child_run_id for name, child in children.items() if child.finished_rev is None}
    return Memory(answers, ends, open_children), state


def _answer(rev: int, fact: Fact, at: int, told: dict[int, tuple[Fact, int]]) -> Answer:
    signal = told[fact.seq][0] if isinstance(fact, facts.SignalTaken) else None
    assert signal is None or isinstance(signal, facts.SignalReceived)
    return Answer(rev, fact, at, signal)


def _end(rev: int, fact: Fact) -> ChildEnd:
    assert isinstance(fact, facts.ChildRunFinished)
    return ChildEnd(rev, fact)


async def _facts(journal: Journal, run_id: str, revs: list[int]) -> dict[int, tuple[Fact, int]]:
    """The facts at these revisions with their instants."""
    found: dict[int, tuple[Fact, int]] = {}
    for start in range(0, len(revs), PAGE):
        page = await journal.told_at([(run_id, rev) for rev in revs[start : start + PAGE]])
        found |= {rev: told for (_, rev), told in page.items()}
    return found


def result_of(fact: Fact) -> Any:
    """The value of a recorded step."""
    assert isinstance(fact, facts.StepRecorded)
    return fact.result
