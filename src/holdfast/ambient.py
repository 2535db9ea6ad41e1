"""Where wall-clock time and randomness enter. No other module may ask the machine for either.

A simulation puts a `World` of its own in their place, for the tasks that it starts and nobody else.
"""

from __future__ import annotations

import os
import random
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from typing import Protocol

FIRST_US = 1_893_456_000_000_000


class Clock(Protocol):
    """A clock that replaces the database's own, so that tests decide what time it is."""

    def now(self) -> datetime:
        """The present instant, timezone-aware."""
        ...


class World:
    """Chance from a seed and time that moves only when asked: the same seed gives the same world again."""

    def __init__(self, seed: int, monotonic: Callable[[], float]) -> None:
        self.chance = random.Random(seed)
        self.monotonic = monotonic
        self._wall_us = FIRST_US

    def wall_us(self) -> int:
        # A millisecond for every look, so that ids made one after the other are ordered.
        self._wall_us += 1_000
        return self._wall_us


_world: ContextVar[World | None] = ContextVar("holdfast_world", default=None)


@contextmanager
def inside(world: World) -> Iterator[World]:
    """Live in this world, with every task that is started meanwhile."""
    token = _world.set(world)
    try:
        yield world
    finally:
        _world.reset(token)


def wall_us() -> int:
    """The host's clock in microseconds. It may step; only `store` may judge a lease by it, and only on SQLite."""
    world = _world.get()
    return world.wall_us() if world else time.time_ns() // 1_000


def monotonic() -> float:
    """Seconds on a clock that never steps, for deadlines inside one process."""
    world = _world.get()
    return world.monotonic() if world else time.monotonic()


def pause(seconds: float) -> None:
    """Block this thread. Never on an event loop."""
    time.sleep(seconds)


def random_bytes(count: int) -> bytes:
    """Chance that nobody can guess. Asking costs more than what is asked for: who needs many asks once."""
    world = _world.get()
    return world.chance.randbytes(count) if world else os.urandom(count)


def random_bits(count: int) -> int:
    return int.from_bytes(random_bytes((count + 7) // 8)) >> (-count % 8)


def random_token() -> str:
    """A secret of 256 bits, as text that fits into an address."""
    return random_tokens(1)[0]


def random_tokens(count: int) -> list[str]:
    """As many of them at once."""
    chance = random_bytes(32 * count)
    return [urlsafe_b64encode(chance[place : place + 32]).rstrip(b"=").decode() for place in range(0, 32 * count, 32)]


def jitter(seconds: float) -> float:
    """A random share of `seconds`: full jitter, so that many who failed together do not return together."""
    return seconds * random_bits(24) / (1 << 24)
