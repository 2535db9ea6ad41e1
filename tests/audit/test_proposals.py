"""Edit proposals: pending, decided, applied, reverted, failed, stale."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from holdfast import Holdfast
from tests.audit.builders import count, refused
from tests.conftest import FakeClock
from tests.contract.builders import create, look
from tests.contract.faulty import FaultyDatabase

DIFFS = [{"path": "src/a.py", "diff": "+1"}]


async def propose(hf: Holdfast, request_id: str = "p1", **options: Any) -> None:
    await hf.audit.record_edit_proposed(request_id, **{"diffs_json": DIFFS, **options})


@pytest.mark.clause("P-30", "PB-3")
async def test_a_proposal_goes_from_pending_to_reverted_and_every_past_is_readable(
    hf: Holdfast, clock: FakeClock
) -> None:
    began = clock.now()
    await propose(hf, confidence=0.75)
    clock.advance(1)
    await hf.audit.record_edit_decision("p1", "Approved", actor="ada")
    clock.advance(1)
    await hf.audit.record_edit_applied("p1", results_json={"ok": True}, commit_hash="abc123")
    clock.advance(1)
    await hf.audit.record_edit_reverted("p1")

    seen = [await hf.audit.get_edit_proposal("p1", at=began + timedelta(seconds=second)) for second in range(4)]
    last = seen[-1]

    assert [found.status for found in seen if found] == ["pending", "approved", "applied", "reverted"]
    assert last is not None
    assert (last.diffs_json, last.confidence, last.actor) == (DIFFS, 0.75, "ada")
    assert (last.commit_hash, last.results_json, last.created_at) == ("abc123", {"ok": True}, began)
    assert last.decided_at == began + timedelta(seconds=1)
    assert last.applied_at == began + timedelta(seconds=2)


@pytest.mark.clause("P-30", "PB-3")
async def test_a_proposal_goes_nowhere_it_may_not(hf: Holdfast) -> None:
    await refused(hf.audit.record_edit_decision("p1", "approved"), "not_requested")
    await propose(hf)
    await refused(hf.audit.record_edit_decision("p1", "perhaps"), "invalid_kind")
    await refused(hf.audit.record_edit_applied("p1"), "invalid_transition")
    await refused(hf.audit.record_edit_reverted("p1"), "invalid_transition")
    await hf.audit.record_edit_decision("p1", "denied", actor="ada")
    await refused(hf.audit.record_edit_decision("p1", "approved"), "invalid_transition")
    await refused(hf.audit.record_edit_applied("p1"), "invalid_transition")
    await refused(propose(hf, diffs_json=[]), "conflicting_request")
    assert await count(hf, "proposals") == 2


@pytest.mark.clause("P-30", "PB-3")
async def test_repeating_a_step_changes_nothing(hf: Holdfast) -> None:
    await propose(hf)
    await propose(hf)
    for _ in range(2):
        await hf.audit.record_edit_decision("p1", "approved", actor="ada")
    for _ in range(2):
        await hf.audit.record_edit_applied("p1", commit_hash="abc")
    await hf.audit.record_edit_decision("p1", "approved", actor="bob")

    await refused(hf.audit.record_edit_applied("p1", commit_hash="def"), "conflicting_completion")
    assert await count(hf, "proposals") == 3


@pytest.mark.clause("P-30", "PB-2")
async def test_proposals_are_listed_by_status_newest_first(hf: Holdfast, clock: FakeClock) -> None:
    for number in range(4):
        await propose(hf, f"p{number}")
        clock.advance(1)
    before = clock.now() - timedelta(microseconds=1)
    await hf.audit.record_edit_decision("p1", "approved", actor="ada")

    async def listed(**options: Any) -> list[str]:
        return [found.request_id for found in await hf.audit.list_edit_proposals(**options)]

    assert await listed() == ["p3", "p2", "p1", "p0"]
    assert await listed(status="pending") == ["p3", "p2", "p0"]
    assert await listed(status="pending", at=before) == ["p3", "p2", "p1", "p0"]
    assert await listed(status="approved") == ["p1"]
    assert await listed(limit=2) == ["p3", "p2"]


@pytest.mark.clause("PB-7")
@pytest.mark.parametrize("errored", ["failed", "stale"])
async def test_an_edit_that_cannot_be_made_says_why_and_may_be_decided_anew(
    hf: Holdfast, clock: FakeClock, errored: str
) -> None:
    record = hf.audit.record_edit_failed if errored == "failed" else hf.audit.record_edit_stale
    await propose(hf)
    await hf.audit.record_edit_decision("p1", "approved", actor="ada")
    first = await record("p1", "a.py is not what it was")
    again = await record("p1", "a.py is not what it was")
    seen = await hf.audit.get_edit_proposal("p1")
    clock.advance(5)
    await hf.audit.record_edit_decision("p1", "approved", actor="bob")
    await hf.audit.record_edit_applied("p1", commit_hash="abc")

    last = await hf.audit.get_edit_proposal("p1")

    assert first == again
    assert seen is not None
    assert last is not None
    assert (seen.status, seen.error_msg, seen.actor) == (errored, "a.py is not what it was", "ada")
    assert (last.status, last.error_msg, last.actor) == ("applied", None, "bob")
    assert last.decided_at == clock.now()
    await refused(record("p1", "too late"), "invalid_transition")


@pytest.mark.clause("PB-7")
async def test_an_edit_may_fail_or_go_stale_before_anyone_decides(hf: Holdfast) -> None:
    await refused(hf.audit.record_edit_stale("p1", "gone"), "not_requested")
    await propose(hf)
    await hf.audit.record_edit_stale("p1", "gone")
    seen = await hf.audit.get_edit_proposal("p1")
    await hf.audit.record_edit_failed("p1", "gone for good")
    await refused(hf.audit.record_edit_applied("p1"), "invalid_transition")
    await hf.audit.record_edit_decision("p1", "denied", actor="ada")

    assert seen is not None
    assert (seen.status, seen.decided_at) == ("stale", None)
    await refused(hf.audit.record_edit_failed("p1", "again"), "invalid_transition")
    await refused(hf.audit.record_edit_decision("p1", "approved"), "invalid_transition")


@pytest.mark.clause("PB-7")
async def test_an_edit_that_failed_may_be_proposed_anew(hf: Holdfast) -> None:
    await propose(hf)
    await hf.audit.record_edit_failed("p1", "no such line")
    await propose(hf)
    standing = await hf.audit.get_edit_proposal("p1")
    await propose(hf, diffs_json=["better"])

    found = await hf.audit.get_edit_proposal("p1")

    assert standing is not None
    assert standing.status == "failed"
    assert found is not None
    assert (found.status, found.diffs_json, found.error_msg) == ("pending", ["better"], None)


@pytest.mark.clause("PB-7")
async def test_proposals_are_listed_by_what_people_want_to_see(hf: Holdfast, clock: FakeClock) -> None:
    for name in ("pending", "approved", "denied", "applied", "reverted", "failed", "stale"):
        await propose(hf, name)
        if name in ("approved", "denied", "applied", "reverted"):
            await hf.audit.record_edit_decision(name, "denied" if name == "denied" else "approved", actor="ada")
        if name in ("applied", "reverted"):
            await hf.audit.record_edit_applied(name)
        clock.advance(1)
    await hf.audit.record_edit_reverted("reverted")
    await hf.audit.record_edit_failed("failed", "no")
    clock.advance(1)
    before = clock.now()
    clock.advance(1)
    await hf.audit.record_edit_stale("stale", "no")
    clock.advance(1)
    await propose(hf, "last")

    async def listed(filter: str, **options: Any) -> list[str]:
        return [found.request_id for found in await hf.audit.list_edit_proposals(filter=filter, **options)]

    assert await listed("pending+errored") == ["last", "stale", "failed", "pending"]
    assert await listed("pending+errored", limit=2) == ["last", "stale"]
    assert await listed("pending+errored", at=before) == ["failed", "stale", "pending"]
    assert await listed("pending") == ["last", "pending"]
    assert await listed("approved") == ["applied", "approved"]
    assert (await listed("errored"), await listed("stale")) == (["failed"], ["stale"])
    assert len(await listed("all")) == 8
    assert await hf.as_user("eve").audit.list_edit_proposals(filter="pending+errored") == []
    await refused(listed("others"), "invalid_value")
    await refused(listed("pending", status="pending"), "invalid_value")


@pytest.mark.clause("PB-7")
async def test_what_is_sure_enough_is_approved_only_when_asked_for(hf: Holdfast) -> None:
    for name, confidence in (("sure", 0.95), ("enough", 0.9), ("unsure", 0.5), ("silent", None), ("denied", 1.0)):
        await propose(hf, name, confidence=confidence)
    await hf.audit.record_edit_decision("denied", "denied", actor="ada")
    assert len(await hf.audit.list_edit_proposals(status="pending")) == 4
    run = await create(hf)
    await hf.pause(run.run_id, "edit", kind="approval", metadata={"proposal": "sure"})

    confirmed = await hf.audit.auto_confirm(0.9)
    again = await hf.audit.auto_confirm(0.9)

    assert (confirmed, again) == (["sure", "enough"], [])
    found = await hf.audit.list_edit_proposals(status="approved")
    assert {each.actor for each in found} == {"auto-confirm (confidence >= 0.9)"}
    assert {each.request_id for each in await hf.audit.list_edit_proposals(status="pending")} == {"unsure", "silent"}
    assert (await look(hf, run.run_id)).status == "pending"
    for wrong in (0, -1, True, "high"):
        await refused(hf.audit.auto_confirm(wrong), "invalid_value")  # type: ignore[arg-type]


@pytest.mark.clause("PB-7")
async def test_one_user_confirms_their_own_edits_alone(hf: Holdfast) -> None:
    await propose(hf, "theirs", confidence=1.0)
    await hf.as_user("eve").audit.record_edit_proposed("eves", diffs_json=[], confidence=1.0)

    confirmed = await hf.as_user("eve").audit.auto_confirm(0.5)

    assert confirmed == ["eves"]
    assert [each.request_id for each in await hf.audit.list_edit_proposals(status="pending")] == ["theirs"]


@pytest.mark.clause("PB-7")
async def test_a_question_that_has_expired_is_left_to_people(hf: Holdfast, clock: FakeClock) -> None:
    for name in ("asked", "free"):
        await propose(hf, name, confidence=1.0)
    run = await create(hf)
    await hf.pause(run.run_id, "edit", kind="approval", metadata={"proposal": "asked"}, expires=60)
    clock.advance(61)

    assert await hf.audit.auto_confirm(0.5) == ["free"]
    assert [each.request_id for each in await hf.audit.list_edit_proposals(status="pending")] == ["asked"]


@pytest.mark.clause("PB-7")
async def test_confidence_that_fell_meanwhile_is_not_enough(hf: Holdfast, faults: FaultyDatabase) -> None:
    await propose(hf, confidence=1.0)

    async def lower() -> None:
        await propose(hf, confidence=0.1)

    faults.then("fetch", lower)
    confirmed = await hf.audit.auto_confirm(0.5)

    assert confirmed == []
    assert [each.confidence for each in await hf.audit.list_edit_proposals(status="pending")] == [0.1]
