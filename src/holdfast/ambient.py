"""Where wall-clock time and randomness enter. No other module may ask the machine for either."""

from __future__ import annotations

import secrets
import time
from datetime import datetime
from typing import Protocol


class Clock(Protocol):
    """A clock that replaces the database's own, so that tests decide what time it is."""

    def now(self) -> datetime:
        """The present instant, timezone-aware."""
        ...


def wall_us() -> int:
    """The host's clock in microseconds. It may step; only `store` may judge a lease by it, and only on SQLite."""
    return time.time_ns() // 1_000


def monotonic() -> float:
    """Seconds on a clock that never steps, for deadlines inside one process."""
    return time.monotonic()


def pause(seconds: float) -> None:
    """Block this thread. Never on an event loop."""
    time.sleep(seconds)


def random_bits(count: int) -> int:
    return secrets.randbits(count)


def random_token() -> str:
    """A secret of 256 bits."""
    return secrets.token_urlsafe(32)


def jitter(seconds: float) -> float:
    """A random share of `seconds`: full jitter, so that many who failed together do not return together."""
    return seconds * secrets.randbits(24) / (1 << 24)
