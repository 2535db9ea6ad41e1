"""What many ask for at the same time goes as one statement: while one is on its way the next batch gathers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Generic, TypeVar

A = TypeVar("A")
B = TypeVar("B")


class Gathering(Generic[A, B]):
    """Questions of many callers, answered together; each gets its own answer, all share an error.

    Two about the same row (`about`) never go together: one statement could not tell which of them it said yes to.
    """

    def __init__(
        self, work: Callable[[list[A]], Awaitable[Sequence[B]]], most: int, about: Callable[[A], Hashable]
    ) -> None:
        self._work = work
        self._most = most
        self._about = about
        self._waiting: list[tuple[A, asyncio.Future[B]]] = []
        self._task: asyncio.Task[None] | None = None

    async def ask(self, question: A) -> B:
        future: asyncio.Future[B] = asyncio.get_running_loop().create_future()
        self._waiting.append((question, future))
        if self._task is None:
            self._task = asyncio.create_task(self._answer_all())
        return await future

    async def close(self) -> None:
        """Wait until all are answered."""
        while self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)
            await asyncio.sleep(0)

    async def _answer_all(self) -> None:
        # Everyone who is about to ask in this turn of the loop comes along.
        await asyncio.sleep(0)
        try:
            while self._waiting:
                await self._answer(self._next())
        finally:
            self._task = None

    def _next(self) -> list[tuple[A, asyncio.Future[B]]]:
        """The first of those that wait, one for each row."""
        batch: list[tuple[A, asyncio.Future[B]]] = []
        later: list[tuple[A, asyncio.Future[B]]] = []
        rows: set[Hashable] = set()
        for place, asked in enumerate(self._waiting):
            if len(batch) == self._most:
                later += self._waiting[place:]
                break
            row = self._about(asked[0])
            (later if row in rows else batch).append(asked)
            rows.add(row)
        self._waiting = later
        return batch

    async def _answer(self, batch: list[tuple[A, asyncio.Future[B]]]) -> None:
        try:
            answers = await self._work([question for question, _ in batch])
        except Exception as error:
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
            return
        for (_, future), answer in zip(batch, answers, strict=True):
            if not future.done():
                future.set_result(answer)
