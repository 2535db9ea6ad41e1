"""Processes that are killed at a commit of their choice, and one that comes after them.

    python -m tests.crash.failpoints        commands on stdin, answers on stdout, as `tests.worker.programs`

A life is a program of `tests.crash.lives` on one database. It dies before its n-th commit, right after it, or inside:
on SQLite with everything written and COMMIT about to begin, on Postgres with the statement on its way to the server.
Time is virtual, and whoever comes later begins days later, so no lease is ever waited for.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

# Imported before the first child is born: forking is quick, importing is not.
import asyncpg  # noqa: F401

from holdfast import Holdfast
from holdfast.moments import to_us
from holdfast.store import connect, postgres  # noqa: F401
from holdfast.store.sqlite import SQLite
from holdfast.testing import VirtualClock
from tests.crash.lives import LIVES
from tests.worker.programs import main

COMMITS = frozenset({"write", "write_locked", "append", "execute", "claim"})
EPOCH = datetime(2030, 1, 1, tzinfo=UTC)
ON_ITS_WAY_S = 0.001


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Doomed:
    """A database whose user dies at its n-th commit; 0 is never."""

    def __init__(self, real: Any, point: int, when: str) -> None:
        self._real = real
        self._point = point
        self._when = when
        self.commits = 0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._real, name)
        return self._counting(found) if name in COMMITS else found

    def _counting(self, method: Callable[..., Any]) -> Callable[..., Any]:
        async def counted(*args: Any) -> Any:
            self.commits += 1
            is_last = self.commits == self._point
            if is_last and self._when == "before":
                die()
            if is_last and self._when == "inside":
                return await self._inside(method(*args))
            answer = await method(*args)
            if is_last:
                die()
            return answer

        return counted

    async def _inside(self, commit: Any) -> Any:
        if isinstance(self._real, SQLite):
            _Trap.armed = True
            return await commit
        sending = asyncio.ensure_future(commit)
        await asyncio.sleep(ON_ITS_WAY_S)
        die()
        return await sending


class _Trap:
    """Kills this process where a SQLite connection that has written is about to say COMMIT."""

    armed = False

    @classmethod
    def set(cls) -> None:
        make = SQLite._connect

        def connected(database: SQLite) -> sqlite3.Connection:
            connection = make(database)
            writes = [False]

            def hear(statement: str) -> None:
                if cls.armed and statement == "COMMIT" and writes[0]:
                    die()
                writes[0] = statement == "BEGIN IMMEDIATE" or (writes[0] and statement != "COMMIT")

            connection.set_trace_callback(hear)
            return connection

        SQLite._connect = connected  # type: ignore[assignment,method-assign]


async def live(given: dict[str, Any]) -> None:
    """Live the program from wherever it stands, and say how many commits that took."""
    clock = VirtualClock(EPOCH + timedelta(days=given["day"]))
    real = connect(given["url"], lambda: to_us(clock.now()), schema=given["schema"])
    doomed = Doomed(real, given["point"], given["when"])
    if given["when"] == "inside":
        _Trap.set()
    async with Holdfast(clock=clock, database=doomed) as hf:
        doomed.commits = 0
        life = LIVES[given["life"]](hf, given["diary"], f"{real.prefix}ledger")
        life.register()
        await life.live()
    await asyncio.to_thread(Path(given["told"]).write_text, str(doomed.commits))


if __name__ == "__main__":
    main({"life": live})
