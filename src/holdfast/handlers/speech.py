"""What a tick says, in order: events on disk when their caller goes on, deltas merged, messages begun and ended."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple

from holdfast.errors import InvalidValue

Seqs = list[tuple[int, int]]
"""Where words stand: ranges of seqs."""

speaker: ContextVar[Seqs | None] = ContextVar("holdfast_speaker", default=None)
"""Who speaks just now, if someone wants to know where their words will stand: the place to write it down."""

IN_MESSAGE = frozenset({"text", "reasoning"})
MERGE_S = 0.05
MERGE_BYTES = 1_024
TOGETHER_MAX = 500
CONCLUDE = "\0conclude"
REST = "\0rest"
"""No events, but places in what is said: here the message that this speaker left open ends, here any message."""


class Said(NamedTuple):
    """An event. Text that was streamed is `merged`: its event names the message it belongs to."""

    type: str
    data: Any = None
    repaired: bool = False
    merged: bool = False
    seqs: Seqs | None = None
    """Where its speaker notes the seq that it gets."""

    @property
    def size(self) -> int:
        return len(self.data.encode())


Say = Callable[[Sequence[Said]], Awaitable[int]]
"""Commit these events and answer the seq of the first; they follow each other."""


class _Group:
    """What someone said at once, after what was streamed before it. Their seqs are the answer."""

    __slots__ = ("answer", "deltas", "said")

    def __init__(self, deltas: list[Said], said: Sequence[Said]) -> None:
        self.deltas = deltas
        self.said = said
        self.answer: asyncio.Future[list[int]] = asyncio.get_running_loop().create_future()

    def fail(self, error: BaseException) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)
            # Nobody waits for a delta. One that could not be stored stays; whoever speaks next meets what is wrong.
            self.answer.exception()


class Speech:
    """The events of one tick. `text` and `reasoning` stand inside messages, whose ends are stored too.

    What is said while a commit is on its way goes with the next one, all of it together and in order.
    """

    def __init__(self, say: Say, tick_id: str) -> None:
        self._say = say
        self._tick_id = tick_id
        self._messages = 0
        self._message_id = ""
        self._message_of: Seqs | None = None
        self._is_open = False
        self._deltas: list[Said] = []
        self._timer: asyncio.TimerHandle | None = None
        self._is_due = False
        self._groups: list[_Group] = []
        self._storing: asyncio.Task[None] | None = None

    async def emit(self, said: Sequence[Said]) -> list[int]:
        """Store these events; answer their seqs."""
        return await self._queue(said)

    def stream(self, delta: Said) -> None:
        """Add a delta; it is stored within moments, merged with its neighbours, and before anything said later."""
        last = self._deltas[-1] if self._deltas else None
        alike = last is not None and last.type == delta.type and last.seqs is delta.seqs
        if last is not None and alike and last.size + delta.size <= MERGE_BYTES:
            self._deltas[-1] = last._replace(data=last.data + delta.data, repaired=last.repaired or delta.repaired)
        else:
            self._deltas.append(delta)
        if len(self._deltas) > 1 or self._deltas[-1].size >= MERGE_BYTES:
            self._queue_soon()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(MERGE_S, self._queue_soon)

    async def flush(self) -> None:
        """Everything that was streamed so far is on disk."""
        if self._has_more:
            await self._queue(())

    async def conclude(self, seqs: Seqs) -> None:
        """This speaker has ended: everything they said is on disk, and so is the end of a message they left open."""
        if self._has_more or self._is_open:
            await self._queue([Said(CONCLUDE, seqs=seqs)])

    async def rest(self) -> None:
        """Something else comes now: everything said is on disk, and so is the end of a message that is open."""
        if self._has_more or self._is_open:
            await self._queue([Said(REST)])

    async def last_words(self) -> list[Said]:
        """What must still be stored, with the outcome: the rest of a stream and the end of an open message."""
        while self._storing is not None:
            await asyncio.wait([self._storing])
        events, _ = self._framed(self._take_deltas())
        if self._is_open:
            events.append(self._end())
        return events

    def close(self) -> None:
        """Say nothing more."""
        self._stop_timer()
        if self._storing is not None:
            self._storing.cancel()

    @property
    def _has_more(self) -> bool:
        return bool(self._deltas or self._storing)

    def _queue_soon(self) -> None:
        """Not at once: deltas that come in the same breath are merged first."""
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._queue_deltas)

    def _queue_deltas(self) -> None:
        if self._deltas:
            self._queue(())

    def _queue(self, said: Sequence[Said]) -> asyncio.Future[list[int]]:
        group = _Group(self._take_deltas(), said)
        self._groups.append(group)
        if self._storing is None:
            self._storing = asyncio.get_running_loop().create_task(self._store_queued())
        return group.answer

    async def _store_queued(self) -> None:
        """One commit after the other, so that what was said first has the lower seq."""
        together: list[_Group] = []
        try:
            while self._groups:
                together, self._groups = self._groups[:TOGETHER_MAX], self._groups[TOGETHER_MAX:]
                await self._store(together)
        finally:
            self._storing = None
            for group in (*together, *self._groups):
                group.answer.cancel()

    async def _store(self, groups: Sequence[_Group]) -> None:
        before = self._is_open, self._messages, self._message_id, self._message_of
        deltas = [delta for group in groups for delta in group.deltas]
        events, places = self._framed([said for group in groups for said in (*group.deltas, *group.said)])
        try:
            first = await self._say(events) if events else 0
        except BaseException as error:
            # Nothing of it is stored: no message was begun or ended, and what was streamed waits for the next try.
            self._is_open, self._messages, self._message_id, self._message_of = before
            if isinstance(error, InvalidValue) and len(groups) > 1:
                # One that cannot be kept must not cost the others their words.
                for group in groups:
                    await self._store([group])
                return
            self._deltas = deltas + self._deltas
            for group in groups:
                group.fail(error)
            if not isinstance(error, Exception):
                raise
            return
        for seq, event in enumerate(events, start=first):
            if event.seqs is not None:
                event.seqs.append((seq, seq))
        seqs = iter(first + place for place in places)
        for group in groups:
            for _ in group.deltas:
                next(seqs)
            answer = [next(seqs) for _ in group.said]
            if not group.answer.done():
                group.answer.set_result(answer)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _take_deltas(self) -> list[Said]:
        self._stop_timer()
        self._is_due = False
        deltas, self._deltas = self._deltas, []
        return deltas

    def _framed(self, said: Sequence[Said]) -> tuple[list[Said], list[int]]:
        """The events with the boundaries of messages between them, and where each given one stands."""
        events: list[Said] = []
        places: list[int] = []
        for event in said:
            if event.type in (CONCLUDE, REST):
                if self._is_open and (event.type == REST or self._message_of is event.seqs):
                    events.append(self._end())
                places.append(len(events))
                continue
            if event.type in IN_MESSAGE and self._is_open and self._message_of is not event.seqs:
                # A message has one speaker, so that it stands or falls as one.
                events.append(self._end())
            if event.type in IN_MESSAGE and not self._is_open:
                events.append(self._begin(event.seqs))
            elif event.type not in IN_MESSAGE and event.type != "message_end" and self._is_open:
                events.append(self._end())
            if event.type in ("message_start", "message_end"):
                self._follow(event)
            places.append(len(events))
            content = {"message_id": self._message_id, "content": event.data}
            events.append(event._replace(data=content) if event.merged else event)
        return events, places

    def _follow(self, boundary: Said) -> None:
        """The handler begins or ends a message by itself."""
        self._is_open = boundary.type == "message_start"
        if self._is_open:
            self._messages += 1
            self._message_of = boundary.seqs
            named = boundary.data.get("message_id") if isinstance(boundary.data, dict) else None
            self._message_id = named if isinstance(named, str) else self._next_id()

    def _begin(self, seqs: Seqs | None) -> Said:
        self._messages += 1
        self._is_open = True
        self._message_of = seqs
        self._message_id = self._next_id()
        return Said("message_start", {"message_id": self._message_id, "role": "assistant"}, seqs=seqs)

    def _end(self) -> Said:
        self._is_open = False
        return Said("message_end", {"message_id": self._message_id}, seqs=self._message_of)

    def _next_id(self) -> str:
        return f"{self._tick_id}:{self._messages}"
