"""A thousand readers of one process: everybody gets everything, for a bounded price."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path

import pytest

from holdfast import Holdfast
from tests.http.clogs import register
from tests.http.households import Process
from tests.http.test_processes import Serve, configuration, hf, serve

__all__ = ["configuration", "hf", "serve"]

READERS = 1_000
NUMBERS = 40
BYTES_MAX = 100 << 10
PATIENCE_S = 60.0


def memory(process: Process) -> int:
    return int(Path(f"/proc/{process.pid}/statm").read_text().split()[1]) * 4_096


async def connect(api: Process, run_id: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", api.client.base_url.port)
    writer.write(f"GET /api/runs/{run_id}/events HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    await reader.readuntil(b"event: run_queued\n")
    return reader, writer


async def follow(reader: asyncio.StreamReader) -> list[str]:
    """The types of what comes, up to `done`."""
    found: list[str] = []
    async for line in reader:
        if line.startswith(b"data: "):
            found.append(json.loads(line[6:])["type"])
            if found[-1] == "done":
                break
    return found


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.clause("W-02")
async def test_a_thousand_readers_get_everything_and_leave_within_two_seconds(serve: Serve, hf: Holdfast) -> None:
    register(hf)
    api = await serve("api")
    run_id = await api.start(clog_id="slow", input={"times": NUMBERS, "pace_s": 0.2})
    first = await connect(api, run_id)
    before = memory(api)
    open_ones = [await connect(api, run_id) for _ in range(READERS)]
    each = (memory(api) - before) / READERS

    following = [asyncio.create_task(follow(reader)) for reader, _ in open_ones]
    await hf.drain()
    told = await asyncio.wait_for(asyncio.gather(*following), PATIENCE_S)

    assert each < BYTES_MAX
    assert {(types.count("number"), types[-1]) for types in map(tuple, told)} == {(NUMBERS, "done")}

    other = await api.start(session_id="other", clog_id="slow", input={"times": 1})
    waiting = [await connect(api, other) for _ in range(READERS)]
    loop = asyncio.get_running_loop()
    since = loop.time()
    api.send(signal.SIGTERM)
    ends = await asyncio.gather(*(reader.read() for reader, _ in waiting))
    took_s = loop.time() - since

    assert all(b"come back" in end for end in ends)
    assert took_s < 2, took_s
    assert await api.ended() == 0
    for _, writer in (first, *open_ones, *waiting):
        writer.close()
