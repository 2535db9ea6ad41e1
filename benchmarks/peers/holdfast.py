"""Holdfast, through what it shows to everybody and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from benchmarks.peers.driving import (
    BATCH,
    EVENT,
    FAN_OUT,
    NOOP,
    SLOTS,
    STEPS,
    WIDTH,
    WINDOW,
    Job,
    Pipe,
    ask,
    callers,
    forever,
    main,
    now_ms,
    told,
)
from benchmarks.peers.growing import REAL, copy
from holdfast import Clog, Context, Done, FlowContext, Holdfast

LEAF, STREAM, PACED = "leaf", "stream", "paced"
RUN_ID = "the-stream"
PACE_S = 0.01


def known(hf: Holdfast, job: Job) -> None:
    """The work that all sides do: nothing, three small steps, a hundred children, or talking."""
    tell = told(job)
    noop, leaf, stream, paced = (Clog(name) for name in (NOOP, LEAF, STREAM, PACED))

    @noop.on_advance
    @leaf.on_advance
    async def nothing(input: Any, ctx: Context) -> Done:
        tell()
        return Done(input)

    @stream.on_advance
    async def talk(input: Any, ctx: Context) -> None:
        await callers(lambda: ctx.emit("note", EVENT), WINDOW)

    @paced.on_advance
    async def pace(input: Any, ctx: Context) -> Done:
        for _ in range(input):
            await ctx.emit("note", {"at_ms": now_ms(), "text": EVENT})
            await asyncio.sleep(PACE_S)
        return Done()

    @hf.flow(STEPS)
    async def steps(ctx: FlowContext, input: Any) -> Any:
        for name in ("one", "two", "three"):
            await ctx.step(name, small)
        return input

    @hf.flow(FAN_OUT)
    async def fan_out(ctx: FlowContext, input: Any) -> Any:
        await ctx.gather(*(ctx.child(LEAF, key=str(number), input=number) for number in range(WIDTH)))
        return input

    hf.register(noop, leaf, stream, paced)


async def small() -> dict[str, int]:
    return {"value": 1}


@asynccontextmanager
async def opened(job: Job) -> AsyncIterator[Holdfast]:
    async with Holdfast(job.url) as hf:
        known(hf, job)
        yield hf


async def work_on(hf: Holdfast) -> None:
    await hf.worker(concurrency=SLOTS).run()


async def setup(job: Job, pipe: Pipe) -> None:
    async with opened(job):
        pass


async def fill(job: Job, pipe: Pipe) -> None:
    async with opened(job) as hf:
        for first in range(0, job.n, BATCH):
            await hf.create_runs([request(job.kind)] * min(BATCH, job.n - first))


def request(kind: str) -> dict[str, Any]:
    return {"session_id": "bench", "clog_id": kind, "input": 1}


async def work(job: Job, pipe: Pipe) -> None:
    async with opened(job) as hf:
        await asyncio.to_thread(pipe.ready)
        await pipe.until_told(work_on(hf))


async def grow(job: Job, pipe: Pipe) -> None:
    """Finished runs, as a worker leaves them."""
    async with opened(job) as hf:
        await hf.create_runs([request(NOOP)] * REAL)
        await hf.advance()
    tables = {"holdfast.runs": ["run_id"], "holdfast.ticks": ["run_id", "tick_id"], "holdfast.journal": ["thread"]}
    await copy(job.url, tables, job.n // REAL - 1, made_anew=["position"])


async def enqueue(job: Job, pipe: Pipe) -> None:
    async with opened(job) as hf:
        await asyncio.to_thread(pipe.ready)
        await pipe.until_told(callers(lambda: hf.create_run(**request(NOOP))))


async def batch(job: Job, pipe: Pipe) -> None:
    async with opened(job) as hf:
        await asyncio.to_thread(pipe.ready)
        await pipe.until_told(forever(lambda: hf.create_runs([request(NOOP)] * BATCH)))


async def asking(job: Job, pipe: Pipe) -> None:
    async with opened(job) as hf:
        await _ask(hf, job, pipe)


async def asking_here(job: Job, pipe: Pipe) -> None:
    """As `asking`, with the worker in the same process."""
    async with opened(job) as hf:
        working = asyncio.create_task(work_on(hf))
        await _ask(hf, job, pipe)
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)


async def _ask(hf: Holdfast, job: Job, pipe: Pipe) -> None:
    async def call() -> None:
        run = await hf.create_run(**request(NOOP))
        await hf.result(run.run_id)

    await ask(job, pipe, call)


async def stream(job: Job, pipe: Pipe) -> None:
    async with opened(job) as hf:
        await hf.create_run(run_id=RUN_ID, **request(STREAM))
        await asyncio.to_thread(pipe.ready)
        await pipe.until_told(work_on(hf))


async def tail(job: Job, pipe: Pipe) -> None:
    """Follow a run whose worker is another process: how old is an event when it arrives?"""
    async with opened(job) as hf:
        await asyncio.to_thread(pipe.ready)
        run = await hf.create_run(session_id="bench", clog_id=PACED, input=job.n)
        ages = [
            now_ms() - event.data["at_ms"] async for event in hf.events(run.run_id, follow=True) if event.type == "note"
        ]
        pipe.say("measured", age_ms=ages)


ROLES = {
    "setup": setup,
    "fill": fill,
    "grow": grow,
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
