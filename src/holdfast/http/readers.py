"""Who listens here: the queue of each connection, and one clock for all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from holdfast.http.frames import Frame

COMMENT_S = 10.0
"""After so long without a word a stream says that it is still there."""
FRAMES_MAX = 1_000
BYTES_MAX = 4 << 20
TURN = 200
_LOOKS = 2
"""How often the clock looks in that time: it has no other way to know when a stream spoke last."""


class Reader:
    """The queue of one connection. `is_lost` once more came than it could hold; what is in it then is not sent."""

    def __init__(self, *, frames_max: int = FRAMES_MAX, bytes_max: int = BYTES_MAX) -> None:
        self._loop = asyncio.get_running_loop()
        self._frames: list[Frame] = []
        self._bytes = 0
        self._frames_max = frames_max
        self._bytes_max = bytes_max
        self._is_news = False
        self._waiting: asyncio.Future[None] | None = None
        self._quiet = 0
        self.is_lost = False
        self.is_over = False
        self.stopped: asyncio.Future[None] = self._loop.create_future()
        """Done when the connection must end, whatever it is waiting for."""

    def put(self, items: Sequence[Frame], size: int) -> None:
        """These frames, of so many bytes together, are next."""
        if self.is_lost:
            return
        self._frames += items
        self._bytes += size
        if len(self._frames) > self._frames_max or self._bytes > self._bytes_max:
            self.is_lost = True
            self._frames = []
            self.stop()
        self.poke()

    def stop(self) -> None:
        if not self.stopped.done():
            self.stopped.set_result(None)

    def end(self) -> None:
        """The run is gone: there is nothing more to come."""
        self.is_over = True
        self.poke()

    def poke(self) -> None:
        """There is something to look at."""
        self._is_news = True
        self._wake()

    def tick(self) -> None:
        """Time has passed. Whoever has waited for long enough by now has waited in vain."""
        self._quiet += 1
        if self._quiet >= _LOOKS:
            self._wake()

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def take(self) -> Sequence[Frame] | None:
        """Everything that waits, perhaps nothing; None if nothing happened for `COMMENT_S`."""
        if not self._is_news:
            # A bare future: a timer of its own for each of a thousand readers would cost more than what they read.
            self._waiting = self._loop.create_future()
            await self._waiting
            self._waiting = None
        self._quiet = 0
        if not self._is_news:
            return None
        self._is_news = False
        taken, self._frames = self._frames, []
        self._bytes = 0
        return taken


class Readers:
    """All open streams of a process. They end together when it leaves, and share the clock of their comments."""

    def __init__(self) -> None:
        self._open: set[Reader] = set()
        self._is_leaving = False
        self._clock: asyncio.Task[None] | None = None

    @contextmanager
    def having(self, reader: Reader) -> Iterator[None]:
        """A stream that ends when we leave, and does not begin when we have."""
        self._open.add(reader)
        if self._is_leaving:
            reader.stop()
        elif self._clock is None or self._clock.done():
            self._clock = asyncio.create_task(self._tick())
        try:
            yield
        finally:
            self._open.discard(reader)

    def leave(self) -> None:
        """End every stream, those that are still to come included."""
        self._is_leaving = True
        if self._clock is not None:
            self._clock.cancel()
        for reader in self._open:
            reader.stop()

    async def _tick(self) -> None:
        """Let time pass for everybody, until nobody is left."""
        while self._open:
            await asyncio.sleep(COMMENT_S / _LOOKS)
            for place, reader in enumerate(tuple(self._open), start=1):
                reader.tick()
                if place % TURN == 0:
                    # Comments to many are no reason to keep an event waiting.
                    await asyncio.sleep(0)
