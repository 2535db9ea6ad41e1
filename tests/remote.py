"""One runtime made of two processes on one file: every other call is carried out by the other process."""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import AsyncIterator
from datetime import datetime
from multiprocessing.connection import Connection
from typing import Any, Protocol, Self

from holdfast import Holdfast


class Clock(Protocol):
    def now(self) -> datetime: ...


class _Told:
    """The other process's clock: it knows the time it was last told."""

    def __init__(self, now: datetime) -> None:
        self.value = now

    def now(self) -> datetime:
        return self.value


def serve(pipe: Connection, url: str, now: datetime) -> None:
    """The other process: carry out calls until told to stop."""
    asyncio.run(_serve(pipe, url, _Told(now)))


async def _serve(pipe: Connection, url: str, clock: _Told) -> None:
    async with Holdfast(url, clock=clock) as holdfast:
        pipe.send(None)
        while (call := pipe.recv()) is not None:
            path, args, options, clock.value = call
            try:
                answer = await _call(holdfast, path, args, options)
                pipe.send((True, answer))
            except Exception as error:
                pipe.send((False, error))


async def _call(holdfast: Any, path: str, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    target = holdfast
    for name in path.split("."):
        target = getattr(target, name)
    result = target(*args, **options)
    if path == "events":
        return [event async for event in result]
    return await result


class TwoProcesses:
    """Looks like a `Holdfast`; works like two of them that never share memory."""

    def __init__(self, url: str, clock: Clock) -> None:
        self._clock = clock
        self._local = Holdfast(url, clock=clock)
        self._pipe, theirs = multiprocessing.Pipe()
        context = multiprocessing.get_context("spawn")
        self._process = context.Process(target=serve, args=(theirs, url, clock.now()), daemon=True)
        self._lock = asyncio.Lock()
        self._turn = 0
        self.journal = _Path(self, "journal")

    async def __aenter__(self) -> Self:
        await self._local.open()
        self._process.start()
        await asyncio.to_thread(self._pipe.recv)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._pipe.send(None)
        await asyncio.to_thread(self._process.join, 20)
        await self._local.close()

    def __getattr__(self, name: str) -> Any:
        if name in ("owner_id", "lease_ms", "queue", "_store"):
            return getattr(self._local, name)
        if name == "events":
            return self._events
        return _Path(self, name)

    async def _events(self, *args: Any, **options: Any) -> AsyncIterator[Any]:
        for event in await self.call("events", args, options):
            yield event

    async def call(self, path: str, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        self._turn += 1
        if self._turn % 2:
            return await _call(self._local, path, args, options)
        async with self._lock:
            self._pipe.send((path, args, options, self._clock.now()))
            succeeded, answer = await asyncio.to_thread(self._pipe.recv)
        if succeeded:
            return answer
        raise answer


class _Path:
    """A dotted name that has not been called yet."""

    def __init__(self, pair: TwoProcesses, path: str) -> None:
        self._pair = pair
        self._path = path

    def __getattr__(self, name: str) -> Any:
        if self._path == "journal" and name == "store":
            return self._pair._local.journal.store
        return _Path(self._pair, f"{self._path}.{name}")

    async def __call__(self, *args: Any, **options: Any) -> Any:
        return await self._pair.call(self._path, args, options)
