"""Laws of the audit: every fact is the one that was written (A1), keys live forward in time (A2), and no call or
proposal goes where it may not (R12)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from holdfast.invariants.problems import Problem
from holdfast.invariants.runs import RunSnapshot
from holdfast.protocol import audit
from holdfast.protocol import facts as run_facts
from holdfast.protocol.audit import ERRORED, OVER, Proposal, ToolCall, Turn
from holdfast.protocol.ledger import audit_row
from holdfast.store import Row

AnyFact = Turn | ToolCall | Proposal
_OPEN = frozenset({"pending", "approved", "denied", "applied", "reverted", *ERRORED})
NEXT = {
    "pending": _OPEN,
    "approved": _OPEN,
    **dict.fromkeys(ERRORED, _OPEN),
    "applied": frozenset({"reverted"}),
}
"""What may follow a proposal's status. Several steps of one transaction leave one fact, so steps may be passed over;
and as an edit that fails may be decided or proposed anew, only what is denied, applied or reverted is bound to stay."""


def call_rows(run: RunSnapshot) -> list[Row]:
    """The audit facts that a run's own entries are; those that a fork copied are the original's."""
    copied = max((after.rev for _, fact, after in run.steps() if isinstance(fact, run_facts.RunForked)), default=0)
    found = (audit_row(before, fact, after, after.at) for before, fact, after in run.steps() if after.rev > copied)
    return [row for row in found if row is not None]


def calls_are_recorded(run: RunSnapshot) -> Iterator[Problem]:
    """P10: the audit knows every call of a run as the run's entries tell it, and none besides."""
    if run.whole is None:
        return
    told, stored = set(call_rows(run)), set(run.stored.tables["tool_calls"])
    for row in sorted(told ^ stored, key=repr):
        what = "is missing" if row in told else "is not in the journal"
        yield Problem("P10", run.thread, f"tool_calls[{row[1]!r} at {row[2]}] {what}")


def check_facts(where: str, facts: Sequence[AnyFact]) -> list[Problem]:
    """Every law of one key, on all its facts in their order; nothing where there are none."""
    if not facts:
        return []
    laws = (facts_are_unchanged, validities_increase, transitions_are_allowed)
    return [problem for law in laws for problem in law(where, facts)]


def facts_are_unchanged(where: str, facts: Sequence[AnyFact]) -> Iterator[Problem]:
    """A1: a stored fact says what it said when it was written."""
    for fact in facts:
        if audit.proof(fact) != fact.digest:
            yield Problem("A1", where, f"the fact of {fact.validity} was changed after it was written")


def validities_increase(where: str, facts: Sequence[AnyFact]) -> Iterator[Problem]:
    """A2: one fact for each instant, the first of them where all of them say the key began."""
    if any(fact.created != facts[0].validity for fact in facts):
        yield Problem("A2", where, "the first fact of this key is missing, or another says that it began elsewhere")
    for before, after in pairwise(facts):
        if (before.validity, before.asserted) == (after.validity, after.asserted):
            yield Problem("A2", where, f"two facts claim the instant {after.validity}")


def transitions_are_allowed(where: str, facts: Sequence[AnyFact]) -> Iterator[Problem]:
    """R12: a call ends once, for good; a proposal is decided before it is applied, and applied before it is undone."""
    for before, after in pairwise(facts):
        if isinstance(before, Turn) or isinstance(after, Turn):
            continue
        is_call = isinstance(before, ToolCall)
        if before.status in OVER if is_call else after.status not in NEXT.get(before.status, frozenset()):
            yield Problem("R12", where, f"it was {before.status}, and a fact follows that says {after.status}")
