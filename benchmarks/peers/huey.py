"""huey on SQLite, with every commit flushed: threads of one consumer, results kept."""

from __future__ import annotations

import asyncio
from typing import Any

from huey import SqliteHuey

from benchmarks.peers.driving import Job, Pipe, main

THREADS = 8


def opened(job: Job) -> tuple[Any, Any]:
    huey = SqliteHuey("bench", filename=job.url, fsync=True, results=True, timeout=30)

    @huey.task()
    def noop(value: int) -> int:
        return value

    return huey, noop


async def setup(job: Job, pipe: Pipe) -> None:
    opened(job)


async def fill(job: Job, pipe: Pipe) -> None:
    _, noop = opened(job)
    for _ in range(job.n):
        noop(1)


async def work(job: Job, pipe: Pipe) -> None:
    huey, _ = opened(job)
    consumer = huey.create_consumer(workers=THREADS, periodic=False, initial_delay=0.001, max_delay=0.01)
    await asyncio.to_thread(pipe.ready)
    consumer.start()
    await asyncio.to_thread(pipe.hear)
    consumer.stop()


ROLES: dict[str, Any] = {"setup": setup, "fill": fill, "work": work}

if __name__ == "__main__":
    main(ROLES)
