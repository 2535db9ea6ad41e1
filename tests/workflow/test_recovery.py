"""Work that was left half done: found by the planner, by `recover`, and by whoever takes a lost claim over."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import Holdfast, Workflow
from holdfast.protocol.planning import OPEN_MAX
from tests.conftest import FakeClock, Opener
from tests.runtime.clogs import shared
from tests.workflow.test_steps import diamond, started


async def kinds(hf: Holdfast, run_id: str) -> list[tuple[str, str | None]]:
    return [(entry.kind, entry.data.get("runnable_key")) for entry in await hf.journal.read(f"run:{run_id}")]


@pytest.mark.clause("S-22", "S-23")
async def test_a_result_that_nobody_applied_and_a_plan_that_nobody_scheduled_are_recovered(hf: Holdfast) -> None:
    """Written by hand, as a journal from elsewhere may hold them."""
    run = await started(hf, diamond(), 3)
    await hf.advance()
    (claim,) = await hf.claim_next()
    assert claim.runnable_key == "top"
    thread = f"run:{run.run_id}"
    # Without its plan: what follows is for recovery to find.
    claimed = [entry for entry in await hf.journal.read(thread) if entry.kind == "attempt_claimed"][-1]
    fence = {name: claimed.data[name] for name in ("runnable_key", "claim_id", "claim_token_hash")}
    completed = {**fence, "result": 3, "result_digest": "d"}
    await hf.journal.append(thread, [{"kind": "attempt_completed", "data": completed}])
    await hf.journal.append(thread, [{"kind": "runnable_planned", "data": {"runnable_key": "left", "step": "left"}}])

    await hf.recover(run.run_id)
    head = (await hf.get_run(run.run_id)).rev  # type: ignore[union-attr]
    await hf.recover(run.run_id)
    assert (await hf.get_run(run.run_id)).rev == head  # type: ignore[union-attr]

    await hf.drain()
    told = await kinds(hf, run.run_id)
    assert told.index(("attempt_scheduled", "left")) < told.index(("runnable_applied", "top"))
    assert await hf.result(run.run_id) == {"bottom": [4, 30]}


@pytest.mark.clause("S-23")
async def test_the_planner_schedules_first_and_applies_second(hf: Holdfast) -> None:
    run = await started(hf, diamond(), 3)
    await hf.advance()
    assert [claim.runnable_key for claim in await hf.claim_next()] == ["top"]
    thread = f"run:{run.run_id}"
    claimed = [entry for entry in await hf.journal.read(thread) if entry.kind == "attempt_claimed"][-1]
    fence = {name: claimed.data[name] for name in ("runnable_key", "claim_id", "claim_token_hash")}
    await hf.journal.append(
        thread,
        [
            {"kind": "attempt_completed", "data": {**fence, "result": 3, "result_digest": "d"}},
            {"kind": "runnable_planned", "data": {"runnable_key": "right", "step": "right"}},
            {"kind": "attempt_scheduled", "data": {"runnable_key": "", "step": "", "idempotency_key": "k"}},
        ],
    )

    await hf.advance()

    told = await kinds(hf, run.run_id)
    assert told.index(("attempt_scheduled", "right")) < told.index(("runnable_applied", "top"))
    assert told.count(("attempt_scheduled", "right")) == 1
    await hf.drain()
    assert await hf.result(run.run_id) == {"bottom": [4, 30]}


@shared
async def test_a_step_whose_worker_is_lost_is_taken_over(hf: Holdfast, clock: FakeClock, another: Opener) -> None:
    other = await another()
    for runtime in (hf, other):
        runtime.register(diamond())
    run = await hf.start("diamond", 1, session_id="s")
    await hf.advance()
    (lost,) = await hf.claim_next()

    clock.advance(60)
    await other.drain()

    assert await other.result(run.run_id) == {"bottom": [2, 10]}
    with pytest.raises(Exception, match="no longer held"):
        await hf.complete(lost, 99)


async def test_a_step_that_kills_its_workers_fails_the_run(hf: Holdfast, clock: FakeClock) -> None:
    run = await started(hf, diamond(), 1, max_deliveries=2)
    await hf.advance()
    for _ in range(2):
        assert len(await hf.claim_next()) == 1
        clock.advance(60)

    assert await hf.claim_next() == []
    await hf.drain()

    info = await hf.get_run(run.run_id)
    assert info is not None
    assert (info.status, info.error_kind) == ("failed", "worker_lost")


async def test_a_step_whose_workers_are_lost_goes_its_error_route(hf: Holdfast, clock: FakeClock) -> None:
    flow = Workflow("deadly")

    @flow.step(on_error="mourn")
    async def deadly(ctx: Any, input: Any) -> None:
        return None

    @flow.step()
    async def mourn(ctx: Any, error: dict[str, Any]) -> str:
        return str(error["kind"])

    run = await started(hf, flow, max_deliveries=1)
    await hf.advance()
    await hf.claim_next()
    clock.advance(60)
    await hf.drain()

    assert await hf.result(run.run_id) == {"mourn": "worker_lost"}


async def test_steps_that_wait_for_room_are_not_left_half_done(hf: Holdfast) -> None:
    flow = Workflow("crowd")
    for number in range(OPEN_MAX + 30):
        flow.wait(f"w{number}", seconds=3_600)
    run = await started(hf, flow)
    await hf.advance()
    head = (await hf.get_run(run.run_id)).rev  # type: ignore[union-attr]

    await hf.recover(run.run_id)

    assert (await hf.get_run(run.run_id)).rev == head  # type: ignore[union-attr]


@pytest.mark.clause("SB-8")
async def test_explain_says_what_a_workflow_waits_for(hf: Holdfast, clock: FakeClock) -> None:
    flow = Workflow("told")
    flow.wait("nap", seconds=60)

    @flow.step(after=["nap"])
    async def broken(ctx: Any, nap: None) -> None:
        raise ValueError("no luck")

    async def summary() -> str:
        found = await hf.explain(run.run_id)
        assert found is not None
        return found.summary

    run = await started(hf, flow)
    await hf.advance()
    assert "in 60 s" in await summary()
    clock.advance(60)
    await hf.advance()
    assert "(step 'broken')" in await summary()
    await hf.advance()
    assert "before try 2" in await summary()
    await hf.drain()
    assert "step broken failed: no luck" in await summary()


async def test_a_fork_of_a_workflow_goes_on_from_there(hf: Holdfast) -> None:
    calls: list[str] = []
    run = await started(hf, diamond(calls), 2)
    await hf.advance()
    await hf.advance()
    info = await hf.get_run(run.run_id)
    assert info is not None

    copy = await hf.fork(run.run_id, at_rev=info.rev)
    await hf.drain()

    assert await hf.result(copy.run_id) == await hf.result(run.run_id) == {"bottom": [3, 20]}
    assert calls.count("top") == 1


async def test_a_fork_may_cut_a_workflow_anywhere(hf: Holdfast) -> None:
    run = await started(hf, diamond(), 2)
    await hf.drain()
    info = await hf.get_run(run.run_id)
    assert info is not None

    copies = [await hf.fork(run.run_id, at_rev=rev) for rev in range(1, info.rev)]
    await hf.drain()

    assert {str(await hf.result(copy.run_id)) for copy in copies} == {"{'bottom': [3, 20]}"}


@pytest.mark.parametrize("limit", [1, 2, None])
async def test_a_fork_may_cut_a_map_and_a_wait_anywhere(hf: Holdfast, clock: FakeClock, limit: int | None) -> None:
    flow = Workflow("cut")

    @flow.step()
    async def load(ctx: Any, input: Any) -> list[int]:
        return [1, 2, 3]

    @flow.map("double", over="load", limit=limit)
    async def double(ctx: Any, item: int) -> int:
        return item * 2

    flow.wait("nap", seconds=3_600, after=["double"])
    run = await started(hf, flow)
    for _ in range(20):
        await hf.advance()
    asleep = await hf.get_run(run.run_id)
    assert asleep is not None
    assert asleep.status == "waiting"

    copies = [await hf.fork(run.run_id, at_rev=rev) for rev in range(1, asleep.rev + 1)]
    for _ in range(40):
        await hf.advance()
    assert {(await hf.get_run(copy.run_id)).status for copy in copies} == {"waiting"}  # type: ignore[union-attr]
    clock.advance(3_600)
    await hf.drain()

    for copy in copies:
        assert await hf.result(copy.run_id) == {"nap": None}
        seen = await hf.graph(copy.run_id)
        assert seen is not None
        assert [node.state for node in seen.nodes] == ["completed"] * 3


async def test_a_workflow_is_rebuilt_from_its_journal_in_the_middle(hf: Holdfast) -> None:
    flow = Workflow("rebuilt")

    @flow.step()
    async def load(ctx: Any, input: Any) -> list[int]:
        return [1, 2, 3, 4]

    @flow.map("double", over="load", limit=2)
    async def double(ctx: Any, item: int) -> int:
        return item * 2

    run = await started(hf, flow)
    for _ in range(4):
        await hf.advance()
    for table in ("runnables", "work"):
        await hf._store.execute((f"DELETE FROM {{s}}{table}", ()))

    assert not (await hf.fsck()).ok
    assert (await hf.rebuild()).ok
    await hf.drain()

    assert await hf.result(run.run_id) == {"double": [2, 4, 6, 8]}
