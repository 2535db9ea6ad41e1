"""Children: what one run's commit means for another arrives there once, at once or after a crash."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import Claim, Continue, Done, Holdfast, InvalidEntry, LeaseLost, Ok
from holdfast.identity import child_id
from tests.conftest import FakeClock
from tests.contract.builders import (
    active,
    anomalies,
    claim_one,
    create,
    entries,
    entry,
    event_types,
    fence,
    idle,
    kinds,
    look,
    quiet,
    start_child,
)


async def family(hf: Holdfast) -> tuple[Claim, str]:
    """An active parent and the id of its pending child."""
    parent = await active(hf, run_id="parent")
    await hf.journal.execute("parent", start_child(parent))
    await quiet(hf)
    return parent, "child"


async def leave_handoff(hf: Holdfast, target: str, source: str, kind: str, rev: int) -> None:
    """The row of a handoff whose delivery a crash prevented."""
    sql = "INSERT INTO {s}handoffs (target_run_id, source_run_id, kind, rev) VALUES ($1, $2, $3, $4)"
    await hf.journal.store.execute((sql, (target, source, kind, rev)))


async def handoffs(hf: Holdfast) -> list[tuple[Any, ...]]:
    return await hf.journal.store.handoffs()


@pytest.mark.clause("S-52", "S-53")
async def test_a_child_is_created_from_its_parents_fact(hf: Holdfast) -> None:
    parent, child_id = await family(hf)

    child = await look(hf, child_id)
    assert (child.parent_run_id, child.clog_id, child.status) == ("parent", "helper", "pending")
    assert child.pending_input == "go"
    started = (await entries(hf, "parent"))[-1]
    assert started.kind == "child_run_started"
    assert (started.data["child_run_id"], started.data["child_key"]) == ("child", "k")
    created = (await entries(hf, child_id))[0].data
    assert created["parent"] == {"run_id": "parent", "child_key": "k"}
    assert await event_types(hf, "parent") == ["run_queued", "run_started", "child_started"]
    assert await handoffs(hf) == []
    assert (await hf.complete(parent, Ok())).status == "idle"


@pytest.mark.clause("S-54")
async def test_the_same_child_started_again_is_the_same_child(hf: Holdfast, clock: FakeClock) -> None:
    parent, child_id = await family(hf)

    again = await hf.journal.execute("parent", start_child(parent))
    await hf.fail(parent, "again")
    clock.advance(1)
    retried = next(claim for claim in await hf.claim_next(limit=2) if claim.run_id == "parent")
    after_retry = await hf.journal.execute("parent", start_child(retried))
    await quiet(hf)

    assert (again.decision.repeat_rev, after_retry.decision.repeat_rev) == (3, 3)
    assert await kinds(hf, child_id) == ["run_created", "attempt_claimed"]
    assert (await kinds(hf, "parent")).count("child_run_started") == 1


@pytest.mark.clause("S-55")
async def test_a_conflicting_child_start_changes_no_history(hf: Holdfast) -> None:
    parent, _ = await family(hf)

    other_id = await hf.journal.execute("parent", start_child(parent, "other"))
    other_key = await hf.journal.execute("parent", start_child(parent, "child", "k2"))
    another = await hf.journal.execute("parent", start_child(parent, "second", "k2"))
    await quiet(hf)

    assert (other_id.decision.refusal, other_key.decision.refusal) == ("conflicting_child_run",) * 2
    assert await hf.get_run("other") is None
    assert another.decision.refusal is None
    assert (await look(hf, "second")).parent_run_id == "parent"
    assert await anomalies(hf, "parent") == [("conflicting_child_run", "child_run_started")]


@pytest.mark.clause("S-55", "S-63")
async def test_a_parent_that_is_over_starts_no_child(hf: Holdfast) -> None:
    parent = await active(hf)
    await hf.complete(parent, Done())

    executed = await hf.journal.execute(parent.run_id, start_child(parent))
    await quiet(hf)

    assert executed.decision.refusal == "terminal_run"
    assert await hf.get_run("child") is None


@pytest.mark.clause("S-53")
async def test_a_childs_end_reaches_its_parent(hf: Holdfast) -> None:
    parent, child_id = await family(hf)

    await hf.complete(await claim_one(hf), Done({"found": 3}))
    await quiet(hf)

    finished = (await entries(hf, "parent"))[-1]
    assert finished.kind == "child_run_finished"
    assert {name: finished.data[name] for name in ("child_run_id", "status", "output")} == {
        "child_run_id": child_id,
        "status": "done",
        "output": {"found": 3},
    }
    assert (await event_types(hf, "parent"))[-1] == "child_finished"
    assert await handoffs(hf) == []
    assert (await hf.complete(parent, Ok())).status == "idle"


async def test_a_failed_child_does_not_fail_its_parent(hf: Holdfast) -> None:
    parent, _ = await family(hf)

    await hf.fail(await claim_one(hf), "no luck", retry=False)
    await quiet(hf)

    finished = (await entries(hf, "parent"))[-1].data
    assert (finished["status"], finished["error"]) == ("failed", "no luck")
    assert (await hf.complete(parent, Continue(1))).status == "pending"


@pytest.mark.clause("C-6", "SB-14")
async def test_cancelling_a_parent_cancels_its_children(hf: Holdfast) -> None:
    parent, _ = await family(hf)
    await hf.journal.execute("parent", start_child(parent, "second", "k2"))
    await quiet(hf)
    worker = await claim_one(hf)
    resting = "second" if worker.run_id == "child" else "child"

    await hf.cancel("parent", force=True)
    await quiet(hf)

    assert (await look(hf, resting)).status == "cancelled"
    working = await look(hf, worker.run_id)
    assert (working.status, working.cancel_requested_at) == ("active", (await look(hf, "parent")).finished_at)
    assert (await hf.complete(worker, Done("too late"))).status == "cancelled"
    await quiet(hf)
    assert await anomalies(hf, "parent") == []


@pytest.mark.clause("C-6")
async def test_a_cancel_reaches_grandchildren(hf: Holdfast) -> None:
    await family(hf)
    child = await claim_one(hf)
    await hf.journal.execute("child", start_child(child, "grandchild"))
    await hf.complete(child, Ok())
    await quiet(hf)

    await hf.cancel("parent", force=True)
    await quiet(hf)

    assert [(await look(hf, name)).status for name in ("parent", "child", "grandchild")] == ["cancelled"] * 3


@pytest.mark.clause("S-63")
async def test_a_child_that_outlives_its_parent_ends_in_peace(hf: Holdfast) -> None:
    parent, child_id = await family(hf)
    ended = await hf.complete(parent, Done())

    await hf.complete(await claim_one(hf), Done())
    await quiet(hf)

    assert (await look(hf, child_id)).status == "done"
    assert await look(hf, "parent") == ended
    assert await handoffs(hf) == []


@pytest.mark.clause("S-54")
async def test_a_sweep_delivers_what_a_crash_left_behind(hf: Holdfast) -> None:
    parent = await active(hf, run_id="parent")
    start = {"session_id": "s1", "has_input": True, "input": "go"}
    by_hand = entry("child_run_started", child_run_id="child", clog_id="helper", child_key="k", start=start)
    await hf.journal.append("run:parent", [by_hand])
    await leave_handoff(hf, "child", "parent", "start", 3)

    assert await hf.journal.sweep() == 1
    assert await hf.journal.sweep() == 0
    child = await claim_one(hf)
    await hf.journal.append("run:child", [entry("run_terminal", status="done", output=9, **_end_of(child))])
    await leave_handoff(hf, "parent", "child", "child_finished", 3)

    assert await hf.journal.sweep() == 1
    assert await hf.journal.sweep() == 0
    assert await kinds(hf, "child") == ["run_created", "attempt_claimed", "run_terminal"]
    assert (await kinds(hf, "parent"))[2:] == ["child_run_started", "child_run_finished"]
    assert (await hf.complete(parent, Ok())).status == "idle"


@pytest.mark.clause("S-54")
async def test_a_handoff_delivered_twice_takes_effect_once(hf: Holdfast) -> None:
    await family(hf)
    await hf.complete(await claim_one(hf), Done(1))
    await quiet(hf)
    before = [await entries(hf, name) for name in ("parent", "child")]

    await leave_handoff(hf, "child", "parent", "start", 3)
    await leave_handoff(hf, "parent", "child", "child_finished", 3)
    sweeps = await asyncio.gather(*(hf.journal.sweep() for _ in range(4)))

    assert max(sweeps) == 2
    assert await handoffs(hf) == []
    assert [await entries(hf, name) for name in ("parent", "child")] == before


@pytest.mark.clause("C-6", "SB-14")
async def test_a_child_whose_start_comes_after_its_parents_end_does_not_run(hf: Holdfast) -> None:
    parent = await active(hf, run_id="parent")
    start = {"session_id": "s1", "has_input": True, "input": "go"}
    by_hand = entry("child_run_started", child_run_id="child", clog_id="helper", child_key="k", start=start)
    await hf.journal.append("run:parent", [by_hand])
    await leave_handoff(hf, "child", "parent", "start", 3)

    await hf.cancel("parent", force=True)
    await quiet(hf)

    assert await hf.claim_next() == []
    assert (await look(hf, "child")).status == "cancelled"
    with pytest.raises(LeaseLost):
        await hf.complete(parent)


@pytest.mark.clause("S-55")
async def test_an_end_from_a_run_that_is_no_child_is_refused(hf: Holdfast) -> None:
    stranger, other = await idle(hf, run_id="stranger"), await create(hf, run_id="other")
    await hf.cancel(other.run_id)
    await leave_handoff(hf, stranger.run_id, other.run_id, "child_finished", 3)

    await quiet(hf)

    assert await anomalies(hf, "stranger") == [("conflicting_child_run", "child_run_finished")]
    assert await handoffs(hf) == []


@pytest.mark.clause("S-51", "S-54")
async def test_the_same_key_from_another_step_is_another_child(hf: Holdfast) -> None:
    parent, _ = await family(hf)

    other = await hf.journal.execute("parent", start_child(parent, "second", "k", step="later"))
    again = await hf.journal.execute("parent", start_child(parent, "second", "k", step="later"))
    await quiet(hf)

    assert (other.decision.refusal, again.decision.repeat_rev) == (None, other.first_rev)
    created = (await entries(hf, "second"))[0].data
    assert created["parent"] == {"run_id": "parent", "child_key": "k", "step": "later"}
    names = [child_id("parent", *rest) for rest in (("", "helper", "k"), ("later", "helper", "k"), ("", "other", "k"))]
    assert len({*names, child_id("parent", "", "helper", "k2"), child_id("other", "", "helper", "k")}) == 5


@pytest.mark.clause("S-50", "S-55")
async def test_malformed_lineage_is_no_history(hf: Holdfast) -> None:
    await family(hf)
    told = {"child_run_id": "second", "clog_id": "helper", "child_key": "k2"}
    for missing in told:
        incomplete = {name: value for name, value in told.items() if name != missing}
        with pytest.raises(InvalidEntry):
            await hf.journal.append("run:parent", [entry("child_run_started", **incomplete)])
    before = await hf.inspect("parent")

    await hf.journal.append("run:parent", [entry("child_run_started", **told, on_cancel="shrug")])

    after = await hf.inspect("parent")
    assert before is not None
    assert after is not None
    assert after.child_runs == before.child_runs
    assert await anomalies(hf, "parent") == [("malformed_entry", "child_run_started")]


@pytest.mark.clause("C-6", "SB-14", "S-52")
async def test_a_child_may_be_left_to_itself_when_its_parent_is_cancelled(hf: Holdfast) -> None:
    parent, _ = await family(hf)
    await hf.journal.execute("parent", start_child(parent, "second", "k2", on_cancel="abandon"))
    await quiet(hf)
    policies = {each.data["child_run_id"]: each.data.get("on_cancel") for each in (await entries(hf, "parent"))[2:]}

    await hf.cancel("parent", force=True)
    await quiet(hf)

    assert policies == {"child": None, "second": "abandon"}
    assert [(await look(hf, name)).status for name in ("child", "second")] == ["cancelled", "pending"]
    assert (await hf.complete(await claim_one(hf), Done("mine"))).run_id == "second"
    await quiet(hf)
    assert await handoffs(hf) == []


def _end_of(claim: Claim) -> dict[str, Any]:
    return {**fence(claim), "result_digest": "d"}
