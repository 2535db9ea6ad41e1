"""PgQueuer: a queue that claims and logs in batches, on asyncpg and uvloop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import asyncpg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.core.completion import CompletionWatcher
from pgqueuer.db import AsyncpgDriver, AsyncpgPoolDriver
from pgqueuer.queries import Queries
from pgqueuer.types import QueueExecutionMode

from benchmarks.peers.driving import BATCH, Job, Pipe, ask, callers, forever, main, told
from benchmarks.peers.growing import REAL, copy

POOL = 20
CLAIMED = 200


@asynccontextmanager
async def driver(job: Job) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(job.url)
    try:
        yield AsyncpgDriver(connection)
    finally:
        connection.terminate()


async def setup(job: Job, pipe: Pipe) -> None:
    async with driver(job) as used:
        await Queries(used).install()


async def fill(job: Job, pipe: Pipe) -> None:
    async with driver(job) as used:
        for first in range(0, job.n, BATCH):
            await _together(Queries(used), min(BATCH, job.n - first))


async def _together(queries: Any, many: int) -> None:
    await queries.enqueue(["noop"] * many, [b"1"] * many, [0] * many)


def queue_of(used: Any, tell: Callable[[], None]) -> Any:
    queue = PgQueuer(used)

    @queue.entrypoint("noop")
    async def noop(_: Any) -> None:
        tell()

    return queue


async def work(job: Job, pipe: Pipe) -> None:
    tell = told(job)
    async with driver(job) as used:
        queue = queue_of(used, tell)
        await asyncio.to_thread(pipe.ready)
        await pipe.until_told(queue.run(batch_size=CLAIMED, dequeue_timeout=timedelta(seconds=30)))


async def grow(job: Job, pipe: Pipe) -> None:
    """What is left of finished jobs is its log of them."""
    async with driver(job) as used:
        queries = Queries(used)
        for _ in range(REAL // BATCH):
            await _together(queries, BATCH)
        await queue_of(used, lambda: None).run(batch_size=CLAIMED, mode=QueueExecutionMode.drain)
    await copy(job.url, {"pgqueuer_log": []}, job.n // REAL - 1, made_anew=["id"])


async def enqueue(job: Job, pipe: Pipe) -> None:
    async with asyncpg.create_pool(job.url, min_size=POOL, max_size=POOL) as pool:
        queries = Queries(AsyncpgPoolDriver(pool))
        await asyncio.to_thread(pipe.ready)
        await pipe.until_told(callers(lambda: queries.enqueue("noop", b"1")))


async def batch(job: Job, pipe: Pipe) -> None:
    async with driver(job) as used:
        queries = Queries(used)
        await asyncio.to_thread(pipe.ready)
        await pipe.until_told(forever(lambda: _together(queries, BATCH)))


async def asking(job: Job, pipe: Pipe) -> None:
    async with driver(job) as used, driver(job) as listening:
        queries = Queries(used)
        async with CompletionWatcher(listening, queries=Queries(listening)) as watcher:

            async def call() -> None:
                (job_id,) = await queries.enqueue("noop", b"1")
                await watcher.wait_for(job_id)

            await ask(job, pipe, call)


ROLES: dict[str, Any] = {
    "setup": setup,
    "fill": fill,
    "grow": grow,
    "work": work,
    "enqueue": enqueue,
    "batch": batch,
    "ask": asking,
}

if __name__ == "__main__":
    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    main(ROLES)
