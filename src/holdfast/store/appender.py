"""Appends to threads that belong to no run, grouped like everything else.

Every append carries the head it expects, also when its caller does not care: so an append of unknown fate can be
asked for again without ever landing twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from holdfast import ambient
from holdfast.errors import Conflict, DatabaseError
from holdfast.store.committer import patiently
from holdfast.store.database import Database
from holdfast.store.types import Append, Mark, NewEntry, OutcomeUnknown, Rejected, Written

LOSSES_MAX = 100
MEMBERS_MAX = 500
HEADS_MAX = 10_000


class _Wish:
    """One caller's entries on their way to disk."""

    def __init__(self, thread: str, entries: list[NewEntry], expected_rev: int | None) -> None:
        self.thread = thread
        self.entries = entries
        self.expected_rev = expected_rev
        self.suspects: list[tuple[Mark, int]] = []
        self.losses = 0
        self.future: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def answer(self, head: int) -> None:
        if not self.future.done():
            self.future.set_result(head)

    def fail(self, error: BaseException) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class Appender:
    """Group commit for free threads: one append per thread and batch, the others of a thread wait in order."""

    def __init__(self, database: Database, on_commit: Callable[[Iterable[str]], None], *, grouped: bool = True) -> None:
        self._database = database
        self._on_commit = on_commit
        self._members_max = MEMBERS_MAX if grouped else 1
        self._waiting: list[_Wish] = []
        self._heads: dict[str, int] = {}
        self._task: asyncio.Task[None] | None = None
        self.commits = 0
        self.members = 0

    async def append(self, thread: str, entries: list[NewEntry], expected_rev: int | None) -> int:
        """The thread's new head once the entries are on disk; `Conflict` with nothing written otherwise."""
        wish = _Wish(thread, entries, expected_rev)
        self._waiting.append(wish)
        if self._task is None:
            self._task = asyncio.create_task(self._flush_all())
        return await wish.future

    async def close(self) -> None:
        while self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)
            await asyncio.sleep(0)

    async def _flush_all(self) -> None:
        await asyncio.sleep(0)
        try:
            while self._waiting:
                batch = self._take()
                try:
                    await self._flush(batch)
                except Exception as error:
                    for wish in batch:
                        wish.fail(error)
        finally:
            self._task = None

    def _take(self) -> list[_Wish]:
        chosen: dict[str, _Wish] = {}
        left: list[_Wish] = []
        for wish in self._waiting:
            if wish.thread in chosen or len(chosen) >= self._members_max:
                left.append(wish)
            elif not wish.future.done():
                chosen[wish.thread] = wish
        self._waiting = left
        return list(chosen.values())

    async def _flush(self, batch: list[_Wish]) -> None:
        await self._learn_heads([wish.thread for wish in batch if wish.thread not in self._heads])
        open_wishes = [wish for wish in batch if not await self._answered_before(wish, self._heads[wish.thread])]
        if open_wishes:
            await self._write(open_wishes)

    async def _learn_heads(self, threads: list[str]) -> None:
        if len(self._heads) > HEADS_MAX:
            self._heads = {}
        for thread in threads:
            self._heads[thread] = await self._head(thread)

    async def _head(self, thread: str) -> int:
        sql = f"SELECT rev FROM {self._database.prefix}threads WHERE thread = $1"
        rows = await patiently(lambda: self._database.fetch(sql, thread))
        return rows[0][0] if rows else 0

    async def _write(self, batch: list[_Wish]) -> None:
        appends = [Append(wish.thread, wish.entries, self._expected(wish)) for wish in batch]
        commit_id = ambient.random_bits(62)
        try:
            written = await patiently(lambda: self._database.append(appends, commit_id))
        except OutcomeUnknown:
            for wish, append in zip(batch, appends, strict=True):
                wish.suspects.append((Mark(wish.thread, append.expected_rev + 1), commit_id))
                self._lose(wish)
            return
        except Rejected as error:
            await self._isolate(batch, error)
            return
        self.commits += 1
        for wish, result in zip(batch, written, strict=True):
            await self._settle(wish, result)

    def _expected(self, wish: _Wish) -> int:
        return self._heads[wish.thread] if wish.expected_rev is None else wish.expected_rev

    async def _settle(self, wish: _Wish, result: Written) -> None:
        self._heads[wish.thread] = result.rev
        if result.at is not None:
            self._heads[wish.thread] += len(wish.entries)
            self.members += 1
            wish.answer(self._heads[wish.thread])
            self._on_commit([wish.thread])
        elif wish.expected_rev is None:
            self._lose(wish)
        elif not await self._answered_before(wish, result.rev):
            wish.fail(
                Conflict(
                    f"{wish.thread} is at revision {result.rev}, not {wish.expected_rev}; read it, then decide again"
                )
            )

    async def _isolate(self, batch: list[_Wish], error: Rejected) -> None:
        if len(batch) > 1:
            for wish in batch:
                await self._write([wish])
            return
        # Someone else began the thread at the same moment.
        self._lose(batch[0], error)

    def _lose(self, wish: _Wish, error: Rejected | None = None) -> None:
        self._heads.pop(wish.thread, None)
        wish.losses += 1
        if wish.losses > (LOSSES_MAX if error is None else 3):
            wish.fail(DatabaseError(f"{wish.thread} could not be written: {error or 'it never stood still'}"))
            return
        self._waiting.insert(0, wish)

    async def _answered_before(self, wish: _Wish, head: int) -> bool:
        """Did an append of unknown fate land after all? Certain once the head has reached its revision."""
        for mark, commit_id in wish.suspects:
            if mark.rev <= head and await self._landed(mark, commit_id):
                wish.answer(mark.rev - 1 + len(wish.entries))
                return True
        return False

    async def _landed(self, mark: Mark, commit_id: int) -> bool:
        return mark in await patiently(lambda: self._database.landed([mark], commit_id))
