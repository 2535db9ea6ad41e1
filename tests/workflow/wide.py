"""A process that runs one wide map to its end: `python -m tests.workflow.wide DATABASE SCHEMA ITEMS`.

It prints the run's id, its output and the most memory it ever had, in megabytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from pathlib import Path
from typing import Any

from holdfast import Holdfast, Workflow

flow = Workflow("wide")


@flow.step()
async def load(ctx: Any, input: int) -> list[dict[str, int]]:
    return [{"number": number} for number in range(input)]


@flow.map("lines", over="load")
async def line(ctx: Any, item: dict[str, int]) -> int:
    return item["number"]


@flow.step(after=["lines"])
async def join(ctx: Any, lines: list[int]) -> list[int]:
    return [len(lines), sum(lines)]


async def main(url: str, schema: str, items: int) -> None:
    async with Holdfast(url, schema=schema) as hf:
        hf.register(flow)
        run = await hf.start(flow, items, session_id="s")
        working = asyncio.create_task(hf.worker(concurrency=64).run())
        output = await hf.result(run.run_id)
        working.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await working
    print(json.dumps({"run_id": run.run_id, "output": output, "megabytes": peak_megabytes()}))


def peak_megabytes() -> float:
    # Not getrusage: its maximum is inherited from whoever started this process.
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1_024


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
