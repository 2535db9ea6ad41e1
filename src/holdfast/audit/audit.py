"""`hf.audit`: recorders, readers, callbacks, transactions and retention, on one store."""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Self

from holdfast.audit.boundaries import answer, asking
from holdfast.audit.changes import Callbacks, Change, OnChange
from holdfast.audit.instants import Validity, format_timestamp, to_bool, to_int
from holdfast.audit.payloads import Payloads
from holdfast.audit.queries import LIMIT_MAX, Readers
from holdfast.audit.recorders import Recorders
from holdfast.audit.records import changed_row
from holdfast.audit.retention import forget
from holdfast.audit.statements import (
    Answer,
    AnyFact,
    Statement,
    Step,
    addition,
    follow,
    proposal_key,
    stamped,
    typed,
)
from holdfast.audit.transactions import Transaction
from holdfast.errors import Conflict, InvalidValue
from holdfast.journal import Journal
from holdfast.protocol import audit as rules
from holdfast.protocol.audit import Proposal
from holdfast.protocol.values import clean, whole_number
from holdfast.store import Addition, FactKey, Row

AUTO_CONFIRM = "auto-confirm"


class _Clock:
    """The last instant that this process gave. What it says one after the other has instants one after the other."""

    def __init__(self) -> None:
        self.last = 0


class Audit(Recorders, Readers):
    """Facts with validity. Every reader takes `at`; every recorder may be called again without harm."""

    def __init__(self, journal: Journal, payloads: Payloads) -> None:
        self._journal = journal
        self._store = journal.store
        self._payloads = payloads
        self._user_id: str | None = None
        self._callbacks = Callbacks()
        self._clock = _Clock()

    format_timestamp = staticmethod(format_timestamp)
    to_bool = staticmethod(to_bool)
    to_int = staticmethod(to_int)

    @property
    def payloads(self) -> Payloads:
        """What is kept of payloads, for the tools of runs."""
        return self._payloads

    def as_user(self, user_id: str) -> Self:
        """The same audit for one user, to whom the facts of others are unknown."""
        scoped = copy.copy(self)
        scoped._user_id = user_id
        return scoped

    async def close(self) -> None:
        await self._callbacks.close()

    def on_change(self, relation: str, tell: OnChange, capacity: int | None = None) -> int:
        """Have `tell(op, new_rows, old_rows)` called after each commit of this runtime that changes the relation.

        What other processes commit is not heard here; ask a reader for that. For one user, only their rows are told.
        No writer waits for an `async def`: with a capacity, the oldest changes are dropped where it does not keep up.
        A `def` is called on the event loop and must not block. Answers an id for `off_change`.
        """
        return self._callbacks.add(relation, tell, capacity, self._user_id)

    def off_change(self, callback_id: int) -> bool:
        """Call it no more, not even for what it has yet to hear; False if there is no such callback."""
        return self._callbacks.remove(callback_id, self._user_id)

    def transaction(self) -> Transaction:
        """Several statements in one commit, at one instant: `async with hf.audit.transaction() as tx`."""
        return Transaction(self._payloads, self._user_id, look=self._latest, commit=self._commit)

    async def record(self, statement: Statement) -> Validity | None:
        return await self._commit([statement])

    async def auto_confirm(self, min_confidence: float, *, limit: int = 100) -> list[str]:
        """Approve pending proposals that are at least so sure of themselves, and answer their ids; runs go on.

        Nothing does this unless it is asked to. The decision's actor is `auto-confirm`, with the confidence that was
        enough. A proposal without one, or whose question has expired, is left to people.
        """
        score, _ = clean(min_confidence)
        if isinstance(score, bool) or not isinstance(score, int | float) or score <= 0:
            raise InvalidValue(f"min_confidence is a number above 0, for example 0.9; got {min_confidence!r}")
        actor = f"{AUTO_CONFIRM} (confidence >= {score:g})"
        most = whole_number(limit, "limit", 1, LIMIT_MAX)
        confirmed = []
        for request_id in await self._confident(float(score), most):
            rule = functools.partial(rules.confirmed, request_id=request_id, min_confidence=float(score), actor=actor)
            said = Statement(proposal_key(request_id), rule, self._user_id, answer=Answer("approve", actor))
            # Decided otherwise a moment ago, or asked about by a run that takes no answer any more: not ours to decide.
            with contextlib.suppress(Conflict):
                await self.record(said)
            found = await self._latest(said.key)
            if isinstance(found, Proposal) and rules.is_decided(found.status, "approved") and found.actor == actor:
                confirmed.append(request_id)
        return confirmed

    async def gc(self, ttl: float | timedelta) -> dict[str, int]:
        """Forget what nothing was added to for longer than `ttl` (seconds), whole keys at a time; answer how many.

        Calls and proposals that are still open stay, and so do the calls of runs that are still kept.
        """
        if self._user_id is not None:
            raise Conflict(
                "retention concerns everyone's facts; ask on hf itself, not for one user", code="not_allowed"
            )
        return await forget(self._store, ttl)

    async def announce(self, *steps: Step) -> None:
        """Tell the callbacks of facts that a run's own commit brought."""
        await self._callbacks.tell(*_changes(steps))

    async def _latest(self, key: FactKey) -> AnyFact | None:
        return typed(await self._store.latest_facts([key]))[key]

    async def _commit(self, statements: Sequence[Statement]) -> Validity | None:
        """Record these; and where one of them decides what a run asks about, answer the run with it."""
        decisions = [statement for statement in statements if statement.answer is not None]
        for decision in decisions if len(statements) > 1 else ():
            if await asking(self._store, decision.key.values[0], decision.user_id) is not None:
                text = (
                    f"a run asks about proposal {decision.key.values[0]}, and no other fact shares the commit of a run"
                )
                raise Conflict(f"{text}; decide it outside of the transaction", code="not_allowed")
        if len(statements) == 1 and await self._answered(statements[0]):
            latest = await self._latest(statements[0].key)
            return None if latest is None else Validity(latest.validity, bool(latest.asserted))
        recorded = await self._record(statements)
        for decision in decisions:
            # A run may have begun to ask while this was on its way. What is decided stands, whether it takes it or not.
            with contextlib.suppress(Conflict):
                await self._answered(decision)
        return recorded

    async def _answered(self, decision: Statement) -> bool:
        steps = await answer(self._journal, decision)
        await self.announce(*(steps or ()))
        return steps is not None

    async def _record(self, statements: Sequence[Statement]) -> Validity | None:
        keys = list(dict.fromkeys(statement.key for statement in statements))
        if not keys:
            return None
        taken: list[tuple[list[Step], int]] = []

        def judge(before: Mapping[FactKey, Row | None], now: int) -> Addition:
            taken.append(stamped(follow(typed(before), statements), now, after=self._clock.last))
            return addition(taken[-1][0])

        recorded = await self._store.record(keys, judge)
        steps, at = taken[-1]
        if not steps:
            return _standing(recorded.before)
        self._clock.last = max(self._clock.last, at)
        await self._callbacks.tell(*_changes(steps))
        return Validity(at, bool(steps[-1].after.asserted))


def _standing(before: Mapping[FactKey, Row | None]) -> Validity | None:
    """Nothing was new: since when the last of the keys reads as it does."""
    facts = [fact for fact in typed(before).values() if fact is not None]
    return Validity(facts[-1].validity, bool(facts[-1].asserted)) if facts else None


def _changes(steps: Sequence[Step]) -> list[Change]:
    """One change for each relation and kind of it."""
    found: dict[tuple[str, str], Change] = {}
    for step in steps:
        op = "put" if step.after.asserted else "rm"
        where = (step.key.table, op)
        change = found.setdefault(where, Change(*where, [], []))
        if op == "put":
            change.new_rows.append((step.after.user_id, changed_row(step.after)))
        if step.before is not None:
            change.old_rows.append((step.before.user_id, changed_row(step.before)))
    return list(found.values())
