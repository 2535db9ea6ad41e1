"""The seam between the store and its two databases: a handful of methods, each one complete piece of work."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from holdfast.store.types import (
    Addition,
    Append,
    Beat,
    Beaten,
    Change,
    Claimed,
    ClaimRequest,
    FactKey,
    Mark,
    Member,
    Row,
    Slice,
    SliceRequest,
    Statement,
    Written,
)

LockedPlan = Callable[[Slice, int], Member | None]
"""Asked under the run's lock, with the commit's own instant. None: nothing to write."""

RecordPlan = Callable[[Mapping[FactKey, tuple[Row, int] | None], int], Addition]
"""Asked while the keys are locked, with the latest fact of each, who committed it, and the clock."""

OnHint = Callable[[Sequence[str]], None]
"""Told which threads and queues may have news. An empty sequence means: look at everything."""


class Database(Protocol):
    """What SQLite and Postgres each do in their own best way. Raises `Busy`, `Rejected` or `OutcomeUnknown`."""

    prefix: str
    """What stands before a table's name: `schema.` on Postgres, nothing on SQLite."""

    is_apart: bool
    """Does it work while we do? A server does; SQLite shares the interpreter with us."""

    def beside(self) -> Database:
        """The same database for the event loop of another thread, which opens and closes it there."""
        ...

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def migrate(self) -> None: ...

    async def now(self) -> int: ...

    async def fetch(self, sql: str, *params: Any) -> list[Row]: ...

    async def fetch_by_key(self, sql: str, *params: Any) -> list[Row]: ...

    async def fetch_snapshot(self, queries: Sequence[tuple[str, tuple[Any, ...]]]) -> list[list[Row]]:
        """The rows of each, all of one snapshot. Only the last may answer more than a message holds."""
        ...

    async def execute(self, statements: Sequence[tuple[str, tuple[Any, ...]]]) -> None: ...

    async def change(self, change: Change, *params: Any) -> list[Row]: ...

    async def read_slices(self, requests: Sequence[SliceRequest]) -> list[Slice]: ...

    async def write(self, members: Sequence[Member], commit_id: int, news: Sequence[str] = ()) -> list[Written]:
        """Write those whose revisions and fences hold. `news` reaches other processes if the first of them does."""
        ...

    async def write_locked(self, request: SliceRequest, plan: LockedPlan, commit_id: int) -> int | None: ...

    async def append(self, appends: Sequence[Append], commit_id: int) -> list[Written]: ...

    async def record(self, keys: Sequence[FactKey], plan: RecordPlan, commit_id: int) -> None: ...

    def locking(self, key: FactKey) -> Sequence[Statement]:
        """What a commit of another kind does first to judge a fact of this key as `record` does: alone."""
        ...

    async def landed(self, marks: Sequence[Mark], commit_id: int) -> dict[Mark, int]: ...

    async def claim(self, request: ClaimRequest, commit_id: int) -> list[Claimed]: ...

    async def heartbeat(self, beats: Sequence[Beat], lease_us: int, commit_id: int) -> list[Beaten]: ...

    async def send_hint(self, topics: Sequence[str]) -> None: ...

    async def listen(self, on_hint: OnHint) -> None: ...
