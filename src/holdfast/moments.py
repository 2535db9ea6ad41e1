"""Instants: aware datetimes outside, integer microseconds since the epoch inside."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def to_us(moment: datetime) -> int:
    """Microseconds since the epoch. A naive datetime is refused: its meaning depends on where it is read."""
    if moment.tzinfo is None:
        raise ValueError(f"{moment!r} has no timezone; use an aware datetime, for example with tzinfo=UTC")
    return (moment - EPOCH) // _MICROSECOND


@lru_cache(maxsize=1_024)
def from_us(moment: int) -> datetime:
    """The instant as people read it. What was committed together has one, and is asked for it one by one."""
    return EPOCH + timedelta(microseconds=moment)
