"""Statements of the audit: which key, and which rule says what its next fact is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from holdfast.protocol import audit as rules
from holdfast.protocol.audit import ERRORED, OVER, Proposal, ToolCall, Turn
from holdfast.store import FACTS, Addition, FactKey, Row

AnyFact = Turn | ToolCall | Proposal


class Answer(NamedTuple):
    """What a decision says to a run that asks about its proposal."""

    action: str
    actor: str | None


class Statement(NamedTuple):
    """`rule` answers the fact that follows the latest one, or None; it raises to refuse."""

    key: FactKey
    rule: Callable[[Any], AnyFact | None]
    user_id: str | None = None
    """For whom: facts of others are unknown to them."""
    retracts: bool = False
    answer: Answer | None = None


class Step(NamedTuple):
    """What a commit does to one key."""

    key: FactKey
    before: AnyFact | None
    after: AnyFact


def fact_of(table: str, row: Row | None) -> AnyFact | None:
    return None if row is None else rules.RELATIONS[table](**dict(zip(FACTS[table].names, row, strict=True)))


def follow(last: Mapping[FactKey, AnyFact | None], statements: Sequence[Statement]) -> list[Step]:
    """The facts that these statements make of the latest ones, one for each key that changes.

    All of them share one instant, so the last word on a key counts; but a retraction beside an assertion does not.
    """
    facts = dict(last)
    asserted: set[FactKey] = set()
    for statement in statements:
        known = facts[statement.key]
        rules.check_owner(known, statement.user_id)
        if statement.retracts and statement.key in asserted:
            continue
        after = statement.rule(known)
        if after is not None:
            facts[statement.key] = after
            if not statement.retracts:
                asserted.add(statement.key)
    return [
        Step(key, last[key], after)
        for key, after in facts.items()
        if after is not None and after is not last[key] and not _is_same(last[key], after)
    ]


def stamped(steps: Sequence[Step], now: int, *, after: int = 0) -> tuple[list[Step], int]:
    """The steps with the one instant they share: later than every fact they follow."""
    at = max([now, after + 1, *(step.before.validity + 1 for step in steps if step.before is not None)])
    return [step._replace(after=_at(step.after, at)) for step in steps], at


def addition(steps: Sequence[Step]) -> Addition:
    return Addition(tuple((step.key.table, rules.row(step.after)) for step in steps))


def _is_same(before: AnyFact | None, after: AnyFact) -> bool:
    return before is not None and rules.proof(before) == rules.proof(after)


def _at(fact: AnyFact, at: int) -> AnyFact:
    fact = replace(fact, validity=at, created=fact.created or at)
    if isinstance(fact, ToolCall):
        return _call_at(fact, at)
    if isinstance(fact, Proposal) and fact.status != "pending" and fact.status not in ERRORED:
        is_applied = fact.status in ("applied", "reverted")
        applied_at = (fact.applied_at or at) if is_applied else None
        return replace(fact, decided_at=fact.decided_at or at, applied_at=applied_at)
    return fact


def _call_at(fact: ToolCall, at: int) -> ToolCall:
    started_at = fact.started_at or at
    if fact.status not in OVER:
        return replace(fact, started_at=started_at)
    ended_at = fact.ended_at or at
    latency_ms = max(0, ended_at - started_at) // 1_000 if fact.latency_ms is None else fact.latency_ms
    return replace(fact, started_at=started_at, ended_at=ended_at, latency_ms=latency_ms)


def turn_key(id: str) -> FactKey:
    return FactKey("turns", (id,))


def call_key(request_id: str, call_id: str) -> FactKey:
    return FactKey("tool_calls", (request_id, call_id))


def proposal_key(request_id: str) -> FactKey:
    return FactKey("proposals", (request_id,))


def typed(rows: Mapping[FactKey, Row | None]) -> dict[FactKey, AnyFact | None]:
    return {key: fact_of(key.table, row) for key, row in rows.items()}
