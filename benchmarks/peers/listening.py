"""Readers of event streams that cost next to nothing, or they would measure themselves: sockets, and one pattern."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from urllib.parse import urlsplit

from benchmarks.peers.driving import now_ms

SAMPLES_MAX = 2_000
AT_ONCE = 50
"""Connections that are being opened at the same time: more would meet a full backlog."""
_NOTE = re.compile(rb'event: note\ndata: \{"at":\[(\d+),([\d.]+)\]')
_OPENED = b"event: run_queued\n"
_LAST_CHUNK = b"\r\n0\r\n\r\n"


class Listener(asyncio.Protocol):
    """One connection. It keeps how old each note was, and refuses to go on after one that is missing or came twice."""

    def __init__(self, crowd: Crowd, request: bytes) -> None:
        self.ages: list[float] = []
        self._crowd = crowd
        self._request = request
        self._rest = b""
        loop = asyncio.get_running_loop()
        self.opened: asyncio.Future[None] = loop.create_future()
        """Done once the first event of the run is here."""
        self.ended: asyncio.Future[float] = loop.create_future()
        """The instant at which the stream ended."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        now = now_ms()
        told = self._rest + data if self._rest else data
        if not self.opened.done() and _OPENED in told:
            self.opened.set_result(None)
        place = 0
        for found in _NOTE.finditer(told):
            number, place = int(found[1]), found.end()
            if number != len(self.ages):
                self._crowd.broken = f"a stream told {number} when {len(self.ages)} was due"
            self.ages.append(now - float(found[2]))
            self._crowd.count(self)
        if told.endswith(_LAST_CHUNK):
            self._end(now)
        # Half a frame is looked at again, together with its other half.
        self._rest = told[max(place, len(told) - 400) :]

    def connection_lost(self, error: Exception | None) -> None:
        self._end(now_ms())
        if not self.opened.done():
            self.opened.set_exception(ConnectionError("a stream ended before its first event"))

    def _end(self, at_ms: float) -> None:
        if not self.ended.done():
            self.ended.set_result(at_ms)


class Crowd:
    """All listeners of one process, and how many of them have heard enough."""

    def __init__(self, address: str, notes: int) -> None:
        place = urlsplit(address)
        self._host, self._port = place.hostname or "", place.port or 80
        self._notes = notes
        self.listeners: list[Listener] = []
        self._lacking = 0
        self.broken = ""
        """What was wrong with the order in which something was told."""
        self.satisfied = asyncio.Event()
        """Set once everybody has heard that many notes."""

    async def join(self, run_ids: Sequence[str]) -> None:
        """Follow these runs, one connection each; returns once every one of them is open."""
        self._lacking += len(run_ids)
        for first in range(0, len(run_ids), AT_ONCE):
            await asyncio.gather(*(self._join(run_id) for run_id in run_ids[first : first + AT_ONCE]))

    async def _join(self, run_id: str) -> None:
        request = f"GET /api/runs/{run_id}/events HTTP/1.1\r\nHost: {self._host}\r\n\r\n".encode()
        loop = asyncio.get_running_loop()
        _, listener = await loop.create_connection(lambda: Listener(self, request), self._host, self._port)
        self.listeners.append(listener)
        await listener.opened

    def count(self, listener: Listener) -> None:
        if len(listener.ages) == self._notes:
            self._lacking -= 1
            if not self._lacking:
                self.satisfied.set()

    def ages(self, skipped: int) -> list[float]:
        """The ages of what everybody heard, without the first few, which found cold caches."""
        return sorted(age for each in self.listeners for age in each.ages[skipped : self._notes])


def thinned(ascending: Sequence[float]) -> list[float]:
    """As many of them as a picture needs, evenly from the first to the last."""
    step = max(len(ascending) // SAMPLES_MAX, 1)
    return [round(value, 3) for value in ascending[::step]]
