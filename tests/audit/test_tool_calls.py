"""Tool calls: requested once, ended once, and readable as they were at any time."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.audit import Validity
from tests.audit.builders import PARENT, REQUEST, complete, count, refused, request
from tests.conftest import FakeClock, Opener
from tests.contract.faulty import WRITE_FAULTS, Fault, FaultyDatabase


@pytest.mark.clause("P-13", "P-21", "P-33", "P-24", "P-26", "PB-5", "H-P4", "PB-8", "P-08b")
async def test_a_requested_and_completed_call_reads_back_with_every_field(hf: Holdfast, clock: FakeClock) -> None:
    began = clock.now()
    await request(hf.audit, persist_payloads=True)
    clock.advance(2.5)
    await complete(hf.audit, persist_payloads=True)

    found = await hf.audit.get_tool_call(REQUEST, "call-1")

    assert found is not None
    req, done = found
    assert done is not None
    assert (req.request_id, req.call_id, req.parent_id) == (REQUEST, "call-1", PARENT)
    assert (req.vendor, req.tool_name, req.arguments_json) == ("openai", "search", {"q": "x"})
    assert req.args_sha256.startswith("sha256:")
    assert (req.status, done.status) == ("completed", "completed")
    assert req.started_at == began
    assert done.ended_at == began + timedelta(seconds=2.5)
    assert (done.latency_ms, done.outcome_json, done.error_kind, done.error_msg) == (2_500, [1], None, None)
    assert done.validity > req.validity


@pytest.mark.clause("P-15", "P-23", "H-P2", "PB-1", "P-14")
async def test_requesting_twice_is_requesting_once_and_never_moves_a_call_back(hf: Holdfast) -> None:
    first = await request(hf.audit)
    assert await request(hf.audit) == first
    assert await count(hf, "tool_calls") == 1
    await complete(hf.audit)

    await request(hf.audit)
    await request(hf.audit, arguments_json={"q": "other"})

    found = await hf.audit.get_tool_call(REQUEST, "call-1")
    assert found is not None
    assert found[0].status == "completed"
    assert await count(hf, "tool_calls") == 2


@pytest.mark.clause("P-15", "H-P2", "H-P4")
async def test_a_request_may_learn_more_until_the_end_but_not_change_its_arguments(
    hf: Holdfast, clock: FakeClock
) -> None:
    first = await request(hf.audit)
    clock.advance(1)

    await request(hf.audit, vendor="anthropic")

    await refused(request(hf.audit, arguments_json={"q": "other"}), "conflicting_request")
    await refused(request(hf.audit, parent_id="another"), "conflicting_request")
    found = await hf.audit.get_tool_call(REQUEST, "call-1")
    assert found is not None
    assert (found[0].vendor, found[0].validity) == ("anthropic", first)
    assert found[0].started_at_ms * 1_000 == first.at


@pytest.mark.clause("P-16", "P-17", "P-18", "P-19", "H-P3", "PB-1")
async def test_an_end_needs_a_request_comes_once_and_never_swaps(hf: Holdfast, clock: FakeClock) -> None:
    await refused(complete(hf.audit), "not_requested")
    await request(hf.audit)
    end = await complete(hf.audit)
    clock.advance(5)

    assert await complete(hf.audit) == end

    await refused(complete(hf.audit, outcome_json=[2]), "conflicting_completion")
    failing: dict[str, Any] = {"status": "failed", "outcome_json": None, "error_kind": "boom"}
    await refused(complete(hf.audit, **failing), "invalid_transition")
    await request(hf.audit, "call-2")
    await complete(hf.audit, "call-2", **failing, error_msg="it broke")
    await complete(hf.audit, "call-2", **failing, error_msg="it broke")
    await refused(complete(hf.audit, "call-2"), "invalid_transition")
    assert await count(hf, "tool_calls") == 4


@pytest.mark.clause("P-20")
async def test_outcomes_belong_to_completed_calls_and_errors_to_failed_ones(hf: Holdfast) -> None:
    await request(hf.audit)

    await refused(complete(hf.audit, error_kind="boom"), "invalid_value")
    await refused(complete(hf.audit, status="failed"), "invalid_value")
    await refused(complete(hf.audit, status="requested"), "invalid_kind")

    assert await count(hf, "tool_calls") == 1


@pytest.mark.clause("P-06", "P-03", "P-04", "H-P1", "H-P4", "H-P5")
async def test_the_past_still_shows_the_request(hf: Holdfast, clock: FakeClock) -> None:
    asked = await request(hf.audit, started=1_000)
    clock.advance(10)
    answered = await complete(hf.audit, ended_at_ms=4_000)

    between = await hf.audit.get_tool_call(REQUEST, "call-1", at=answered.at - 1)
    before = await hf.audit.get_tool_call(REQUEST, "call-1", at=asked.at - 1)
    for at in ("NOW", "END", clock.now(), hf.audit.format_timestamp(answered), answered.at, answered):
        now = await hf.audit.get_tool_call(REQUEST, "call-1", at=at)
        assert now is not None
        assert now[1] is not None
        assert (now[0].started_at_ms, now[1].ended_at_ms, now[1].latency_ms) == (1_000, 4_000, 3_000)

    assert before is None
    assert between is not None
    assert (between[0].status, between[1]) == ("requested", None)


@pytest.mark.clause("H-P1")
async def test_facts_of_one_microsecond_keep_their_order(hf: Holdfast) -> None:
    asked = await request(hf.audit)
    answered = await complete(hf.audit)

    assert answered.at > asked.at
    found = await hf.audit.get_tool_call(REQUEST, "call-1", at=asked.at)
    assert found is not None
    assert found[1] is None


@pytest.mark.clause("P-22", "PB-2", "P-25")
async def test_calls_of_a_parent_come_newest_first_also_as_they_were(hf: Holdfast, clock: FakeClock) -> None:
    for number in range(5):
        await request(hf.audit, f"call-{number}")
        clock.advance(1)
    await request(hf.audit, "call-9", parent_id="another")
    middle = clock.now() - timedelta(seconds=2.5)

    newest = await hf.audit.list_tool_calls_by_parent(PARENT, 3)
    then = await hf.audit.list_tool_calls_by_parent(PARENT, at=middle)

    assert [req.call_id for req, _ in newest] == ["call-4", "call-3", "call-2"]
    assert [req.call_id for req, _ in then] == ["call-2", "call-1", "call-0"]


@pytest.mark.clause("P-25", "P-36", "P-08b")
async def test_calls_are_found_by_status_tool_vendor_and_time(hf: Holdfast, clock: FakeClock) -> None:
    await request(hf.audit, "one")
    await request(hf.audit, "two", tool_name="edit")
    clock.advance(60)
    await complete(hf.audit, "one")
    late = await request(hf.audit, "three", vendor="other")

    async def found(**options: object) -> list[str]:
        return [req.call_id for req, _ in await hf.audit.list_tool_calls(**options)]  # type: ignore[arg-type]

    assert await found(status="requested") == ["three", "two"]
    assert await found(status="completed") == ["one"]
    assert await found(status="requested", at=clock.now() - timedelta(seconds=30)) == ["two", "one"]
    assert await found(tool_name="edit") == ["two"]
    assert await found(vendor="other") == ["three"]
    assert await found(since_ms=late.at_ms) == ["three"]
    assert await found(request_id=REQUEST, limit=2) == ["three", "two"]


@pytest.mark.parametrize("fault", WRITE_FAULTS)
@pytest.mark.clause("P-23", "PB-1")
async def test_a_recorder_whose_answer_was_lost_makes_no_second_fact(
    hf: Holdfast, faults: FaultyDatabase, fault: Fault
) -> None:
    heard: list[str] = []
    hf.audit.on_change("tool_calls", lambda op, new, old: heard.append(new[0]["status"]))
    faults.strike("record", fault)

    asked = await request(hf.audit)
    answered = await complete(hf.audit)

    assert isinstance(asked, Validity)
    assert answered.at > asked.at
    assert heard == ["requested", "completed"]
    assert await count(hf, "tool_calls") == 2


@pytest.mark.clause("P-15", "P-18")
async def test_of_many_who_record_one_call_at_once_one_is_first(
    hf: Holdfast, another: Opener, configuration: str
) -> None:
    # A database in memory is nobody else's, so there the rivals are tasks of one runtime.
    others = [hf.audit, hf.audit if configuration == "memory" else (await another()).audit]
    await asyncio.gather(*(request(each) for each in others for _ in range(4)))
    ends = [complete(each, outcome_json=[number]) for number, each in enumerate(others * 3)]

    answers = await asyncio.gather(*ends, return_exceptions=True)

    assert sum(isinstance(answer, Validity) for answer in answers) >= 1
    assert {getattr(a, "code", "") for a in answers if not isinstance(a, Validity)} <= {"conflicting_completion"}
    assert await count(hf, "tool_calls") == 2


async def test_to_one_user_the_facts_of_another_are_unknown(hf: Holdfast) -> None:
    ada, bob = hf.as_user("ada").audit, hf.as_user("bob").audit
    await request(ada)

    assert await bob.get_tool_call(REQUEST, "call-1") is None
    assert await bob.list_tool_calls_by_parent(PARENT) == []
    await refused(complete(bob), "not_found")

    await complete(ada)
    assert len(await hf.audit.list_tool_calls_by_parent(PARENT)) == 1
