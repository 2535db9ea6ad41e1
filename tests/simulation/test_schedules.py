"""Schedules under seeded schedules: workers die around every start, and each window has its one run."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from holdfast import Clog, Done, Holdfast
from holdfast.moments import from_us
from holdfast.testing import simulate

SEEDS = 40
HOURS = 3


async def story(hf: Holdfast) -> None:
    """Alarms hours apart; whatever comes in between, two crons have their windows."""
    report, alarm = Clog("report"), Clog("alarm")

    @report.on_advance
    async def write(given: Any, ctx: Any) -> Done:
        await ctx.outbox("mail", {"run": ctx.run_id})
        return Done()

    @alarm.on_advance
    async def ring(given: Any, ctx: Any) -> Done:
        return Done()

    hf.register(report, alarm)
    now = from_us(await hf.journal.store.now())
    for number in range(HOURS):
        await hf.schedules.put(
            f"alarm{number}", clog_id="alarm", session_id="s", at=now + timedelta(hours=number + 1), input=0
        )
    told: dict[str, Any] = {"clog_id": "report", "session_id": "s", "max_deliveries": 50}
    await hf.schedules.put("quarterly", **told, cron="*/15 * * * *", missed="all")
    await hf.schedules.put("latest", **told, cron="*/15 * * * *", missed="latest")


async def is_right(hf: Holdfast) -> None:
    runs = [row[0] for row in await hf.journal.store.fetch("SELECT run_id FROM {s}runs")]
    windows: dict[str, list[datetime]] = {}
    for run_id in runs:
        (created, *_) = await hf.journal.read(f"run:{run_id}", limit=1)
        origin = created.data["metadata"]["schedule"]
        windows.setdefault(origin["name"], []).append(datetime.fromisoformat(origin["window"]))
    assert {name for name in windows if name.startswith("alarm")} == {f"alarm{number}" for number in range(HOURS)}
    for name, found in windows.items():
        assert len(found) == len(set(found)), name
    every = sorted(windows["quarterly"])
    assert len(every) >= 4 * HOURS
    assert every == [every[0] + timedelta(minutes=15) * place for place in range(len(every))]
    assert set(windows["latest"]) <= set(every)
    sent = await hf.journal.store.fetch("SELECT run_id FROM {s}outbox")
    assert len(sent) == len(set(sent)) == len(every) + len(windows["latest"])


@pytest.mark.clause("SB-16")
def test_every_window_has_one_run_wherever_workers_die() -> None:
    report = simulate(story, check=is_right, seeds=SEEDS)

    assert report.crashes > SEEDS / 2
