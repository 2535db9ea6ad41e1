"""A Restate server for each slice: its own process and its own disk, since it keeps nothing in Postgres."""

from __future__ import annotations

import asyncio
import json
import os
import platform
import shutil
import signal
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil

from benchmarks.places import Meters
from benchmarks.processes import Broken

RESTATE = "restate"
INGRESS, ADMIN = 18_080, 19_070
NODE = 15_122
START_S = 60.0
PER_PARTITION = 4
"""Its 24 partitions together call 96 handlers at once."""


class RestatePlace:
    """Its url is that of its ingress; what is done is asked of its own tables."""

    url = f"http://127.0.0.1:{INGRESS}"

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._server = psutil.Process(process.pid)

    async def count(self, sql: str) -> int:
        return await asyncio.to_thread(_count, sql)

    async def meters(self) -> Meters:
        times = self._server.cpu_times()
        return Meters(float(times.user + times.system))

    async def settle(self) -> None:
        return None


@asynccontextmanager
async def restate_place(npm: Path, folder: Path) -> AsyncIterator[RestatePlace]:
    _empty(folder)
    process = await asyncio.create_subprocess_exec(
        str(_binary(npm)),
        "--base-dir",
        str(folder),
        env={
            **os.environ,
            "RESTATE_INGRESS__BIND_ADDRESS": f"127.0.0.1:{INGRESS}",
            "RESTATE_ADMIN__BIND_ADDRESS": f"127.0.0.1:{ADMIN}",
            "RESTATE_BIND_ADDRESS": f"127.0.0.1:{NODE}",
            # About as many at once as the others have slots: a backlog must be one, not a crowd of begun calls.
            "RESTATE_WORKER__INVOKER__CONCURRENT_INVOCATIONS_LIMIT": str(PER_PARTITION),
            "RESTATE_LOG_FILTER": "warn",
            "RESTATE_DISABLE_TELEMETRY": "true",
        },
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        await _healthy(process)
        yield RestatePlace(process)
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _empty(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


def _binary(npm: Path) -> Path:
    machine = {"x86_64": "x64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    name = f"restate-server-{platform.system().lower()}-{machine}"
    path = npm / "node_modules" / "@restatedev" / name / "bin" / "restate-server"
    if not path.exists():
        raise Broken(f"restate: no server for {platform.system()} on {platform.machine()} came with its package")
    return path


async def _healthy(process: asyncio.subprocess.Process) -> None:
    try:
        async with asyncio.timeout(START_S):
            while not await asyncio.to_thread(_answers):
                if process.returncode is not None:
                    raise Broken(f"restate: its server ended with {process.returncode}")
                await asyncio.sleep(0.1)
    except TimeoutError:
        raise Broken(f"restate: its server was not healthy within {START_S:.0f} s") from None


def _count(sql: str) -> int:
    headers = {"content-type": "application/json", "accept": "application/json"}
    asked = urllib.request.Request(f"http://127.0.0.1:{ADMIN}/query", json.dumps({"query": sql}).encode(), headers)
    with urllib.request.urlopen(asked, timeout=60) as answer:
        (row,) = json.load(answer)["rows"]
    return int(next(iter(row.values())))


def _answers() -> bool:
    """Its ingress is there, and so is what its tables are asked of."""
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{INGRESS}/restate/health", timeout=5).close()
        _count("SELECT count(*) AS n FROM sys_invocation")
    except OSError:
        return False
    return True
