"""One decision drives boundary and proposal, in one commit."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import Holdfast, HoldfastError
from tests.audit.builders import refused
from tests.audit.conftest import Opener
from tests.contract.builders import create, look


async def asked(hf: Holdfast, request_id: str = "p1") -> str:
    """A run that waits for the decision on a proposal."""
    await hf.audit.record_edit_proposed(request_id, diffs_json=[{"path": "a.py"}], confidence=0.5)
    run = await create(hf)
    await hf.pause(run.run_id, "edit", kind="approval", metadata={"proposal": request_id})
    return run.run_id


async def status(hf: Holdfast, request_id: str = "p1") -> str:
    found = await hf.audit.get_edit_proposal(request_id)
    assert found is not None
    return found.status


@pytest.mark.clause("C-22")
@pytest.mark.parametrize("approved", [True, False])
async def test_the_answer_to_the_boundary_decides_the_proposal(hf: Holdfast, approved: bool) -> None:
    heard: list[tuple[str, Any]] = []
    hf.audit.on_change("proposals", lambda op, new, old: heard.append((op, new[0]["status"])))
    run_id = await asked(hf)

    answer = hf.approve if approved else hf.reject
    await answer(run_id, actor="ada", key="k")
    await answer(run_id, actor="ada", key="k")

    found = await hf.audit.get_edit_proposal("p1")
    assert found is not None
    assert (found.status, found.actor) == ("approved" if approved else "denied", "ada")
    assert (found.diffs_json, found.confidence) == ([{"path": "a.py"}], 0.5)
    assert found.decided_at is not None
    assert (await look(hf, run_id)).status == ("pending" if approved else "failed")
    assert heard == [("put", "pending"), ("put", found.status)]


@pytest.mark.clause("C-22")
async def test_an_answer_that_is_refused_decides_nothing(hf: Holdfast) -> None:
    run_id = await asked(hf)

    await refused(hf.approve(run_id, actor="ada", step="another"), "stale_manual_resolution")
    await refused(hf.approve(run_id), "stale_manual_resolution")
    assert await status(hf) == "pending"

    await hf.audit.record_edit_decision("p1", "denied", actor="bob")
    await refused(hf.approve(run_id, actor="ada"), "invalid_transition")
    assert (await look(hf, run_id)).status == "paused"
    await hf.reject(run_id, actor="ada")
    assert await status(hf) == "denied"


@pytest.mark.clause("C-22")
async def test_a_boundary_about_something_else_touches_no_proposal(hf: Holdfast) -> None:
    run = await create(hf)
    await hf.pause(run.run_id, "edit", kind="approval", metadata={"proposal": "unknown"})

    await hf.approve(run.run_id, actor="ada")

    assert await hf.audit.list_edit_proposals() == []


@pytest.mark.clause("C-22")
async def test_of_two_who_decide_at_once_the_first_decides_both(
    hf: Holdfast, another: Opener, configuration: str
) -> None:
    other = hf if configuration == "memory" else await another()
    for number in range(8):
        request_id = f"p{number}"
        run_id = await asked(hf, request_id)

        ends = await asyncio.gather(
            hf.approve(run_id, actor="ada"),
            other.audit.record_edit_decision(request_id, "denied", actor="bob"),
            return_exceptions=True,
        )

        assert all(isinstance(end, HoldfastError) or not isinstance(end, BaseException) for end in ends), ends
        is_open = (await look(hf, run_id)).status == "paused"
        assert await status(hf, request_id) == ("denied" if is_open else "approved")
