"""Limits: how much one request may carry, and how much one user may ask for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from holdfast import ambient
from holdfast.errors import HoldfastError

USERS_MAX = 10_000


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What this process allows. None means no limit."""

    body_bytes: int = 8 << 20
    commands_per_second: float | None = None
    """How fast one user may send requests that change something, on average; a few seconds' worth may come at once."""
    starts_per_second: float | None = None
    """How fast one caller may begin logins and connections, which leave a row each before anybody is known."""
    streams_per_user: int | None = None
    stream_s: float = 900.0
    """A stream ends after so long and its reader resumes: so whoever is no longer welcome is asked again."""
    database_s: float = 5.0
    """How long a request waits for a database that does not answer."""


class TooMany(HoldfastError):
    """This user asks for too much at once. Wait `retry_after` seconds."""

    code = "too_many_requests"

    def __init__(self, message: str, *, retry_after: int) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Gate:
    """Counts what each user asks for, in this process."""

    BURST_S = 5.0

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._streams: Counter[str] = Counter()
        self._buckets: dict[str, tuple[float, float]] = {}

    def command(self, user_id: str) -> None:
        """One more request that changes something, or `TooMany`."""
        self._count(f"user {user_id}", self._limits.commands_per_second)

    def start(self, who: str) -> None:
        """One more login or connection that somebody begins, or `TooMany`. Who is not known yet is an address."""
        self._count(f"start {who}", self._limits.starts_per_second)

    def _count(self, who: str, rate: float | None) -> None:
        if rate is None:
            return
        now = ambient.monotonic()
        most = max(1.0, rate * self.BURST_S)
        left, at = self._buckets.get(who, (most, now))
        left = min(most, left + (now - at) * rate)
        if left < 1:
            raise TooMany("too many requests; slow down", retry_after=max(1, round((1 - left) / rate)))
        if len(self._buckets) >= USERS_MAX:
            # Whoever has been away for that long has a full bucket again anyway.
            self._buckets = {name: each for name, each in self._buckets.items() if now - each[1] < self.BURST_S}
        self._buckets[who] = (left - 1, now)

    @contextmanager
    def stream(self, user_id: str) -> Iterator[None]:
        """One more open stream, or `TooMany`."""
        most = self._limits.streams_per_user
        if most is not None and self._streams[user_id] >= most:
            raise TooMany(f"{most} streams are open already; close one", retry_after=5)
        self._streams[user_id] += 1
        try:
            yield
        finally:
            self._streams[user_id] -= 1
            if not self._streams[user_id]:
                del self._streams[user_id]
