"""A map over ten thousand items: joined once, in bounded memory, and in a bounded number of open rows."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest

from holdfast import Holdfast
from holdfast.protocol.planning import OPEN_MAX
from tests.runtime.clogs import shared

MEGABYTES_MAX = 300
HERE = Path(__file__).parents[2]


@shared
@pytest.mark.timeout(900)
@pytest.mark.parametrize("items", [400, pytest.param(10_000, marks=pytest.mark.slow)])
async def test_a_wide_map_joins_once_in_bounded_memory(database_url: str, schema: str, items: int) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.workflow.wide", database_url, schema, str(items)),
        cwd=HERE,
        stdout=asyncio.subprocess.PIPE,
    )
    most = 0
    async with Holdfast(database_url, schema=schema) as hf:
        while process.returncode is None:
            ((count,),) = await hf.journal.store.fetch("SELECT count(*) FROM {s}work")
            most = max(most, count)
            await asyncio.wait([asyncio.create_task(process.wait())], timeout=0.3)
        assert process.stdout is not None
        told = json.loads(await process.stdout.read())

        assert told["output"] == {"join": [items, items * (items - 1) // 2]}
        assert told["megabytes"] < MEGABYTES_MAX
        # Room for the run's own tick and the step that is just being joined.
        assert OPEN_MAX / 2 < most <= OPEN_MAX + 2
        sql = "SELECT count(*) FROM {s}journal WHERE thread = $1 AND kind = 'runnable_applied' AND data LIKE '%lines%'"
        assert await hf.journal.store.fetch(sql, f"run:{told['run_id']}") == [(1,)]
        assert (await hf.fsck(told["run_id"])).ok
