"""Processes that fight over one file: claimers and committers, each with its own record of what it was told."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from multiprocessing.connection import Connection
from typing import Any

import msgspec

from holdfast import Conflict, Done, Holdfast
from holdfast.invariants.histories import Call, Reading
from holdfast.protocol.values import canonical

SHARED = "shared"


class Report(msgspec.Struct):
    """What one process did, as it saw it."""

    name: str
    commits: int = 0
    longest_s: float = 0.0
    claimed: list[tuple[str, str]] = []
    calls: list[Call] = []
    readings: list[Reading] = []

    async def timed(self, work: Awaitable[Any]) -> Any:
        """Wait for a commit, and remember the longest wait."""
        begun = time.monotonic()
        answer = await work
        self.longest_s = max(self.longest_s, time.monotonic() - begun)
        self.commits += 1
        return answer


Part = Callable[[Holdfast, Report], Awaitable[None]]


def play(pipe: Connection, url: str, name: str, part: str, seconds: float) -> None:
    """The process: say that it is ready, wait for the start, play its part, report."""
    asyncio.run(_play(pipe, url, name, PARTS[part], seconds))


async def _play(pipe: Connection, url: str, name: str, part: Part, seconds: float) -> None:
    report = Report(name)
    async with Holdfast(url) as holdfast:
        pipe.send("ready")
        pipe.recv()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            await part(holdfast, report)
    pipe.send(msgspec.to_builtins(report))


async def claim(holdfast: Holdfast, report: Report) -> None:
    """Take what is due, say something, finish it."""
    for found in await holdfast.claim_next(owner=report.name, limit=3):
        report.claimed.append((found.run_id, found.claim_id))
        await report.timed(holdfast.emit(found, "text", report.name))
        await report.timed(holdfast.complete(found, Done(report.name)))
    await asyncio.sleep(0)


async def commit(holdfast: Holdfast, report: Report) -> None:
    """Make work for the claimers, and race for the next revision of a shared thread."""
    await report.timed(holdfast.create_run(session_id=report.name, clog_id="chat", input=report.commits))
    await _race(holdfast, report)
    own = {"kind": "note", "data": {"by": report.name, "own": report.commits}}
    rev = await report.timed(holdfast.journal.append(report.name, [own]))
    bodies = (canonical(own["data"]),)
    report.calls.append(Call(thread=report.name, bodies=bodies, outcome="ok", rev=rev))


async def _race(holdfast: Holdfast, report: Report) -> None:
    seen = await holdfast.journal.store.read(SHARED)
    report.readings.append(Reading(thread=SHARED, digests=tuple(entry.digest for entry in seen)))
    data = [{"by": report.name, "n": len(report.calls), "part": part} for part in ("left", "right")]
    bodies, expected = tuple(canonical(each) for each in data), len(seen)
    lines = [{"kind": "note", "data": each} for each in data]
    try:
        rev = await report.timed(holdfast.journal.append(SHARED, lines, expected_rev=expected))
    except Conflict:
        report.calls.append(Call(thread=SHARED, bodies=bodies, outcome="refused", expected_rev=expected))
        return
    report.calls.append(Call(thread=SHARED, bodies=bodies, outcome="ok", rev=rev, expected_rev=expected))


PARTS: dict[str, Part] = {"claim": claim, "commit": commit}
