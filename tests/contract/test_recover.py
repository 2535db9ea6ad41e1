"""recover: what a crash left between two steps is done once, in the right order, and repeating it writes nothing."""

from __future__ import annotations

import pytest

from holdfast import Conflict, Done, Holdfast, NotFound
from holdfast.journal import lanes
from tests.conftest import IN_PROCESS
from tests.contract.builders import (
    active,
    claim_one,
    create,
    entries,
    entry,
    fence,
    idle,
    kinds,
    look,
    step_of,
)


def planned(key: str, **data: object) -> dict[str, object]:
    return entry("runnable_planned", runnable_key=key, step=key, **data)


async def recovered(hf: Holdfast, run_id: str) -> list[str]:
    """The kinds of what a recovery wrote; a second one writes nothing."""
    head = (await look(hf, run_id)).rev
    await hf.recover(run_id)
    written = await kinds(hf, run_id, after=head)
    again = (await look(hf, run_id)).rev
    assert (await hf.recover(run_id)).rev == again
    return written


@pytest.mark.clause("S-22", "S-23")
async def test_what_was_planned_and_never_scheduled_is_scheduled_with_its_input(hf: Holdfast) -> None:
    await idle(hf, run_id="r1")
    await hf.journal.append("run:r1", [planned("load", input={"page": 1}), planned("send")])

    assert await recovered(hf, "r1") == ["attempt_scheduled", "attempt_scheduled"]

    scheduled = await entries(hf, "r1", after=3)
    assert [(each.data["runnable_key"], each.data.get("input")) for each in scheduled] == [
        ("load", {"page": 1}),
        ("send", None),
    ]
    claims = await hf.claim_next(limit=5)
    assert {claim.runnable_key: claim.input for claim in claims} == {"load": {"page": 1}, "send": None}


@pytest.mark.clause("S-23")
async def test_what_was_completed_and_never_applied_is_applied(hf: Holdfast) -> None:
    await idle(hf, run_id="r1")
    await hf.journal.append("run:r1", [planned("load"), step_of("r1", "load")])
    await hf.complete(await claim_one(hf), Done(7))

    assert await recovered(hf, "r1") == ["runnable_applied"]


@pytest.mark.clause("S-22", "S-23")
async def test_missing_intents_come_before_results(hf: Holdfast) -> None:
    await idle(hf, run_id="r1")
    await hf.journal.append("run:r1", [planned("load"), step_of("r1", "load")])
    await hf.complete(await claim_one(hf), Done(7))
    await hf.journal.append("run:r1", [planned("send"), planned("note")])

    assert await recovered(hf, "r1") == ["attempt_scheduled", "attempt_scheduled", "runnable_applied"]


@pytest.mark.clause("S-23")
async def test_results_are_applied_in_the_order_in_which_they_came(hf: Holdfast) -> None:
    await idle(hf, run_id="r1")
    await hf.journal.append("run:r1", [step_of("r1", "a"), step_of("r1", "b")])
    claims = {claim.runnable_key: claim for claim in await hf.claim_next(limit=2)}
    for key in ("b", "a"):
        await hf.complete(claims[key], Done(key))

    await recovered(hf, "r1")

    applied = [each.data["runnable_key"] for each in await entries(hf, "r1") if each.kind == "runnable_applied"]
    assert applied == ["b", "a"]


async def test_a_failure_whose_retry_was_decided_needs_no_recovery(hf: Holdfast) -> None:
    await idle(hf, run_id="r1")
    await hf.journal.append("run:r1", [planned("load"), step_of("r1", "load")])
    await hf.fail(await claim_one(hf), "not yet")

    assert await recovered(hf, "r1") == []
    assert (await look(hf, "r1")).status == "pending"


async def test_a_handoff_that_a_crash_left_open_is_delivered(hf: Holdfast) -> None:
    parent = await active(hf, run_id="parent")
    start = {"session_id": "s1", "has_input": True, "input": "go"}
    by_hand = entry("child_run_started", child_run_id="child", clog_id="helper", child_key="k", start=start)
    await hf.journal.append("run:parent", [by_hand])
    sql = "INSERT INTO {s}handoffs (target_run_id, source_run_id, kind, rev) VALUES ($1, $2, $3, $4)"
    await hf.journal.store.execute((sql, ("child", "parent", "start", 3)))

    await hf.recover("parent")

    child = await claim_one(hf)
    assert (child.run_id, child.input) == ("child", "go")
    end = entry("run_terminal", status="done", **fence(child), result_digest="d")
    await hf.journal.append("run:child", [end])
    await hf.journal.store.execute((sql, ("parent", "child", "child_finished", 3)))

    await hf.recover("parent")

    assert (await kinds(hf, "parent"))[-1] == "child_run_finished"
    assert await hf.journal.store.handoffs() == []
    assert (await hf.complete(parent)).status == "done"


@pytest.mark.parametrize("configuration", IN_PROCESS)
async def test_a_lane_that_nobody_holds_is_filled(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    await create(hf, run_id="head", lane="main")
    await create(hf, run_id="next", lane="main")

    async def die(*_: object) -> None:
        raise Conflict("the process is gone")

    with monkeypatch.context() as crash:
        crash.setattr(lanes, "promote", die)
        await hf.complete(await claim_one(hf))
    assert await hf.claim_next() == []

    await hf.recover("next")

    assert (await claim_one(hf)).run_id == "next"


async def test_there_is_nothing_to_recover_in_a_run_that_is_over_or_healthy(hf: Holdfast) -> None:
    await create(hf, run_id="healthy")
    await hf.cancel((await create(hf, run_id="over")).run_id)

    assert await recovered(hf, "healthy") == []
    assert await recovered(hf, "over") == []
    with pytest.raises(NotFound):
        await hf.recover("nobody")
