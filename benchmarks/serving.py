"""`Api`: one `holdfast serve --role api`, started as its users start it."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import psutil

from benchmarks.peers.driving import now_ms
from benchmarks.processes import ROOT, Broken

READY_S = 60.0
_SERVES = re.compile(r"holdfast serves api at (http://\S+)")


class Api:
    """A served process: where it is, and what it has used so far."""

    def __init__(self, process: asyncio.subprocess.Process, address: str) -> None:
        self._process = process
        self._seen = psutil.Process(process.pid)
        self.pid = process.pid
        self.address = address

    def cpu_s(self) -> float:
        times = self._seen.cpu_times()
        return float(times.user + times.system)

    def resident(self) -> int:
        """Bytes that it holds, what the allocator keeps back included."""
        return int(self._seen.memory_info().rss)

    def leave(self) -> float:
        """Tell it to go; the instant at which it was told."""
        told_ms = now_ms()
        self._process.send_signal(signal.SIGTERM)
        return told_ms


@asynccontextmanager
async def serving(url: str, log: Path) -> AsyncIterator[Api]:
    """An API on this database at a free port; gone in the end, whatever happens."""
    log.parent.mkdir(parents=True, exist_ok=True)
    program = "from holdfast.cli import main; main()"
    command = [sys.executable, "-c", program, "--db", url, "serve", "--role", "api", "--port", "0"]
    with log.open("wb") as errors:
        process = await asyncio.create_subprocess_exec(
            *command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT / "src")}, stderr=errors
        )
    try:
        yield Api(process, await _announced(process, log))
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def _announced(process: asyncio.subprocess.Process, log: Path) -> str:
    with suppress(TimeoutError):
        async with asyncio.timeout(READY_S):
            while process.returncode is None:
                found = _SERVES.search(_said(log))
                if found:
                    return found[1]
                await asyncio.sleep(0.02)
    raise Broken(f"holdfast serve: does not listen | {_said(log)[-300:]}")


def _said(log: Path) -> str:
    return log.read_text(errors="replace")
