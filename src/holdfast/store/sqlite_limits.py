"""A SQLite connection whose statements are cut when they take too long.

SQLite has no such limit of its own, but it asks a function every so many steps of its machine whether to go on. A cut
statement raises `SQLITE_INTERRUPT`; one that writes takes its transaction back with it. Waiting for a lock is no step,
so that has its own limit, the busy timeout.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from holdfast import ambient

STEPS = 50_000
"""A few milliseconds of work between two questions, so that asking costs nothing that could be measured."""
# The frames of a COMMIT may be on disk before the machine asks: cut there, a commit that stands would look like none.
_WHOLE = frozenset({"BEGIN", "BEGIN IMMEDIATE", "COMMIT", "ROLLBACK"})


class LimitedConnection(sqlite3.Connection):
    """Every statement has the same time, counted from its own beginning. What begins or ends a transaction has all."""

    _limit_s = math.inf
    _deadline = math.inf

    def limit(self, seconds: float) -> None:
        """From now on statements are cut after this long."""
        self._limit_s = seconds
        self.set_progress_handler(self._is_late, STEPS)

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        self._deadline = math.inf if sql in _WHOLE else ambient.monotonic() + self._limit_s
        return super().execute(sql, parameters)

    def executemany(self, sql: str, parameters: Any, /) -> sqlite3.Cursor:
        self._deadline = ambient.monotonic() + self._limit_s
        return super().executemany(sql, parameters)

    def _is_late(self) -> bool:
        return ambient.monotonic() > self._deadline


@contextmanager
def unlimited(connection: sqlite3.Connection) -> Iterator[None]:
    """For work that may take as long as it does, such as a migration."""
    assert isinstance(connection, LimitedConnection)
    limit_s, connection._limit_s = connection._limit_s, math.inf
    try:
        yield
    finally:
        connection._limit_s = limit_s


def was_cut(error: BaseException) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_INTERRUPT
