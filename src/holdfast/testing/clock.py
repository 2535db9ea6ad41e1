"""A clock that only tests move."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from holdfast.errors import InvalidValue


class VirtualClock:
    """Stands still until `advance`. Every instance on one database must be given the same one."""

    def __init__(self, start: datetime | None = None) -> None:
        if start is not None and start.tzinfo is None:
            raise InvalidValue("start has no timezone; use an aware datetime, for example with tzinfo=UTC")
        self._now = datetime(2030, 1, 1, tzinfo=UTC) if start is None else start.astimezone(UTC)

    def now(self) -> datetime:
        """The present instant, timezone-aware."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Move on by some seconds."""
        self._now += timedelta(seconds=seconds)
