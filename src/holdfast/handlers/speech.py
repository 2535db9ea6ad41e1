"""What a tick says, in order: events on disk when their caller goes on, deltas merged, messages begun and ended."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple

Seqs = list[tuple[int, int]]
"""Where words stand: ranges of seqs."""

speaker: ContextVar[Seqs | None] = ContextVar("holdfast_speaker", default=None)
"""Who speaks just now, if someone wants to know where their words will stand: the place to write it down."""

IN_MESSAGE = frozenset({"text", "reasoning"})
MERGE_S = 0.05
MERGE_BYTES = 1_024


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


class Speech:
    """The events of one tick. `text` and `reasoning` stand inside messages, whose ends are stored too."""

    def __init__(self, say: Say, tick_id: str) -> None:
        self._say = say
        self._tick_id = tick_id
        self._messages = 0
        self._message_id = ""
        self._message_of: Seqs | None = None
        self._is_open = False
        self._deltas: list[Said] = []
        self._timer: asyncio.TimerHandle | None = None
        self._flushes: set[asyncio.Task[None]] = set()
        self._is_due = False
        # One speaker at a time, so that what was said first has the lower seq.
        self._turn = asyncio.Lock()

    async def emit(self, said: Sequence[Said]) -> list[int]:
        """Store these events; answer their seqs."""
        async with self._turn:
            return await self._store(said)

    def stream(self, delta: Said) -> None:
        """Add a delta; it is stored within moments, merged with its neighbours, and before anything said later."""
        last = self._deltas[-1] if self._deltas else None
        alike = last is not None and last.type == delta.type and last.seqs is delta.seqs
        if last is not None and alike and last.size + delta.size <= MERGE_BYTES:
            self._deltas[-1] = last._replace(data=last.data + delta.data, repaired=last.repaired or delta.repaired)
        else:
            self._deltas.append(delta)
        if len(self._deltas) > 1 or self._deltas[-1].size >= MERGE_BYTES:
            self._flush_soon()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(MERGE_S, self._flush_soon)

    async def flush(self) -> None:
        """Everything that was streamed so far is on disk."""
        async with self._turn:
            await self._store(())

    async def conclude(self, seqs: Seqs) -> None:
        """This speaker has ended: everything they said is on disk, and so is the end of a message they left open."""
        async with self._turn:
            await self._store(())
            if self._is_open and self._message_of is seqs:
                await self._store([Said("message_end", {"message_id": self._message_id}, seqs=seqs)])

    async def rest(self) -> None:
        """Something else comes now: everything said is on disk, and so is the end of a message that is open."""
        async with self._turn:
            await self._store(())
            if self._is_open:
                end = Said("message_end", {"message_id": self._message_id}, seqs=self._message_of)
                await self._store([end])

    async def last_words(self) -> list[Said]:
        """What must still be stored, with the outcome: the rest of a stream and the end of an open message."""
        self._stop_timer()
        if self._flushes:
            await asyncio.gather(*self._flushes, return_exceptions=True)
        async with self._turn:
            events, _ = self._framed(self._take_deltas())
            if self._is_open:
                events.append(self._end())
            return events

    def close(self) -> None:
        """Say nothing more."""
        self._stop_timer()
        for flush in self._flushes:
            flush.cancel()

    async def _store(self, said: Sequence[Said]) -> list[int]:
        deltas = self._take_deltas()
        if not deltas and not said:
            return []
        before = self._is_open, self._messages, self._message_id
        events, places = self._framed([*deltas, *said])
        try:
            first = await self._say(events)
        except BaseException:
            # Nothing of it is stored: no message was begun or ended, and what was streamed waits for the next try.
            self._is_open, self._messages, self._message_id = before
            self._deltas = deltas + self._deltas
            raise
        for seq, event in enumerate(events, start=first):
            if event.seqs is not None:
                event.seqs.append((seq, seq))
        return [first + place for place in places[len(deltas) :]]

    def _flush_soon(self) -> None:
        self._stop_timer()
        if self._is_due:
            return
        self._is_due = True
        task = asyncio.get_running_loop().create_task(self._flush_quietly())
        self._flushes.add(task)
        task.add_done_callback(self._flushes.discard)

    async def _flush_quietly(self) -> None:
        """Nobody waits for a delta. One that could not be stored stays; whoever speaks next meets what is wrong."""
        try:
            await self.flush()
        except Exception:
            return

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
