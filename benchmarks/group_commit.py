"""Grouped against ungrouped commits, on SQLite and on Postgres, all sides in one run.

    python -m benchmarks.group_commit                         # a table of ratios
    python -m benchmarks.group_commit --writers 64 --seconds 3

Absolute rates on a shared machine mean little; the ratio between two sides measured side by side does.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

from holdfast import Holdfast
from tests.servers import postgres


class Measured(NamedTuple):
    """One side: operations per second, and how many members each commit carried."""

    rate: float
    members_per_commit: float


Workload = Callable[[Holdfast, int, float], Awaitable[int]]


async def signals(hf: Holdfast, writers: int, seconds: float) -> int:
    """Each writer signals a run of its own, again and again."""
    runs = await hf.create_runs([{"session_id": "bench", "clog_id": "noop"} for _ in range(writers)])
    return await _race(writers, seconds, lambda i: hf.signal(runs[i].run_id, {"n": i}))


async def appends(hf: Holdfast, writers: int, seconds: float) -> int:
    """Each writer appends to a thread of its own."""
    entry = [{"kind": "note", "data": {"text": "x" * 200}}]
    return await _race(writers, seconds, lambda i: hf.journal.append(f"bench:{i}", entry))


async def creations(hf: Holdfast, writers: int, seconds: float) -> int:
    """Each writer creates runs."""
    return await _race(writers, seconds, lambda i: hf.create_run(session_id=f"s{i}", clog_id="noop", input=i))


WORKLOADS: dict[str, Workload] = {"signals": signals, "creations": creations, "appends": appends}


async def _race(writers: int, seconds: float, call: Callable[[int], Awaitable[object]]) -> int:
    deadline = time.perf_counter() + seconds

    async def writer(number: int) -> int:
        done = 0
        while time.perf_counter() < deadline:
            await call(number)
            done += 1
        return done

    return sum(await asyncio.gather(*(writer(number) for number in range(writers))))


async def measure(url: str, schema: str, workload: Workload, writers: int, seconds: float, grouped: bool) -> Measured:
    async with Holdfast(url, schema=schema, grouped=grouped) as hf:
        committer, appender = hf._store.committer, hf._store.appender
        began = time.perf_counter()
        done = await workload(hf, writers, seconds)
        elapsed = time.perf_counter() - began
        commits = committer.commits + appender.commits
        members = committer.members + appender.members
        return Measured(done / elapsed, members / max(commits, 1))


async def table(urls: dict[str, str], writers: int, seconds: float) -> list[str]:
    lines = [
        f"| {writers} writers | database | ungrouped/s | grouped/s | ratio | members per commit |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for name, workload in WORKLOADS.items():
        for database, url in urls.items():
            # Side by side, the slower first, so that warm caches favour neither by much.
            alone = await measure(url, f"bench_{name}_alone", workload, writers, seconds, grouped=False)
            together = await measure(url, f"bench_{name}_grouped", workload, writers, seconds, grouped=True)
            lines.append(
                f"| {name} | {database} | {alone.rate:,.0f} | {together.rate:,.0f} "
                f"| {together.rate / alone.rate:.1f}× | {together.members_per_commit:.0f} |"
            )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--writers", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=3.0, help="how long each side runs")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, postgres(Path(folder) / "postgres") as url:
        urls = {"SQLite": str(Path(folder) / "bench.db"), "Postgres": url}
        print("\n".join(asyncio.run(table(urls, options.writers, options.seconds))))


if __name__ == "__main__":
    main()
