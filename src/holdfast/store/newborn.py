"""Runs that were created here a moment ago and of which nothing was heard since.

Whoever waits for the end of one need not look yet: the look would find it as it was created, at the very moment when
the database is wanted by whoever takes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from holdfast import ambient
from holdfast.store.tables import RUN_FIXED, RUN_MOVING
from holdfast.store.types import Member

QUIET_S = 0.05
NEWBORN_MAX = 1_000
_USER_ID = tuple(RUN_FIXED).index("user_id")
_FINISHED_AT = tuple(RUN_MOVING).index("finished_at")


class Newborn:
    """Forgets a run when it is heard of, when its moment is over, and when there are too many."""

    def __init__(self) -> None:
        self._runs: dict[str, tuple[str, float]] = {}
        """By thread: whose it is, and when it is no longer new."""

    def add(self, members: Sequence[Member]) -> None:
        """Remember those that a commit has created, after its own news was told."""
        until = ambient.monotonic() + QUIET_S
        for member in members:
            if member.created is not None and member.run[_FINISHED_AT] is None:
                self._runs[member.thread] = (member.created[_USER_ID], until)
        while len(self._runs) > NEWBORN_MAX:
            del self._runs[next(iter(self._runs))]

    def heard(self, topics: Iterable[str]) -> None:
        for topic in topics:
            self._runs.pop(topic, None)

    def heard_all(self) -> None:
        self._runs.clear()

    def quiet_s(self, thread: str, user_id: str | None) -> float:
        """How long this run's news may be waited for before anybody looks; 0 for one that is not new, or not theirs."""
        owner, until = self._runs.get(thread, ("", 0.0))
        return max(until - ambient.monotonic(), 0.0) if user_id in (None, owner) else 0.0
