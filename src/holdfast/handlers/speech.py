"""What a tick says, in order: events on disk when their caller goes on, deltas merged, messages begun and ended."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

Said = tuple[str, Any]
Say = Callable[[Sequence[Said]], Awaitable[int]]
"""Commit these events and answer the seq of the first; they follow each other."""

IN_MESSAGE = frozenset({"text", "reasoning"})
MERGE_S = 0.05
MERGE_CHARS = 1_024


class _Delta(str):
    """Text that was streamed; its event names the message it belongs to."""

    __slots__ = ()


class Speech:
    """The events of one tick. `text` and `reasoning` stand inside messages, whose ends are stored too."""

    def __init__(self, say: Say, tick_id: str) -> None:
        self._say = say
        self._tick_id = tick_id
        self._messages = 0
        self._is_open = False
        self._deltas: list[tuple[str, list[str]]] = []
        self._length = 0
        self._timer: asyncio.TimerHandle | None = None
        self._flushes: set[asyncio.Task[None]] = set()
        self._error: BaseException | None = None
        # One speaker at a time, so that what was said first has the lower seq.
        self._turn = asyncio.Lock()

    async def emit(self, said: Sequence[Said]) -> list[int]:
        """Store these events; answer their seqs."""
        async with self._turn:
            deltas = self._take_deltas()
            places = await self._store([*deltas, *said])
            return places[len(deltas) :]

    def stream(self, kind: str, text: str) -> None:
        """Add a delta; it is stored within moments, merged with its neighbours, and before anything said later."""
        if self._error is not None:
            raise self._error
        if not text:
            return
        if not self._deltas or self._deltas[-1][0] != kind:
            self._deltas.append((kind, []))
        self._deltas[-1][1].append(text)
        self._length += len(text)
        if self._length >= MERGE_CHARS:
            self._flush_soon()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(MERGE_S, self._flush_soon)

    async def flush(self) -> None:
        """Everything that was streamed so far is on disk."""
        async with self._turn:
            await self._store(self._take_deltas())

    async def last_words(self) -> tuple[Said, ...]:
        """What must still be stored, with the outcome: the rest of a stream and the end of an open message."""
        self._stop_timer()
        if self._flushes:
            await asyncio.gather(*self._flushes, return_exceptions=True)
        async with self._turn:
            events, _ = self._framed(self._take_deltas())
            if self._is_open:
                events.append(self._end())
            return tuple(events)

    def close(self) -> None:
        """Say nothing more."""
        self._stop_timer()
        for flush in self._flushes:
            flush.cancel()

    async def _store(self, said: Sequence[Said]) -> list[int]:
        if self._error is not None:
            raise self._error
        if not said:
            return []
        before = self._is_open, self._messages
        events, places = self._framed(said)
        try:
            first = await self._say(events)
        except BaseException:
            # Nothing of it is stored, so no message was begun or ended.
            self._is_open, self._messages = before
            raise
        return [first + place for place in places]

    def _flush_soon(self) -> None:
        self._stop_timer()
        task = asyncio.get_running_loop().create_task(self._flush_quietly())
        self._flushes.add(task)
        task.add_done_callback(self._flushes.discard)

    async def _flush_quietly(self) -> None:
        """Nobody waits for a delta, so an error is kept for whoever speaks next."""
        try:
            await self.flush()
        except Exception as error:
            self._error = error

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _take_deltas(self) -> list[Said]:
        self._stop_timer()
        deltas, self._deltas, self._length = self._deltas, [], 0
        return [(kind, _Delta("".join(texts))) for kind, texts in deltas]

    def _framed(self, said: Sequence[Said]) -> tuple[list[Said], list[int]]:
        """The events with the boundaries of messages between them, and where each given one stands."""
        events: list[Said] = []
        places: list[int] = []
        for kind, data in said:
            if kind in IN_MESSAGE and not self._is_open:
                events.append(self._begin())
            elif kind not in IN_MESSAGE and kind != "message_end" and self._is_open:
                events.append(self._end())
            if kind in ("message_start", "message_end"):
                self._is_open = kind == "message_start"
            places.append(len(events))
            is_delta = isinstance(data, _Delta)
            events.append((kind, {"message_id": self._message_id(), "content": str(data)} if is_delta else data))
        return events, places

    def _begin(self) -> Said:
        self._messages += 1
        self._is_open = True
        return "message_start", {"message_id": self._message_id(), "role": "assistant"}

    def _end(self) -> Said:
        self._is_open = False
        return "message_end", {"message_id": self._message_id()}

    def _message_id(self) -> str:
        return f"{self._tick_id}:{self._messages}"
