"""The order of a replay: branches that run side by side get their recorded answers in the order they first came."""

from __future__ import annotations

import asyncio
import heapq

TURNS = 3
"""How often branches may go on before the next answer is given: enough to reach their next step."""


class Turns:
    """Hands out recorded answers by revision while more than one branch runs."""

    def __init__(self) -> None:
        self.branches = 1
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._pump: asyncio.Task[None] | None = None

    async def wait(self, rev: int) -> None:
        if self.branches <= 1:
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (rev, id(turn), turn))
        if self._pump is None:
            self._pump = asyncio.create_task(self._give())
        await turn

    async def quiet(self) -> None:
        """Return once nobody waits for a recorded answer: what is new comes after all that is old."""
        if self.branches <= 1:
            return
        idle = 0
        while idle <= TURNS:
            await asyncio.sleep(0)
            idle = 0 if self._waiting else idle + 1

    async def _give(self) -> None:
        while self._waiting:
            for _ in range(TURNS):
                await asyncio.sleep(0)
            _, _, turn = heapq.heappop(self._waiting)
            if not turn.done():
                turn.set_result(None)
        self._pump = None


async def let_others_begin() -> None:
    """Tasks that were created and have not run yet come to their first step."""
    for _ in range(TURNS):
        await asyncio.sleep(0)
