"""What a process holds: memory for each run that waits in the database and for each that it works on, and connections.

`python -m benchmarks.costs.memory URL KIND RUNS` measures once, in a process of its own, and prints a line of JSON.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import tracemalloc
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import psutil

from holdfast import Clog, Context, Holdfast, Wait

WAITING = "waiting"
SESSION = "costs"
BATCH = 500
IDLE, LIVE = "idle", "live"
SLOTS_MAX = 10_000
SETTLE_S = 0.5
PATIENCE_S = 300.0
ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Held:
    """Bytes for each run, beyond what the process held before there was one."""

    database: str
    kind: str
    runs: int
    traced: float = 0.0
    """What Python allocated, all of it."""
    resident: float = 0.0
    """What the process grew by, fragments and the allocator's reserve included."""


@dataclass(frozen=True)
class Connected:
    """Connections to Postgres of one process."""

    opened: int
    idle: int
    """With a worker that has nothing to do."""
    busy: int
    """With a worker that has all slots full."""


async def measure(database: str, url: str, runs: int) -> list[Held]:
    """Twice for each kind: tracing memory takes memory itself, so growth is measured without."""
    found: list[Held] = []
    for number, kind in enumerate((IDLE, LIVE)):
        traced = await _apart(url, kind, runs, tracing=True, number=2 * number)
        resident = await _apart(url, kind, runs, tracing=False, number=2 * number + 1)
        found.append(Held(database, kind, runs, traced, resident))
    return found


async def _apart(url: str, kind: str, runs: int, *, tracing: bool, number: int) -> float:
    command = [sys.executable, "-m", "benchmarks.costs.memory", url, kind, str(runs), str(int(tracing)), str(number)]
    child = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, cwd=ROOT, env={"PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"}
    )
    try:
        said, _ = await asyncio.wait_for(child.communicate(), PATIENCE_S)
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    if child.returncode:
        raise RuntimeError(f"memory of {kind} runs was not measured: the process ended with {child.returncode}")
    return float(json.loads(said)["bytes"])


async def held(url: str, kind: str, runs: int, *, tracing: bool, number: int) -> float:
    """Bytes for each run of a queue of its own: in the database only, or claimed and in its handler."""
    queue = f"memory-{number}"
    inside = asyncio.Semaphore(0)
    leave = asyncio.Event()
    async with Holdfast(url, queue=queue) as hf:
        hf.register(_waiting(kind, inside, leave))
        worker = hf.worker(concurrency=min(SLOTS_MAX, runs + BATCH), lease_ms=3_600_000)
        working = asyncio.create_task(worker.run())
        # Some first: what is made once, caches and connections, is no run's.
        warm = min(runs, BATCH)
        await _create(hf, warm)
        await _arrive(inside, warm)
        await _settle(hf)
        before = _bytes(tracing)
        await _create(hf, runs)
        await _arrive(inside, runs)
        await _settle(hf)
        grown = _bytes(tracing) - before
        leave.set()
        worker.stop()
        await working
    return grown / runs


def _waiting(kind: str, inside: asyncio.Semaphore, leave: asyncio.Event) -> Clog:
    clog = Clog(WAITING)

    @clog.on_advance
    async def wait(input: Any, ctx: Context) -> Wait:
        inside.release()
        if kind == LIVE:
            await leave.wait()
        return Wait(seconds=86_400)

    return clog


async def _create(hf: Holdfast, runs: int) -> None:
    for first in range(0, runs, BATCH):
        request = {"session_id": SESSION, "clog_id": WAITING, "input": 1}
        await hf.create_runs([request] * min(BATCH, runs - first))


async def _settle(hf: Holdfast) -> None:
    """The last commit is remembered until the next, so the last one is a small one each time."""
    await asyncio.sleep(SETTLE_S)
    await hf.create_run(session_id=SESSION, clog_id=WAITING)
    await asyncio.sleep(SETTLE_S)


async def _arrive(inside: asyncio.Semaphore, runs: int) -> None:
    for _ in range(runs):
        await asyncio.wait_for(inside.acquire(), PATIENCE_S)


def _bytes(tracing: bool) -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0] if tracing else int(psutil.Process().memory_info().rss)


async def connections(url: str) -> Connected:
    """Counted by the server, for one process with one worker."""
    watching = await asyncpg.connect(url)
    sql = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"

    async def count() -> int:
        return int(await watching.fetchval(sql))

    try:
        others = await count()
        async with Holdfast(url, queue="connections") as hf:
            opened = await count() - others
            idle, busy = await _with_a_worker(hf, count)
    finally:
        await watching.close()
    return Connected(opened, idle - others, busy - others)


async def _with_a_worker(hf: Holdfast, count: Callable[[], Awaitable[int]]) -> tuple[int, int]:
    inside = asyncio.Semaphore(0)
    leave = asyncio.Event()
    hf.register(_waiting(LIVE, inside, leave))
    worker = hf.worker()
    working = asyncio.create_task(worker.run())
    await asyncio.sleep(SETTLE_S)
    idle = await count()
    await _create(hf, 64)
    await _arrive(inside, 64)
    leave.set()
    await asyncio.sleep(SETTLE_S)
    busy = await count()
    worker.stop()
    await working
    return idle, busy


def main() -> None:
    url, kind, runs, tracing, number = sys.argv[1:]
    if int(tracing):
        tracemalloc.start()
    found = asyncio.run(held(url, kind, int(runs), tracing=bool(int(tracing)), number=int(number)))
    print(json.dumps({"bytes": found}))


if __name__ == "__main__":
    main()
