"""Hints: lossy news that something may be worth a look. Polling alone delivers everything; hints make it quick.

Inside one process a hint is an event. To other processes it travels after the commit, on a connection of its own,
with whatever gathered while the last one was on its way. A lost hint costs latency, never work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

from holdfast.errors import HoldfastError
from holdfast.store.database import Database
from holdfast.store.newborn import Newborn
from holdfast.store.types import Busy, OutcomeUnknown

EVERYTHING = "*"
NEWS_MAX = 1_000


class Listener:
    """One waiter's ear. Topics are thread names and `queue:<name>`; none means all."""

    def __init__(self, hints: Hints, topics: Iterable[str]) -> None:
        self._hints = hints
        self._topics = frozenset(topics)
        self._heard = asyncio.Event()
        self._news: set[str] = set()
        self._loop = asyncio.get_running_loop()
        self.on_news: Callable[[], None] | None = None
        """Called at once, for whoever cannot wait for their turn."""

    async def wait(self, timeout: float) -> bool:
        """True when there may be news, False after `timeout` seconds. News that came between two waits is kept."""
        try:
            async with asyncio.timeout(timeout):
                await self._heard.wait()
        except TimeoutError:
            return False
        finally:
            self._heard.clear()
        return True

    def news(self) -> frozenset[str]:
        """What was heard of since this was asked last; `*` stands for everything."""
        news, self._news = frozenset(self._news), set()
        return news

    def retune(self, topics: Iterable[str]) -> None:
        """Listen for these from now on."""
        self._topics = frozenset(topics)

    def close(self) -> None:
        self._hints.forget(self)

    def tell(self, topics: frozenset[str]) -> None:
        heard = topics if not self._topics or EVERYTHING in topics else self._topics & topics
        if not heard:
            return
        if _loop_here() is self._loop:
            # What happens here is told here, before whoever made it happen goes on.
            self._hear(heard)
        else:
            self._loop.call_soon_threadsafe(self._hear, heard)

    def _hear(self, topics: frozenset[str]) -> None:
        # Whoever never asks what was heard must not pay for it.
        if len(self._news) > NEWS_MAX:
            self._news = {EVERYTHING}
        self._news |= topics
        self._heard.set()
        if self.on_news is not None:
            self.on_news()


class Hints:
    """All listeners of one store, and the one sender to other processes."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.newborn = Newborn()
        self._listeners: set[Listener] = set()
        self._outgoing: set[str] = set()
        self._sender: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self._database.listen(self._received)

    async def stop(self) -> None:
        if self._sender is not None:
            await asyncio.gather(self._sender, return_exceptions=True)

    def listen(self, topics: Iterable[str] = ()) -> Listener:
        listener = Listener(self, topics)
        self._listeners.add(listener)
        return listener

    def forget(self, listener: Listener) -> None:
        self._listeners.discard(listener)

    def publish(self, topics: Iterable[str], *, told: bool = False) -> None:
        """Tell this process now and the others soon, unless the commit has told them."""
        news = frozenset(topics)
        self._tell(news)
        if told:
            return
        self._outgoing |= news
        if self._sender is None:
            self._sender = asyncio.create_task(self._send())

    async def _send(self) -> None:
        try:
            while self._outgoing:
                topics, self._outgoing = sorted(self._outgoing), set()
                await self._database.send_hint(topics)
        except (Busy, OutcomeUnknown, HoldfastError, OSError):
            # Nobody may wait for a hint or fail by one: the next poll finds what it spoke of.
            self._outgoing.clear()
        finally:
            self._sender = None

    def _received(self, topics: Sequence[str]) -> None:
        self._tell(frozenset(topics) or frozenset({EVERYTHING}))

    def _tell(self, topics: frozenset[str]) -> None:
        if EVERYTHING in topics:
            self.newborn.heard_all()
        else:
            self.newborn.heard(topics)
        for listener in tuple(self._listeners):
            listener.tell(topics)


def _loop_here() -> asyncio.AbstractEventLoop | None:
    """The loop that runs in this thread, if one does."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
