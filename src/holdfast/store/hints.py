"""Hints: lossy news that something may be worth a look. Polling alone delivers everything; hints make it quick.

Inside one process a hint is an event. To other processes it travels after the commit, on a connection of its own,
with whatever gathered while the last one was on its way; of single runs only while another process watches runs
(`watchers.py`). A lost hint costs latency, never work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

from holdfast.errors import HoldfastError
from holdfast.store.database import Database
from holdfast.store.newborn import Newborn
from holdfast.store.types import Busy, OutcomeUnknown
from holdfast.store.watchers import ASKING, OF_RUNS, SAY_S, SPOKEN, WATCHING, Watchers

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

    @property
    def watches(self) -> bool:
        """Is it about single runs, whose commits others keep to themselves unless somebody watches?"""
        return not self._topics or any(topic.startswith(OF_RUNS) for topic in self._topics)

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
        self._hints.say_what_is_watched(self)

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
        self._watchers = Watchers()
        self._listeners: set[Listener] = set()
        self._outgoing: set[str] = set()
        self._sender: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        """Where others are heard, once they are."""
        self._saying: asyncio.TimerHandle | None = None
        self._is_over = False

    async def start(self) -> None:
        self._watchers, self._is_over = Watchers(), False
        await self._database.listen(self._received)

    async def stop(self) -> None:
        self._is_over = True
        self._be_silent()
        if self._sender is not None:
            await asyncio.gather(self._sender, return_exceptions=True)

    def listen(self, topics: Iterable[str] = ()) -> Listener:
        listener = Listener(self, topics)
        self._listeners.add(listener)
        self.say_what_is_watched(listener)
        return listener

    def forget(self, listener: Listener) -> None:
        self._listeners.discard(listener)

    def publish(self, topics: Iterable[str], *, told: Iterable[str] = ()) -> None:
        """Tell this process now, and the others soon of what the commit has not `told` them."""
        news = frozenset(topics)
        self._tell(news)
        # Asked again: somebody may have begun to watch while it was committed.
        self._tell_others(self._watchers.wanted(news.difference(told)))

    def wanted(self, topics: Iterable[str]) -> set[str]:
        """Those of these topics that another process may want to hear of."""
        return self._watchers.wanted(topics)

    def say_what_is_watched(self, listener: Listener) -> None:
        """Let others know that runs are watched here, if this listener does and nobody said so lately."""
        if self._loop is None or self._is_over or self._saying is not None or not listener.watches:
            return
        if _loop_here() is self._loop:
            self._say()
        else:
            self._loop.call_soon_threadsafe(self._say)

    def _say(self) -> None:
        """Say it now, and again for as long as it is true."""
        self._be_silent()
        if self._loop is None or self._is_over:
            return
        if any(listener.watches for listener in tuple(self._listeners)):
            self._tell_others({WATCHING})
            self._saying = self._loop.call_later(SAY_S, self._say)

    def _be_silent(self) -> None:
        if self._saying is not None:
            self._saying.cancel()
            self._saying = None

    def _tell_others(self, topics: set[str]) -> None:
        self._outgoing |= topics
        if self._outgoing and self._sender is None:
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
        if self._is_over:
            return
        self._loop = asyncio.get_running_loop()
        heard = frozenset(topics)
        if not heard and self._watchers.unknown():
            self._tell_others({ASKING})
        if WATCHING in heard and self._watchers.heard():
            # They looked before they could be told of what was committed since.
            self._tell_others({EVERYTHING})
        if ASKING in heard or (not heard and self._saying is None):
            self._say()
        if heard - SPOKEN or not heard:
            self._tell(heard - SPOKEN or frozenset({EVERYTHING}))

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
