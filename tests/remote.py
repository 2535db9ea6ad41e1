"""One runtime made of two processes on one file: every other call is carried out by the other process."""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import AsyncIterator
from datetime import datetime
from multiprocessing.connection import Connection
from typing import Any, ClassVar, Protocol, Self

from holdfast import Holdfast


class Clock(Protocol):
    def now(self) -> datetime: ...


class _Told:
    """The other process's clock: it knows the time it was last told."""

    def __init__(self, now: datetime) -> None:
        self.value = now

    def now(self) -> datetime:
        return self.value


def serve(pipe: Connection) -> None:
    """The other process: one runtime after another, each until it is told to stop."""
    while (opened := pipe.recv()) is not None:
        url, now = opened
        asyncio.run(_serve(pipe, url, _Told(now)))
        pipe.send(None)


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


class _Helper:
    """The other process as this one sees it. Starting one takes long, so it serves many tests."""

    idle: ClassVar[list[_Helper]] = []

    def __init__(self) -> None:
        self.pipe, theirs = multiprocessing.Pipe()
        self._is_in_step = True
        context = multiprocessing.get_context("spawn")
        self._process = context.Process(target=serve, args=(theirs,), daemon=True)
        self._process.start()

    @classmethod
    def take(cls) -> _Helper:
        return cls.idle.pop() if cls.idle else cls()

    def ask(self, question: Any) -> Any:
        """Send and wait. One who is left before it has answered is not asked again."""
        self._is_in_step = False
        self.pipe.send(question)
        answer = self.pipe.recv()
        self._is_in_step = True
        return answer

    def give_back(self) -> None:
        """Let it close its runtime and wait for the next."""
        if self._is_in_step:
            self.ask(None)
            self.idle.append(self)
        else:
            self._process.terminate()


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
        self._url = url
        self._clock = clock
        self._local = Holdfast(url, clock=clock)
        self._helper = _Helper.take()
        self._lock = asyncio.Lock()
        self._turn = 0
        self.journal = _Path(self, "journal")

    async def __aenter__(self) -> Self:
        await self._local.open()
        await asyncio.to_thread(self._helper.ask, (self._url, self._clock.now()))
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self._helper.give_back)
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
            question = (path, args, options, self._clock.now())
            succeeded, answer = await asyncio.to_thread(self._helper.ask, question)
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
