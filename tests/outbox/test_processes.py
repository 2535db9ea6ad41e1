"""Real processes that deliver and are killed: at least once with one key, so one effect at a receiver that dedupes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast
from tests.outbox.post import row, send, shared

ROOT = Path(__file__).parents[2]


async def deliver(**told: Any) -> int:
    """Run the program; how it ended."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT), *sys.path])}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.outbox.programs", json.dumps(told), cwd=ROOT, env=environment
    )
    try:
        return await asyncio.wait_for(process.wait(), 90)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@pytest.fixture
def schema(own_schema: str) -> str:
    return own_schema


@pytest.fixture
async def real(database_url: str, schema: str) -> Any:
    async with Holdfast(database_url, schema=schema) as holdfast:
        yield holdfast


@pytest.mark.clause("H-X5", "X-08", "H-X10")
@shared
async def test_killed_between_delivery_and_ack_it_has_one_effect(
    real: Holdfast, database_url: str, schema: str, tmp_path: Path
) -> None:
    (tmp_path / "receiver").mkdir()
    (outbox_id,) = await send(real)
    told = {"url": database_url, "schema": schema, "folder": str(tmp_path / "receiver"), "limit": 10, "lease_s": 1}

    assert await deliver(**told, dies=True) == -signal.SIGKILL
    between = await row(real, outbox_id)
    assert await deliver(**told, dies=False) == 0

    assert (between.status, between.deliveries, between.attempts_made) == ("pending", 1, 1)
    found = await row(real, outbox_id)
    assert (found.status, found.deliveries, found.attempts_made, found.retry_count) == ("sent", 2, 2, 0)
    log = (tmp_path / "receiver" / "log").read_text().split()
    assert (len(log), len(set(log))) == (2, 1)
    assert len(list((tmp_path / "receiver").iterdir())) == 2, "the log, and one effect"


@pytest.mark.clause("X-06", "H-X5")
@shared
async def test_several_processes_share_the_work(real: Holdfast, database_url: str, schema: str, tmp_path: Path) -> None:
    (tmp_path / "receiver").mkdir()
    await asyncio.gather(*(real.outbox.enqueue({"n": n % 150}, "email") for n in range(200)))
    told = {"url": database_url, "schema": schema, "folder": str(tmp_path / "receiver"), "limit": 7, "lease_s": 60}

    assert await asyncio.gather(*(deliver(**told, dies=False) for _ in range(3))) == [0, 0, 0]

    counted = Counter((tmp_path / "receiver" / "log").read_text().split())
    assert (len(counted), max(counted.values())) == (150, 1)
    report = await real.outbox.report()
    assert report.statuses == {"pending": 0, "sent": 200, "dead": 0}
    assert report.reasons == {"outbox_flush_success": 150, "outbox_flush_dedup_hit": 50}
