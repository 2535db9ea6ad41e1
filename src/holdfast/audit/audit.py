"""`hf.audit`: recorders, readers, callbacks, transactions and retention, on one store."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Self

from holdfast.audit.changes import Callbacks, Change, OnChange
from holdfast.audit.instants import Validity, format_timestamp, to_bool, to_int
from holdfast.audit.payloads import Payloads
from holdfast.audit.queries import Readers
from holdfast.audit.recorders import Recorders
from holdfast.audit.records import changed_row
from holdfast.audit.retention import forget
from holdfast.audit.statements import AnyFact, Statement, Step, addition, follow, stamped, typed
from holdfast.audit.transactions import Transaction
from holdfast.errors import Conflict
from holdfast.protocol.state import RunState
from holdfast.store import Addition, FactKey, Row, Store


class _Clock:
    """The last instant that this process gave. What it says one after the other has instants one after the other."""

    def __init__(self) -> None:
        self.last = 0


class Audit(Recorders, Readers):
    """Facts with validity. Every reader takes `at`; every recorder may be called again without harm."""

    def __init__(self, store: Store[RunState], payloads: Payloads) -> None:
        self._store = store
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

        No writer waits for it: with a capacity, the oldest changes are dropped where it does not keep up. Answers an
        id for `off_change`.
        """
        return self._callbacks.add(relation, tell, capacity)

    def off_change(self, callback_id: int) -> bool:
        """Call it no more; False if there is no such callback."""
        return self._callbacks.remove(callback_id)

    def transaction(self) -> Transaction:
        """Several statements in one commit, at one instant: `async with hf.audit.transaction() as tx`."""
        return Transaction(self._payloads, self._user_id, look=self._latest, commit=self._commit)

    async def record(self, statement: Statement) -> Validity | None:
        return await self._commit([statement])

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
            change.new_rows.append(changed_row(step.after))
        if step.before is not None:
            change.old_rows.append(changed_row(step.before))
    return list(found.values())
