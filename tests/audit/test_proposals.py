"""Edit proposals: pending, decided, applied, reverted."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from holdfast import Holdfast
from tests.audit.builders import count, refused
from tests.conftest import FakeClock

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
