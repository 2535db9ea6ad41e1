"""procrastinate: jobs by LISTEN/NOTIFY, many at once in one worker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from procrastinate import App, PsycopgConnector
from procrastinate.jobs import Status

from benchmarks.peers.driving import BATCH, SLOTS, Job, Pipe, ask, callers, forever, main, told

POOL = 20
LOOK_S = 0.001


@asynccontextmanager
async def opened(job: Job) -> AsyncIterator[tuple[App, Any]]:
    app = App(connector=PsycopgConnector(conninfo=job.url, min_size=POOL, max_size=POOL))
    tell = told(job)

    @app.task(name="noop")
    async def noop(value: int) -> int:
        tell()
        return value

    async with app.open_async():
        yield app, noop


async def setup(job: Job, pipe: Pipe) -> None:
    async with opened(job) as (app, _):
        await app.schema_manager.apply_schema_async()


async def fill(job: Job, pipe: Pipe) -> None:
    async with opened(job) as (_, noop):
        for first in range(0, job.n, BATCH):
            await noop.batch_defer_async(*[{"value": 1}] * min(BATCH, job.n - first))


async def work(job: Job, pipe: Pipe) -> None:
    async with opened(job) as (app, _):
        await asyncio.to_thread(pipe.ready)
        await pipe.until_told(app.run_worker_async(concurrency=SLOTS, install_signal_handlers=False))


async def enqueue(job: Job, pipe: Pipe) -> None:
    async with opened(job) as (_, noop):
        await asyncio.to_thread(pipe.ready)
        await pipe.until_told(callers(lambda: noop.defer_async(value=1)))


async def batch(job: Job, pipe: Pipe) -> None:
    async with opened(job) as (_, noop):
        await asyncio.to_thread(pipe.ready)
        await pipe.until_told(forever(lambda: noop.batch_defer_async(*[{"value": 1}] * BATCH)))


async def asking(job: Job, pipe: Pipe) -> None:
    """It has no call that waits for an end; its status is looked at."""
    async with opened(job) as (app, noop):

        async def look(job_id: int) -> Status:
            await asyncio.sleep(LOOK_S)
            return await app.job_manager.get_job_status_async(job_id)

        async def call() -> None:
            job_id = await noop.defer_async(value=1)
            while await look(job_id) is not Status.SUCCEEDED:
                pass

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
