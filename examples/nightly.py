"""A report every night at half past two in Berlin, over a weekend on which the clocks change and nobody is there.

python examples/nightly.py [database url]
"""

from __future__ import annotations

import asyncio
import sys
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

from holdfast import Clog, Context, Done, Holdfast
from holdfast.testing import VirtualClock

BERLIN = ZoneInfo("Europe/Berlin")
DAY_S = 86_400

report = Clog("report")


@report.on_advance
async def write(kind: str, ctx: Context) -> Done:
    return Done(f"{kind} report")


async def main(url: str) -> None:
    clock = VirtualClock(datetime(2030, 3, 27, 12, tzinfo=UTC))
    async with Holdfast(url, clock=clock) as hf:
        hf.register(report)
        nightly: dict[str, Any] = {"clog_id": "report", "session_id": "ops", "timezone": "Europe/Berlin"}
        await hf.schedules.put("nightly", **nightly, cron="30 2 * * *", input="nightly", missed="all")
        for days in (1, 1, 3, 1):  # from Friday to Monday every process is down
            clock.advance(days * DAY_S)
            print(f"{clock.now().astimezone(BERLIN):%a %H:%M}  {(await hf.advance()).advanced} started")
        for window, status in sorted([await look(hf, run.run_id) for run in (await hf.list_runs()).items]):
            print(f"{window.astimezone(BERLIN):%a %d %b %H:%M %Z}  {status}")


async def look(hf: Holdfast, run_id: str) -> tuple[datetime, str]:
    """The window that a run was started for, as its first entry tells, and how the run is."""
    created, *_ = await hf.journal.read(f"run:{run_id}")
    run = await hf.get_run(run_id)
    assert run is not None
    return datetime.fromisoformat(created.data["metadata"]["schedule"]["window"]), run.status


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else ":memory:"))
