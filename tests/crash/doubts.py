"""Commits whose callers were told nothing: which were there nevertheless?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.store.postgres import Postgres
from holdfast.store.types import OutcomeUnknown


class Doubts:
    """Remembers every commit to Postgres that ended with its outcome unknown, by its id."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.commit_ids: set[int] = set()
        for name in ("write", "write_locked", "append", "claim", "heartbeat"):
            monkeypatch.setattr(Postgres, name, self._watched(getattr(Postgres, name)))

    def _watched(self, original: Callable[..., Any]) -> Callable[..., Any]:
        async def call(database: Postgres, *arguments: Any) -> Any:
            try:
                return await original(database, *arguments)
            except OutcomeUnknown:
                # News may follow it.
                self.commit_ids.add(next(each for each in reversed(arguments) if isinstance(each, int)))
                raise

        return call

    async def committed(self, holdfast: Holdfast) -> int:
        """How many of them had committed."""
        sql = "SELECT 1 FROM {s}journal WHERE commit_id = $1 LIMIT 1"
        return sum([len(await holdfast.journal.store.fetch(sql, each)) for each in self.commit_ids])
