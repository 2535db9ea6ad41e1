"""DBOS: workflows on a queue, polled as often as it is told to; asynchronous workflows, its own thread pool."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import sqlalchemy as sa
from dbos import DBOS, DBOSClient, DBOSConfig, EnqueueOptions

from benchmarks.peers.driving import (
    BATCH,
    EVENT,
    FAN_OUT,
    NOOP,
    SLOTS,
    STEPS,
    WIDTH,
    Job,
    Pipe,
    ask,
    callers,
    forever,
    main,
    now_ms,
    told,
)

QUEUE, LEAF, STREAM, PACED, KEY = "bench", "leaf", "stream", "paced", "events"
POLL_S = 0.01
POOL = 20
PACE_S = 0.01


def address(job: Job) -> str:
    """SQLAlchemy's form of the address."""
    if not job.url.startswith("postgresql"):
        return f"sqlite:///{job.url}"
    return job.url.replace("postgresql://", "postgresql+psycopg://")


def known(job: Job) -> None:
    tell = told(job)

    @DBOS.workflow(name=NOOP)
    async def noop(value: Any) -> Any:
        tell()
        return value

    @DBOS.workflow(name=LEAF)
    async def leaf(value: Any) -> Any:
        return value

    @DBOS.step()
    async def small() -> dict[str, int]:
        return {"value": 1}

    @DBOS.workflow(name=STEPS)
    async def steps(value: Any) -> Any:
        for _ in range(3):
            await small()
        return value

    @DBOS.workflow(name=FAN_OUT)
    async def fan_out(value: Any) -> Any:
        handles = [await DBOS.enqueue_workflow_async(QUEUE, leaf, number) for number in range(WIDTH)]
        for handle in handles:
            await handle.get_result(polling_interval_sec=0.1)
        return value

    @DBOS.workflow(name=STREAM)
    async def stream(value: Any) -> None:
        # Each write is a step of the workflow, numbered in the order in which it is called.
        await callers(lambda: DBOS.write_stream_async(KEY, EVENT), SLOTS)

    @DBOS.workflow(name=PACED)
    async def paced(value: int) -> None:
        for _ in range(value):
            await DBOS.write_stream_async(KEY, {"at_ms": now_ms(), "text": EVENT})
            await asyncio.sleep(PACE_S)
        await DBOS.close_stream_async(KEY)


@asynccontextmanager
async def launched(job: Job) -> AsyncIterator[None]:
    """A DBOS that serves the queue."""
    config: DBOSConfig = {
        "name": "bench",
        "system_database_url": address(job),
        "application_version": "1",
        "sys_db_pool_size": POOL,
        "log_level": "ERROR",
        "notification_listener_polling_interval_sec": POLL_S,
    }
    DBOS(config=config)
    known(job)
    DBOS.launch()
    await DBOS.register_queue_async(QUEUE, worker_concurrency=SLOTS, polling_interval_sec=POLL_S)
    try:
        yield
    finally:
        await asyncio.to_thread(DBOS.destroy, workflow_completion_timeout_sec=0)


@contextmanager
def client(job: Job) -> Iterator[DBOSClient]:
    made = DBOSClient(
        system_database_url=address(job),
        system_database_pool_size=POOL,
        use_listen_notify=job.url.startswith("postgresql"),
        application_name="bench",
    )
    try:
        yield made
    finally:
        made.destroy()


def wanted(kind: str) -> EnqueueOptions:
    return {"queue_name": QUEUE, "workflow_name": kind, "app_version": "1"}


async def setup(job: Job, pipe: Pipe) -> None:
    async with launched(job):
        pass


async def fill(job: Job, pipe: Pipe) -> None:
    with client(job) as dbos:
        engine = sa.create_engine(address(job))
        for first in range(0, job.n, BATCH):
            _enqueue_together(dbos, engine, job.kind, min(BATCH, job.n - first))
        engine.dispose()


def _enqueue_together(dbos: DBOSClient, engine: sa.Engine, kind: str, many: int) -> None:
    """There is no call for many; a transaction of the caller's is the best there is."""
    with engine.begin() as connection:
        for _ in range(many):
            dbos.enqueue_in_transaction(connection, wanted(kind), 1)


async def work(job: Job, pipe: Pipe) -> None:
    await asyncio.to_thread(pipe.ready)
    async with launched(job):
        await asyncio.to_thread(pipe.hear)


async def enqueue(job: Job, pipe: Pipe) -> None:
    with client(job) as dbos:
        await asyncio.to_thread(pipe.ready)
        await pipe.until_told(callers(lambda: dbos.enqueue_async(wanted(NOOP), 1)))


async def batch(job: Job, pipe: Pipe) -> None:
    with client(job) as dbos:
        engine = sa.create_engine(address(job))
        await asyncio.to_thread(pipe.ready)
        await pipe.until_told(forever(lambda: asyncio.to_thread(_enqueue_together, dbos, engine, NOOP, BATCH // 5)))


async def asking(job: Job, pipe: Pipe) -> None:
    with client(job) as dbos:

        async def call() -> None:
            handle: Any = await dbos.enqueue_async(wanted(NOOP), 1)
            await handle.get_result(polling_interval_sec=POLL_S)

        await ask(job, pipe, call)


async def asking_here(job: Job, pipe: Pipe) -> None:
    async with launched(job):
        await asking(job, pipe)


async def stream(job: Job, pipe: Pipe) -> None:
    with client(job) as dbos:
        await dbos.enqueue_async(wanted(STREAM), 1)
    await work(job, pipe)


async def tail(job: Job, pipe: Pipe) -> None:
    with client(job) as dbos:
        await asyncio.to_thread(pipe.ready)
        handle: Any = await dbos.enqueue_async(wanted(PACED), job.n)
        values = dbos.read_stream_async(handle.get_workflow_id(), KEY)
        ages = [now_ms() - value["at_ms"] async for value in values]
        pipe.say("measured", age_ms=ages)


ROLES: dict[str, Any] = {
    "setup": setup,
    "fill": fill,
    "work": work,
    "enqueue": enqueue,
    "batch": batch,
    "ask": asking,
    "ask_here": asking_here,
    "stream": stream,
    "tail": tail,
}

if __name__ == "__main__":
    main(ROLES)
