"""How a side is driven: it gets ready, waits for the word, works until it is told to stop, and says what it saw.

Only the standard library is used here, because every side runs in an environment of its own.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import socket
import sys
import threading
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

T = TypeVar("T")
NOOP, STEPS, FAN_OUT, WAITS = "noop", "steps", "fan_out", "waits"
WAIT_S = 0.02
"""How long a handler of `WAITS` waits for somebody else, as one that asks a model does, only shorter."""
EVENT = "x" * 200
BATCH = 500
CALLERS = 64
SLOTS = 64
WINDOW = 512
"""Appends to one stream that may be on their way at once."""
WIDTH = 100
"""Children of one run that fans out."""
ASKING_S = 30.0
"""Who takes long to answer is asked less often."""


@dataclass(frozen=True)
class Job:
    """What a side is told: where, which work, how much of it."""

    url: str
    kind: str = NOOP
    n: int = 0
    socket: str = ""
    """Where a handler says at what instant it began; empty where nobody asks."""
    gap_s: float = 0.0
    """How long who asks waits before asking again."""
    mode: str = ""
    """Which of its ways a side is to go, where it has several."""
    talk: Mapping[str, Any] = field(default_factory=dict)
    """Of runs that are listened to over HTTP: how many `runs`, `readers` of each, `pace_s`, and the `address`."""


class Pipe:
    """Our end: what we say is a line of JSON, what we hear is a line."""

    def say(self, event: str, **values: Any) -> None:
        print(json.dumps({"event": event, **values}), flush=True)

    def ready(self) -> None:
        """Everything is set up. Returns when the measurement begins."""
        self.say("ready")
        sys.stdin.readline()

    def hear(self) -> None:
        """Returns when the measurement is over."""
        sys.stdin.readline()

    async def until_told(self, working: Awaitable[T]) -> T | None:
        """Work from the word on until told to stop; what the work answers, if it ends by itself."""
        task = asyncio.ensure_future(working)
        heard = _set_after(self.hear)
        await asyncio.wait((task, asyncio.ensure_future(heard.wait())), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return None

    def until_told_now(self, turn: Callable[[], object]) -> None:
        """One turn after the other in this thread until told to stop."""
        stop = threading.Event()

        def wait() -> None:
            self.hear()
            stop.set()

        threading.Thread(target=wait, daemon=True).start()
        while not stop.is_set():
            turn()


def _set_after(blocking: Callable[[], object]) -> asyncio.Event:
    """An event of this loop, set when a blocking call returns. Its thread holds up nobody's exit."""
    loop, event = asyncio.get_running_loop(), asyncio.Event()

    def wait() -> None:
        blocking()
        if not loop.is_closed():
            loop.call_soon_threadsafe(event.set)

    threading.Thread(target=wait, daemon=True).start()
    return event


Role = Callable[[Job, Pipe], Awaitable[None]]


def main(roles: Mapping[str, Role]) -> None:
    """`<role> <job as JSON>`, from the command line."""
    job = Job(**json.loads(sys.argv[2]))
    asyncio.run(_play(roles[sys.argv[1]], job))


async def _play(role: Role, job: Job) -> None:
    pipe = Pipe()
    await role(job, pipe)
    pipe.say("done")


async def callers(call: Callable[[], Awaitable[object]], many: int = CALLERS) -> None:
    """That many callers, each calling again as soon as its last call is answered, for ever."""

    async def caller() -> None:
        while True:
            await call()

    await asyncio.gather(*(caller() for _ in range(many)))


async def forever(call: Callable[[], Awaitable[object]]) -> None:
    """One call after the other."""
    await callers(call, 1)


def now_ms() -> float:
    """A clock that all processes of this machine share."""
    return time.monotonic() * 1_000


def told(job: Job) -> Callable[[], None]:
    """What a handler calls first: it tells whoever asked, at what instant it began."""
    if not job.socket:
        return lambda: None
    teller = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)

    def tell() -> None:
        teller.sendto(str(now_ms()).encode(), job.socket)

    return tell


@contextmanager
def beginnings(job: Job) -> Iterator[socket.socket]:
    """Where handlers tell when they began, one datagram each."""
    heard = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    heard.setblocking(False)
    with suppress(FileNotFoundError):
        # Left by one that was ended.
        os.unlink(job.socket)
    heard.bind(job.socket)
    try:
        yield heard
    finally:
        heard.close()
        os.unlink(job.socket)


class Gathering(Generic[T]):
    """What a hand-written group commit needs: whatever gathers while the last flush is in flight is the next one."""

    def __init__(self, flush: Callable[[list[T]], Awaitable[None]]) -> None:
        self._flush = flush
        self._waiting: list[tuple[T, asyncio.Future[None]]] = []
        self._flushing: asyncio.Task[None] | None = None

    async def commit(self, item: T) -> None:
        """Returns when the item is on disk."""
        done = asyncio.get_running_loop().create_future()
        self._waiting.append((item, done))
        if self._flushing is None:
            self._flushing = asyncio.create_task(self._flush_all())
        await done

    async def _flush_all(self) -> None:
        while self._waiting:
            group, self._waiting = self._waiting, []
            await self._flush([item for item, _ in group])
            for _, done in group:
                if not done.done():
                    done.set_result(None)
        self._flushing = None


async def ask(job: Job, pipe: Pipe, call: Callable[[], Awaitable[object]]) -> None:
    """Start one run after the other on an idle system: from the call to its handler, and to its visible end.

    `call` creates a run and returns when its end is visible here.
    """
    loop = asyncio.get_running_loop()
    starts: list[float] = []
    ends: list[float] = []
    with beginnings(job) as heard:
        await asyncio.to_thread(pipe.ready)
        until = now_ms() + ASKING_S * 1_000
        for number in range(job.n + 3):
            began = now_ms()
            if began > until:
                break
            await call()
            ended = now_ms()
            started = float(await loop.sock_recv(heard, 64))
            # The first ones find cold caches.
            if number >= 3:
                starts.append(started - began)
                ends.append(ended - began)
            await asyncio.sleep(job.gap_s)
    pipe.say("measured", start_ms=starts, visible_ms=ends)


def new_id() -> str:
    """A UUIDv7: ids that are made later are larger, so indexes grow at one end."""
    high = (time.time_ns() // 1_000_000) << 16 | 7 << 12 | random.getrandbits(12)
    return str(uuid.UUID(int=high << 64 | 2 << 62 | random.getrandbits(62)))
