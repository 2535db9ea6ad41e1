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
    """What one commit did to one relation."""

    relation: str
    op: str
    new_rows: Rows
    old_rows: Rows


class _Ear:
    """One callback and what it has not heard yet. With a capacity the oldest goes when there is no more room."""

    def __init__(self, relation: str, tell: OnChange, capacity: int | None) -> None:
        self.relation = relation
        self._tell = tell
        self._waiting: deque[Change] = deque(maxlen=capacity)
        self._task: asyncio.Task[None] | None = None

    def hear(self, change: Change) -> None:
        self._waiting.append(change)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._tell_all())

    async def stop(self) -> None:
        self._waiting.clear()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _tell_all(self) -> None:
        while self._waiting:
            change = self._waiting.popleft()
            try:
                answer = self._tell(change.op, change.new_rows, change.old_rows)
                if inspect.isawaitable(answer):
                    await answer
            except Exception as error:
                # What is committed stays so, whatever a listener makes of it.
                log.warning("a callback on %s raised %s", self.relation, type(error).__name__)


class Callbacks:
    """The callbacks of one runtime."""

    def __init__(self) -> None:
        self._ears: dict[int, _Ear] = {}
        self._last_id = 0

    def add(self, relation: str, tell: OnChange, capacity: int | None) -> int:
        if relation not in RELATIONS:
            raise InvalidValue(f"there is no relation {relation!r}; use one of {', '.join(RELATIONS)}")
        room = None if capacity is None else whole_number(capacity, "capacity", 1, CAPACITY_MAX)
        self._last_id += 1
        self._ears[self._last_id] = _Ear(relation, tell, room)
        return self._last_id

    def remove(self, callback_id: int) -> bool:
        """False if there is no such callback."""
        return self._ears.pop(callback_id, None) is not None

    async def tell(self, *changes: Change) -> None:
        """Hand these on and give the listeners a turn. A listener that takes longer is not waited for."""
        heard = False
        for change in changes:
            for ear in [ear for ear in self._ears.values() if ear.relation == change.relation]:
                ear.hear(change)
                heard = True
        if heard:
            await asyncio.sleep(0)

    async def close(self) -> None:
        for ear in self._ears.values():
            await ear.stop()
