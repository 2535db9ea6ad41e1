"""Holdfast, through what it shows to everybody; workers settle in as `holdfast worker` does, and nothing else."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

from benchmarks.peers.driving import (
    BATCH,
    EVENT,
    FAN_OUT,
    NOOP,
    SLOTS,
    STEPS,
    WAIT_S,
    WAITS,
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
from benchmarks.peers.listening import Crowd, thinned
from holdfast import Clog, Context, Done, FlowContext, Holdfast
from holdfast.cli.process import settle_in

LEAF, STREAM, PACED, ENDLESS = "leaf", "stream", "paced", "endless"
RUN_ID = "the-stream"
PACE_S = 0.01
COLD = 3
"""The first notes of a stream, which find cold caches."""


def known(hf: Holdfast, job: Job) -> None:
    """The work that all sides do: nothing, three small steps, a hundred children, or talking."""
    tell = told(job)
    names = (NOOP, LEAF, STREAM, PACED, ENDLESS, WAITS)
    noop, leaf, stream, paced, endless, waits = (Clog(name) for name in names)

    @noop.on_advance
    @leaf.on_advance
    async def nothing(input: Any, ctx: Context) -> Done:
        tell()
        return Done(input)

    @waits.on_advance
    async def wait(input: Any, ctx: Context) -> Done:
        await asyncio.sleep(WAIT_S)
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

    @endless.on_advance
    async def talk_on(input: Any, ctx: Context) -> None:
        # Each to its own beat: who waits for the last word before counting to the next ends up in a chorus, because
        # words that are committed together are answered together.
        due_ms = now_ms() + input * random.random() * 1_000
        for number in count():
            await asyncio.sleep(max(due_ms - now_ms(), 0) / 1_000)
            await ctx.emit("note", {"at": [number, now_ms()], "text": EVENT})
            due_ms += input * 1_000

    @hf.flow(STEPS)
    async def steps(ctx: FlowContext, input: Any) -> Any:
        for name in ("one", "two", "three"):
            await ctx.step(name, small)
        return input

    @hf.flow(FAN_OUT)
    async def fan_out(ctx: FlowContext, input: Any) -> Any:
        await ctx.gather(*(ctx.child(LEAF, key=str(number), input=number) for number in range(WIDTH)))
        return input

    hf.register(noop, leaf, stream, paced, endless, waits)


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
    """A process as `holdfast worker` makes it."""
    async with opened(job) as hf:
        settle_in()
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
        settle_in()
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


async def listen(job: Job, pipe: Pipe) -> None:
    """Readers over HTTP of runs that talk in another process: all must hear all of it, and be let go in the end."""
    talk = job.talk
    wanted = {"session_id": "bench", "clog_id": ENDLESS, "input": talk["pace_s"]}
    async with opened(job) as hf:
        await asyncio.to_thread(pipe.ready)
        made = [(await hf.create_run(**wanted)).run_id for _ in range(talk["runs"])]
        crowd = Crowd(talk["address"], job.n)
        await crowd.join(made[:1])
        pipe.say("warm")
        await asyncio.to_thread(pipe.hear)
        await crowd.join((made * talk["readers"])[1:])
        began_s, spent_s = time.perf_counter(), time.process_time()
        pipe.say("joined")
        await crowd.satisfied.wait()
        spent_s, seconds = time.process_time() - spent_s, time.perf_counter() - began_s
        if crowd.broken:
            raise AssertionError(crowd.broken)
        heard = sum(len(each.ages) for each in crowd.listeners)
        pipe.say("measured", age_ms=thinned(crowd.ages(COLD)), cpu_s=spent_s, delivered=heard, seconds=seconds)
        ends = await asyncio.gather(*(each.ended for each in crowd.listeners))
        pipe.say("ended", at_ms=max(ends))


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
    "listen": listen,
}

if __name__ == "__main__":
    main(ROLES)
