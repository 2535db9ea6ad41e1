"""Served processes: started as `holdfast serve` would be, told to end, or killed."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).parents[2]
_SERVES = re.compile(rb"holdfast serves \w+ at (http://\S+)")


class Process:
    """One `holdfast …` of its own, and a client for it."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.log: list[bytes] = []
        self._reading = asyncio.create_task(self._read())
        self._address: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.client = httpx.AsyncClient()

    @property
    def pid(self) -> int:
        return self._process.pid

    async def ready(self) -> Process:
        base = await asyncio.wait_for(asyncio.shield(self._address), 30)
        await self.client.aclose()
        self.client = httpx.AsyncClient(base_url=base, timeout=30)
        return self

    async def start(self, **body: Any) -> str:
        answer = await self.client.post("/api/runs", json={"session_id": "s", **body})
        assert answer.status_code == 202, answer.text
        return str(answer.json()["run_id"])

    def send(self, number: int) -> None:
        self._process.send_signal(number)

    async def ended(self, within_s: float = 20.0) -> int:
        code = await asyncio.wait_for(self._process.wait(), within_s)
        await self._reading
        return code

    async def kill(self) -> None:
        """As a machine would that lost its power."""
        if self._process.returncode is None:
            self._process.send_signal(signal.SIGKILL)
        await self._process.wait()
        await self._reading
        await self.client.aclose()

    async def _read(self) -> None:
        assert self._process.stderr is not None
        async for line in self._process.stderr:
            self.log.append(line)
            found = _SERVES.search(line)
            if found and not self._address.done():
                self._address.set_result(found[1].decode())
        if not self._address.done():
            self._address.set_exception(AssertionError(b"".join(self.log).decode()))
            self._address.exception()


async def start(*arguments: str, **environment: str) -> Process:
    """A process of the command line; it ends with the test that keeps it."""
    given = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]), **environment}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", "from holdfast.cli import main; main()", *arguments),
        cwd=ROOT,
        env=given,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    return Process(process)
