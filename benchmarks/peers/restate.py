"""Restate: its server keeps everything and calls our handlers over HTTP/2."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import httpx
import hypercorn.asyncio
import hypercorn.config
import restate

from benchmarks.peers.driving import CALLERS, FAN_OUT, NOOP, STEPS, WIDTH, Job, Pipe, ask, forever, main, told

PORT = 19_180
ADMIN = "http://127.0.0.1:19070"
LEAF = "leaf"


def service(job: Job, gate: asyncio.Event) -> restate.Service:
    """Restate calls as soon as it can; where a backlog is wanted, handlers wait at the gate until it is there."""
    made = restate.Service("bench")
    tell = told(job)

    @made.handler(NOOP)
    async def noop(ctx: restate.Context, value: int) -> int:
        tell()
        await gate.wait()
        return value

    @made.handler(LEAF)
    async def leaf(ctx: restate.Context, value: int) -> int:
        return value

    @made.handler(STEPS)
    async def steps(ctx: restate.Context, value: int) -> int:
        await gate.wait()
        for name in ("one", "two", "three"):
            await ctx.run_typed(name, small)
        return value

    @made.handler(FAN_OUT)
    async def fan_out(ctx: restate.Context, value: int) -> int:
        await gate.wait()
        await restate.gather(*(ctx.service_call(leaf, arg=number) for number in range(WIDTH)))
        return value

    return made


async def small() -> dict[str, int]:
    return {"value": 1}


@asynccontextmanager
async def serving(job: Job, made: restate.Service) -> AsyncIterator[None]:
    """Our endpoint, known to the server."""
    config = hypercorn.config.Config()
    config.bind = [f"127.0.0.1:{PORT}"]
    config.accesslog = config.errorlog = None
    config.h2_max_concurrent_streams = 1 << 20
    stopped = asyncio.Event()
    app: Any = restate.app(services=[made])
    running = asyncio.create_task(hypercorn.asyncio.serve(app, config, shutdown_trigger=stopped.wait))
    async with httpx.AsyncClient() as client:
        for _ in range(100):
            await asyncio.sleep(0.1)
            try:
                answer = await client.post(f"{ADMIN}/deployments", json={"uri": f"http://127.0.0.1:{PORT}"}, timeout=30)
            except httpx.ConnectError:
                continue
            if answer.is_success:
                break
        else:
            raise RuntimeError(f"the server does not take our endpoint: {answer.text}")
    try:
        yield
    finally:
        stopped.set()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


class Ingress:
    """One kept connection to the server. Its own client spends more on a call than the server does."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, job: Job) -> Ingress:
        parts = urlsplit(job.url)
        return cls(*await asyncio.open_connection(parts.hostname, parts.port))

    async def send(self, kind: str) -> None:
        """Returns when the server has taken it."""
        await self._post(f"/bench/{kind}/send")

    async def call(self, kind: str) -> None:
        """Returns with the answer."""
        await self._post(f"/bench/{kind}")

    async def _post(self, path: str) -> None:
        head = f"POST {path} HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\ncontent-length: 1\r\n\r\n"
        self._writer.write(head.encode() + b"1")
        answer = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        status, _, rest = answer.partition(b"\r\n")
        length = int(rest.partition(b"content-length:")[2].split(b"\r\n")[0])
        body = await self._reader.readexactly(length)
        if not status.startswith(b"http/1.1 2"):
            raise RuntimeError(f"the server answers {status.decode()}: {body.decode()}")


async def setup(job: Job, pipe: Pipe) -> None:
    """Nothing: a server without history is started for each slice."""


async def fill(job: Job, pipe: Pipe) -> None:
    """Nothing: a server that cannot reach the endpoint would only wait longer and longer; `work` fills."""


async def work(job: Job, pipe: Pipe) -> None:
    gate = asyncio.Event()
    async with serving(job, service(job, gate)):
        if not job.socket:
            await _send(job)
        await asyncio.to_thread(pipe.ready)
        gate.set()
        await asyncio.to_thread(pipe.hear)


async def _is_served() -> bool:
    async with httpx.AsyncClient() as client:
        return bool((await client.get(f"{ADMIN}/services/bench")).is_success)


async def _send(job: Job) -> None:
    left = iter(range(job.n))

    async def caller() -> None:
        ingress = await Ingress.open(job)
        for _ in left:
            await ingress.send(job.kind)

    await asyncio.gather(*(caller() for _ in range(CALLERS)))


async def enqueue(job: Job, pipe: Pipe) -> None:
    async with AsyncExitStack() as stack:
        if not await _is_served():
            # It takes nothing for a service that it does not know.
            await stack.enter_async_context(serving(job, service(job, asyncio.Event())))
        opened = [await Ingress.open(job) for _ in range(CALLERS)]
        await asyncio.to_thread(pipe.ready)
        await pipe.until_told(asyncio.gather(*(forever(partial(each.send, NOOP)) for each in opened)))


async def asking(job: Job, pipe: Pipe) -> None:
    ingress = await Ingress.open(job)
    await ask(job, pipe, lambda: ingress.call(NOOP))


ROLES: dict[str, Any] = {
    "setup": setup,
    "fill": fill,
    "work": work,
    "enqueue": enqueue,
    "ask": asking,
}

if __name__ == "__main__":
    main(ROLES)
