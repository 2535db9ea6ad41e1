"""Checks that an operator may repeat: everything unfinished survives a restart, and a mixed load ends as it must."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from holdfast import Clog, Done, Holdfast, Retry, RetryPolicy, Wait
from holdfast.handlers import Context
from holdfast.protocol.outcomes import Outcome
from tests.conftest import FakeClock, Opener
from tests.runtime.clogs import shared


def worker_of(hf: Holdfast) -> None:
    """One clog for every kind of run: its input says what becomes of it."""
    mixed = Clog("mixed")

    @mixed.on_advance
    async def advance(given: dict[str, Any] | None, ctx: Context) -> Outcome:
        match (given or {}).get("as"):
            case "delayed":
                return Wait(seconds=60)
            case "retrying" if ctx.attempt < 2:
                return Retry("not yet")
            case _:
                return Done(ctx.run_id)

    hf.register(mixed)


@shared
@pytest.mark.clause("SB-20")
async def test_runs_that_are_queued_delayed_retrying_or_paused_survive_a_restart(
    another: Opener, clock: FakeClock
) -> None:
    first = await another()
    worker_of(first)
    kinds = ("queued", "delayed", "retrying", "paused")
    for kind in reversed(kinds):
        await first.create_run(session_id="s", clog_id="mixed", input={"as": kind}, run_id=kind)
        if kind == "paused":
            await first.pause(kind, "review", kind="approval")
        elif kind != "queued":
            await first.advance(max_runs=1)
    before = {kind: await first.get_run(kind) for kind in kinds}
    await first.close()

    second = await another()
    worker_of(second)
    assert {kind: await second.get_run(kind) for kind in kinds} == before
    await second.approve("paused", actor="ann")
    await second.drain()

    assert {kind: await second.result(kind) for kind in kinds} == {kind: kind for kind in kinds}
    assert (await second.fsck()).ok


@shared
@pytest.mark.clause("SB-20")
async def test_a_mixed_load_ends_as_it_must(hf: Holdfast) -> None:
    """Twelve that succeed, three that retry, three that are cancelled, two that are replayed."""
    worker_of(hf)
    quick = RetryPolicy(backoff_ms=10)
    kinds = ["plain"] * 12 + ["retrying"] * 3 + ["cancelled"] * 3
    runs = [
        await hf.create_run(session_id="s", clog_id="mixed", input={"as": kind}, retry=quick, run_id=f"{kind}-{place}")
        for place, kind in enumerate(kinds)
    ]
    await asyncio.gather(*(hf.cancel(run.run_id) for run in runs if run.run_id.startswith("cancelled")))
    await hf.drain()
    replays = [await hf.replay(runs[place].run_id) for place in (0, 12)]
    await hf.drain()

    ended = Counter([(await hf.get_run(run.run_id)).status for run in (*runs, *replays)])  # type: ignore[union-attr]
    assert ended == {"done": 17, "cancelled": 3}
    assert (await hf.fsck()).ok
