"""What a worker costs its database while there is nothing to do."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.store import postgres_pool
from tests.worker.places import seam_under, until, working

IDLE_S = 10.0
QUERIES_PER_S = 2.0


async def idle_cost(hf: Holdfast, *, settle_s: float, ready: Callable[[], Any] = lambda: True) -> Counter[str]:
    """What a worker here asks for while it is idle, once it is ready and has settled down; never above the budget."""
    statements = 0
    run = postgres_pool.Connections.run

    async def counted(self: Any, job: Any, **options: Any) -> Any:
        nonlocal statements
        statements += 1
        return await run(self, job, **options)

    seam = seam_under(hf)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(postgres_pool.Connections, "run", counted)
        async with working(hf):
            await until(ready)
            await asyncio.sleep(settle_s)
            seam.calls.clear()
            statements = 0
            await asyncio.sleep(IDLE_S)
            asked, sent = Counter(seam.calls), statements

    print(f"idle for {IDLE_S:.0f} s: {dict(asked)}, {sent} statements on Postgres")
    assert asked.total() <= QUERIES_PER_S * IDLE_S
    assert sent <= QUERIES_PER_S * IDLE_S
    return asked
