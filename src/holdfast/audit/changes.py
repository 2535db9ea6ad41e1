"""Who wants to hear of changes, and how they are told: after the commit, and never at a writer's cost."""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from holdfast.errors import InvalidValue
from holdfast.protocol.values import whole_number
from holdfast.redaction import logger

RELATIONS = ("turns", "tool_calls", "proposals")
CAPACITY_MAX = 1 << 30
log = logger("holdfast.audit")

Rows = list[dict[str, Any]]
OnChange = Callable[[str, Rows, Rows], Awaitable[None] | None]
"""Told `put` or `rm`, the rows as they are now, and the rows that these supersede."""


class Change(NamedTuple):
    """What one commit did to one relation; each row with the user whose it is."""

    relation: str
    op: str
    new_rows: list[tuple[str, dict[str, Any]]]
    old_rows: list[tuple[str, dict[str, Any]]]

    def rows_of(self, user_id: str | None) -> tuple[Rows, Rows]:
        """New and old rows, of one user or of all."""
        new, old = ([row for owner, row in rows if user_id in (None, owner)] for rows in (self.new_rows, self.old_rows))
        return new, old


class _Ear:
    """One callback and what it has not heard yet. With a capacity the oldest goes when there is no more room."""

    def __init__(self, relation: str, tell: OnChange, capacity: int | None, user_id: str | None) -> None:
        self.relation = relation
        self.user_id = user_id
        self._tell = tell
        self._waiting: deque[tuple[str, Rows, Rows]] = deque(maxlen=capacity)
        self._task: asyncio.Task[None] | None = None

    @property
    def is_busy(self) -> bool:
        return self._task is not None and not self._task.done()

    def hear(self, change: Change) -> bool:
        """False if nothing of it is for this one."""
        new, old = change.rows_of(self.user_id)
        if not new and not old:
            return False
        self._waiting.append((change.op, new, old))
        if not self.is_busy:
            self._task = asyncio.get_running_loop().create_task(self._tell_all())
        return True

    def forget(self) -> None:
        """What was not told yet is not told any more. A call that has begun goes on: it may be the one that asks."""
        self._waiting.clear()

    async def stop(self) -> None:
        self.forget()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _tell_all(self) -> None:
        while self._waiting:
            try:
                answer = self._tell(*self._waiting.popleft())
                if inspect.isawaitable(answer):
                    await answer
            except Exception as error:
                # What is committed stays so, whatever a listener makes of it.
                log.warning("a callback on %s raised %s", self.relation, type(error).__name__)


class Callbacks:
    """The callbacks of one runtime."""

    def __init__(self) -> None:
        self._ears: dict[int, _Ear] = {}
        self._leaving: list[_Ear] = []
        self._last_id = 0

    def add(self, relation: str, tell: OnChange, capacity: int | None, user_id: str | None = None) -> int:
        if relation not in RELATIONS:
            raise InvalidValue(f"there is no relation {relation!r}; use one of {', '.join(RELATIONS)}")
        room = None if capacity is None else whole_number(capacity, "capacity", 1, CAPACITY_MAX)
        self._last_id += 1
        self._ears[self._last_id] = _Ear(relation, tell, room, user_id)
        return self._last_id

    def remove(self, callback_id: int, user_id: str | None = None) -> bool:
        """False if there is no such callback, or it is another user's."""
        ear = self._ears.get(callback_id)
        if ear is None or user_id not in (None, ear.user_id):
            return False
        del self._ears[callback_id]
        ear.forget()
        self._leaving = [each for each in (*self._leaving, ear) if each.is_busy]
        return True

    async def tell(self, *changes: Change) -> None:
        """Hand these on and give the listeners a turn. A listener that takes longer is not waited for."""
        heard = [
            ear.hear(change) for change in changes for ear in self._ears.values() if ear.relation == change.relation
        ]
        if any(heard):
            await asyncio.sleep(0)

    async def close(self) -> None:
        for ear in (*self._ears.values(), *self._leaving):
            await ear.stop()
