"""Absurd: tasks and checkpoints by functions inside Postgres; its asynchronous client on one connection per worker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import absurdctl
import psycopg
from absurd_sdk import AsyncAbsurd

from benchmarks.peers.driving import (
    BATCH,
    FAN_OUT,
    NOOP,
    SLOTS,
    STEPS,
    WIDTH,
    Job,
    Pipe,
    ask,
    forever,
    main,
    told,
)

LEAF = "leaf"
POLL_S = 0.01
CLIENTS = 16
"""Each has one connection, over which its calls go one after the other."""


@asynccontextmanager
async def opened(job: Job, many: int = 1) -> AsyncIterator[list[AsyncAbsurd]]:
    apps = [AsyncAbsurd(job.url) for _ in range(many)]
    for app in apps:
        known(app, job)
    try:
        yield apps
    finally:
        for app in apps:
            await app.close()


def known(app: AsyncAbsurd, job: Job) -> None:
    tell = told(job)

    @app.register_task(name=NOOP)
    async def noop(params: Any, ctx: Any) -> Any:
        tell()
        return params

    @app.register_task(name=LEAF)
    async def leaf(params: Any, ctx: Any) -> Any:
        return params

    @app.register_task(name=STEPS)
    async def steps(params: Any, ctx: Any) -> Any:
        for name in ("one", "two", "three"):
            await ctx.step(name, small)
        return params

    @app.register_task(name=FAN_OUT)
    async def fan_out(params: Any, ctx: Any) -> Any:
        for number in range(WIDTH):
            await app.spawn(LEAF, number)
        return params


async def small() -> dict[str, int]:
    return {"value": 1}


async def setup(job: Job, pipe: Pipe) -> None:
    async with await psycopg.AsyncConnection.connect(job.url, autocommit=True) as connection:
        await connection.execute(absurdctl.BUNDLED_SCHEMA_SQL)
    async with opened(job) as (app,):
        await app.create_queue("default")


async def fill(job: Job, pipe: Pipe) -> None:
    async with await psycopg.AsyncConnection.connect(job.url, autocommit=True) as connection:
        for first in range(0, job.n, BATCH):
            await _spawn_together(connection, job, min(BATCH, job.n - first))


async def _spawn_together(connection: psycopg.AsyncConnection[Any], job: Job, many: int) -> None:
    """There is no call for many; a transaction of the caller's is the best there is."""
    app = AsyncAbsurd(connection)
    known(app, job)
    async with connection.transaction():
        for _ in range(many):
            await app.spawn(job.kind, 1)


async def work(job: Job, pipe: Pipe) -> None:
    async with opened(job) as (app,):
        await asyncio.to_thread(pipe.ready)
        await pipe.until_told(app.start_worker(concurrency=SLOTS, batch_size=SLOTS, poll_interval=POLL_S))


async def enqueue(job: Job, pipe: Pipe) -> None:
    async with opened(job, CLIENTS) as apps:
        await asyncio.to_thread(pipe.ready)
        await pipe.until_told(asyncio.gather(*(forever(lambda app=app: app.spawn(NOOP, 1)) for app in apps)))  # type: ignore[misc]


async def batch(job: Job, pipe: Pipe) -> None:
    async with await psycopg.AsyncConnection.connect(job.url, autocommit=True) as connection:
        await asyncio.to_thread(pipe.ready)
        await pipe.until_told(forever(lambda: _spawn_together(connection, job, BATCH)))


async def asking(job: Job, pipe: Pipe) -> None:
    async with opened(job) as (app,):

        async def call() -> None:
            spawned = await app.spawn(NOOP, 1)
            await app.await_task_result(spawned["task_id"])

        await ask(job, pipe, call)


ROLES: dict[str, Any] = {
    "setup": setup,
    "fill": fill,
    "work": work,
    "enqueue": enqueue,
    "batch": batch,
    "ask": asking,
}

if __name__ == "__main__":
    main(ROLES)
