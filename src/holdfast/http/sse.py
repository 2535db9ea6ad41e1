"""The response of an event stream: bytes at once, comments while nothing happens, and an end whenever one is due.

It ends when its events do, when the reader goes, when the process leaves, when the reader cannot keep up, and after a
while in any case. Closing a stream never cancels a run.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from contextlib import ExitStack

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from holdfast import ambient
from holdfast.http.frames import OPENING, farewell
from holdfast.http.readers import Reader
from holdfast.http.service import Service

LAST_WORDS_S = 1.0
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache, no-store, no-transform"),
    (b"x-accel-buffering", b"no"),
]

Chunks = AsyncGenerator[bytes, None]


class EventStream(Response):
    """Sends what `chunks` yields. `reader` says when it must end although there is more."""

    media_type = "text/event-stream"

    def __init__(self, service: Service, user_id: str, chunks: Chunks, reader: Reader) -> None:
        self.status_code = 200
        self.background = None
        self.body = b""
        self.raw_headers = list(_HEADERS)
        self._service = service
        self._chunks = chunks
        self._reader = reader
        # Counted from here on, so that a reader too many is refused before anything is sent.
        self._held = ExitStack()
        self._held.enter_context(service.gate.stream(user_id))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        metrics = self._service.metrics
        metrics.streams.inc()
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await send({"type": "http.response.body", "body": OPENING, "more_body": True})
            await self._stream(receive, send)
        finally:
            metrics.streams.dec()
            self._held.close()

    async def _stream(self, receive: Receive, send: Send) -> None:
        producing = asyncio.create_task(self._produce(send))
        gone = asyncio.create_task(_until_gone(receive))
        try:
            with self._service.readers.having(self._reader):
                await asyncio.wait(
                    {producing, gone, self._reader.stopped},
                    timeout=self._service.limits.stream_s,
                    return_when=asyncio.FIRST_COMPLETED,
                )
        finally:
            producing.cancel()
            gone.cancel()
            result, _ = await asyncio.gather(producing, gone, return_exceptions=True)
        is_whole = result is None
        if isinstance(result, Exception):
            raise result
        if not gone.cancelled():
            return
        if self._reader.is_lost:
            self._service.metrics.dropped.inc()
        await self._end(send, b"" if is_whole else farewell(round(500 + ambient.jitter(2_500))))

    async def _produce(self, send: Send) -> None:
        async with contextlib.aclosing(self._chunks) as chunks:
            async for chunk in chunks:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})

    async def _end(self, send: Send, words: bytes) -> None:
        """Say goodbye; somebody who has stopped reading will not hear it."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS_S):
                await send({"type": "http.response.body", "body": words, "more_body": False})


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
