"""Queues, indexes and the catalog are views of the runs' threads: folded, they say what the tables say."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import Done, Holdfast, Ok, Retry, Wait
from holdfast.moments import to_us
from holdfast.protocol import catalog, dispatch
from tests.conftest import FakeClock
from tests.contract.builders import LEASE_S, active, claim_one, create, idle, quiet, start_child, step_of


async def mixed_company(hf: Holdfast, clock: FakeClock) -> None:
    """Runs in every state a run can be in, on two queues and of two clogs."""
    await hf.complete(await active(hf, run_id="done"), Done({"secret": 1}))
    await hf.fail(await active(hf, run_id="failed"), "secret", retry=False)
    await hf.complete(await active(hf, run_id="waiting"), Wait(seconds=60))
    await hf.complete(await active(hf, run_id="resting"), Ok())
    await hf.complete(await active(hf, run_id="retrying"), Retry("secret", after=600))
    await active(hf, run_id="taken-over")
    clock.advance(1)
    await active(hf, run_id="lost", clog_id="other")
    clock.advance(LEASE_S - 1)
    await hf.complete(await claim_one(hf), Ok())
    clock.advance(1)
    parent = await active(hf, run_id="parent", queue="slow")
    await hf.journal.execute("parent", start_child(parent, "child"))
    await quiet(hf)
    await active(hf, run_id="held", queue="slow")
    await hf.journal.append("run:resting", [step_of("resting", "left"), step_of("resting", "right")])
    await hf.cancel((await create(hf, run_id="cancelled", clog_id="other")).run_id)
    await hf.pause((await idle(hf, run_id="paused", queue="slow")).run_id, "review")
    await create(hf, run_id="pending", priority=7)


@pytest.mark.clause("S-01", "S-04", "S-15", "S-35", "H-S1", "H-S2")
async def test_the_dispatch_view_of_a_queue_folds_to_its_work_table(hf: Holdfast, clock: FakeClock) -> None:
    await mixed_company(hf, clock)

    for queue in ("default", "slow", "nobody"):
        folded = dispatch.fold(await hf.journal.view_facts(f"dispatch:{queue}"))
        seen = {
            (
                item.run_id,
                item.runnable_key,
                item.attempt,
                item.visible_at,
                item.claim_id,
                item.owner_id,
                item.lease_until,
            )
            for item in folded.attempts
        }
        assert seen == await work(hf, queue)


@pytest.mark.clause("S-04", "S-33", "S-35")
async def test_the_dispatch_view_knows_what_may_be_claimed(hf: Holdfast, clock: FakeClock) -> None:
    await mixed_company(hf, clock)
    now = to_us(clock.now())

    for queue in ("default", "slow"):
        folded = dispatch.fold(await hf.journal.view_facts(f"dispatch:{queue}"))
        due = {(item.run_id, item.runnable_key) for item in (*folded.visible(now), *folded.expired(now))}
        claims = await hf.claim_next(queue, limit=20)
        assert {(claim.run_id, claim.runnable_key) for claim in claims} == due


@pytest.mark.clause("S-04", "H-S5")
async def test_a_paused_run_is_not_visible_in_its_queue(hf: Holdfast, clock: FakeClock) -> None:
    await hf.pause((await create(hf)).run_id, "review")

    folded = dispatch.fold(await hf.journal.view_facts("dispatch:default"))

    assert await hf.claim_next() == []
    assert folded.visible(to_us(clock.now())) == ()


@pytest.mark.clause("S-01", "S-05", "H-S2")
async def test_the_index_of_a_clog_and_the_catalog_fold_to_the_runs_table(hf: Holdfast, clock: FakeClock) -> None:
    await mixed_company(hf, clock)

    everything = {clog: await listed(hf, f"run_index:{clog}") for clog in ("chat", "other", "helper", "nobody")}

    for clog, runs in everything.items():
        assert runs == await stored(hf, clog)
    assert await listed(hf, "catalog") == {key: run for runs in everything.values() for key, run in runs.items()}
    assert [len(runs) for runs in everything.values()] == [10, 2, 1, 0]


@pytest.mark.clause("S-05", "SB-10")
async def test_a_listing_holds_no_input_output_error_or_claim(hf: Holdfast, clock: FakeClock) -> None:
    await mixed_company(hf, clock)

    text = repr(catalog.fold(await hf.journal.view_facts("catalog")))

    assert "secret" not in text
    assert "hello" not in text
    assert "claim" not in text


@pytest.mark.clause("S-01", "S-02", "C-11")
async def test_a_view_is_read_by_position(hf: Holdfast, clock: FakeClock) -> None:
    await mixed_company(hf, clock)

    whole = await hf.journal.read("dispatch:default")
    positions = [each.position for each in whole]

    assert positions == sorted(set(positions))
    assert {each.thread for each in whole} >= {"run:done", "run:failed", "run:pending"}
    assert "event" not in {each.kind for each in whole}
    assert await hf.journal.read("dispatch:default", after=positions[3], limit=5) == whole[4:9]


async def work(hf: Holdfast, queue: str) -> set[tuple[Any, ...]]:
    sql = """
        SELECT run_id, key, attempt, visible_at, claim_id, owner_id, lease_until FROM {s}work WHERE queue = $1
    """
    return set(await hf.journal.store.fetch(sql, queue))


async def listed(hf: Holdfast, view: str) -> dict[str, tuple[Any, ...]]:
    folded = catalog.fold(await hf.journal.view_facts(view))
    return {
        run_id: (run.session_id, run.clog_id, run.queue, run.created_at, run.ended) for run_id, run in folded.items()
    }


async def stored(hf: Holdfast, clog: str) -> dict[str, tuple[Any, ...]]:
    sql = """
        SELECT run_id, session_id, clog_id, queue, created_at,
            CASE WHEN status IN ('done', 'failed', 'cancelled') THEN status END
        FROM {s}runs
        WHERE clog_id = $1
    """
    return {run_id: tuple(row) for run_id, *row in await hf.journal.store.fetch(sql, clog)}
