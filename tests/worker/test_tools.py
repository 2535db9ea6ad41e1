"""Tools whose process is killed between the effect and the answer: nothing is guessed."""

from __future__ import annotations

import asyncio
import signal

import pytest

from holdfast import Holdfast
from tests.worker.judgement import diary
from tests.worker.nursery import Nursery
from tests.worker.places import LEASE_MS, Place, ended, kinds, until

ENDS = {
    "retry": ("receipt", ["looked", "charged", "charged"], "completed"),
    "fail": ("tool_unknown", ["looked", "charged"], "failed"),
    "probe": ("found", ["looked", "charged", "probed"], "completed"),
    "approved": ("receipt", ["looked", "charged", "charged"], "completed"),
    "rejected": ("tool_rejected", ["looked", "charged"], "failed"),
}


def start(nursery: Nursery, place: Place) -> int:
    return nursery.start("worker", **place._asdict(), lease_ms=LEASE_MS, concurrency=4, drain_s=20)


@pytest.mark.parametrize("way", sorted(ENDS))
async def test_a_call_that_lost_its_process_ends_as_its_policy_says(
    hf: Holdfast, place: Place, nursery: Nursery, way: str
) -> None:
    policy = "ask" if way in ("approved", "rejected") else way
    run = await hf.create_run(session_id="s", clog_id="spender", input=policy)
    worker = start(nursery, place)
    assert await asyncio.to_thread(nursery.wait, worker) == -signal.SIGKILL
    (open_call,) = await hf.audit.list_tool_calls(status="requested", request_id=run.run_id)
    assert open_call[1] is None
    assert (await kinds(hf, run.run_id))[-1] in ("tool_requested", "attempt_heartbeat")

    start(nursery, place)
    if policy == "ask":

        async def paused() -> bool:
            found = await hf.get_run(run.run_id)
            return found is not None and found.status == "paused"

        await until(paused)
        await (hf.approve if way == "approved" else hf.reject)(run.run_id, actor="ada")
    assert await ended(hf, run.run_id) == ["done"]

    answer, effects, status = ENDS[way]
    finished = await hf.get_run(run.run_id)
    assert finished is not None
    assert finished.output == [None, answer]
    assert [line.what for line in diary(place) if line.what != "ready"] == effects
    assert len({line.tick_id for line in diary(place) if line.what in ("charged", "probed")}) == 1
    assert [req.status for req, _ in await hf.audit.list_tool_calls_by_parent(run.run_id)] == [status, "completed"]
    report = await hf.fsck()
    assert report.ok, report.problems
