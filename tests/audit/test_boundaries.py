"""One decision drives boundary and proposal, in one commit."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import pytest
from msgspec.structs import replace

from holdfast import Conflict, FlowContext, Holdfast
from holdfast.audit.statements import fact_of, proposal_key
from holdfast.protocol.audit import Proposal, row
from holdfast.store.tables import PROPOSALS
from tests.audit.builders import count, refused, say
from tests.conftest import FakeClock, Opener
from tests.contract.builders import create, look
from tests.contract.faulty import WRITE_FAULTS, Fault, FaultyDatabase

LOST = ("invalid_transition", "stale_manual_resolution", "terminal_run")
"""What those are told who decided a moment too late."""


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
    await refused(hf.approve(run_id, actor="ada", seen_rev=1), "stale_manual_resolution")

    assert await status(hf) == "pending"
    assert (await look(hf, run_id)).status == "paused"


@pytest.mark.clause("C-22")
@pytest.mark.parametrize("approved", [True, False])
async def test_a_decision_on_the_proposal_answers_the_run_that_asks(hf: Holdfast, approved: bool) -> None:
    heard: list[tuple[str, Any]] = []
    hf.audit.on_change("proposals", lambda op, new, old: heard.append((op, new[0]["status"])))
    run_id = await asked(hf)
    decision = "approved" if approved else "denied"

    first = await hf.audit.record_edit_decision("p1", decision, actor="ada")
    rev = (await look(hf, run_id)).rev
    again = await hf.audit.record_edit_decision("p1", decision.upper(), actor="bob")

    found = await hf.audit.get_edit_proposal("p1")
    assert found is not None
    assert (found.status, found.actor, found.validity) == (decision, "ada", first)
    assert again == first
    run = await look(hf, run_id)
    assert (run.status, run.rev) == ("pending" if approved else "failed", rev)
    entry = next(each for each in await hf.journal.read(f"run:{run_id}") if each.kind == "manual_step_resolved")
    assert (entry.data["action"], entry.data["actor"]) == ("approve" if approved else "reject", "ada")
    assert found.decided_at == entry.at
    assert heard == [("put", "pending"), ("put", decision)]
    await refused(hf.audit.record_edit_decision("p1", "denied" if approved else "approved"), "invalid_transition")
    await refused(hf.approve(run_id, actor="bob"), "stale_manual_resolution" if approved else "terminal_run")


@pytest.mark.clause("C-22")
async def test_a_decision_that_the_run_does_not_take_is_not_made(hf: Holdfast, clock: FakeClock) -> None:
    await hf.audit.record_edit_proposed("p1", diffs_json=[])
    run = await create(hf)
    await hf.pause(run.run_id, "edit", kind="approval", metadata={"proposal": "p1"}, expires=60)

    await refused(hf.audit.record_edit_decision("p1", "approved"), "stale_manual_resolution")
    clock.advance(61)
    await refused(hf.audit.record_edit_decision("p1", "approved", actor="ada"), "stale_manual_resolution")
    assert await status(hf) == "pending"

    await hf.journal.sweep()
    await hf.audit.record_edit_decision("p1", "approved", actor="ada")
    assert (await status(hf), (await look(hf, run.run_id)).status) == ("approved", "failed")


@pytest.mark.clause("C-22")
async def test_a_run_that_asks_about_a_decided_proposal_is_answered_by_saying_it_again(hf: Holdfast) -> None:
    await hf.audit.record_edit_proposed("p1", diffs_json=[])
    before = await hf.audit.record_edit_decision("p1", "approved", actor="ada")
    run = await create(hf)
    await hf.pause(run.run_id, "edit", kind="approval", metadata={"proposal": "p1"})

    await refused(hf.reject(run.run_id, actor="bob"), "invalid_transition")
    await refused(hf.audit.record_edit_decision("p1", "denied", actor="bob"), "invalid_transition")
    assert (await look(hf, run.run_id)).status == "paused"
    after = await hf.audit.record_edit_decision("p1", "approved", actor="bob")

    assert after == before
    assert (await look(hf, run.run_id)).status == "pending"


@pytest.mark.clause("C-22")
@pytest.mark.parametrize("decision", ["approved", "denied"])
async def test_a_flow_hears_the_decision_on_the_edit_that_it_asks_about(hf: Holdfast, decision: str) -> None:
    @hf.flow("editor")
    async def editor(ctx: FlowContext, input: Any) -> list[Any]:
        answer = await ctx.approval("edit", details={"proposal": "p1"})
        return [answer.approved, answer.actor]

    await hf.audit.record_edit_proposed("p1", diffs_json=[])
    run = await hf.start(editor, session_id="s")
    await hf.advance()

    await hf.audit.record_edit_decision("p1", decision, actor="ada")
    await hf.advance()

    assert await hf.result(run.run_id) == [decision == "approved", "ada"]
    assert await status(hf) == decision


@pytest.mark.clause("C-22")
@pytest.mark.parametrize("actor", ["ada", None])
async def test_a_run_that_begins_to_ask_while_the_edit_is_decided(
    hf: Holdfast, faults: FaultyDatabase, actor: str | None
) -> None:
    await hf.audit.record_edit_proposed("p1", diffs_json=[])
    run = await create(hf)

    async def ask() -> None:
        await hf.pause(run.run_id, "edit", kind="approval", metadata={"proposal": "p1"})

    faults.then("record", ask)
    await hf.audit.record_edit_decision("p1", "approved", actor=actor)

    assert await status(hf) == "approved"
    assert (await look(hf, run.run_id)).status == ("paused" if actor is None else "pending")
    await hf.audit.record_edit_decision("p1", "approved", actor="bob")
    assert (await look(hf, run.run_id)).status == "pending"


@pytest.mark.clause("C-22")
async def test_every_run_that_asks_is_answered(hf: Holdfast) -> None:
    runs = [await asked(hf) for _ in range(3)]

    await hf.audit.record_edit_decision("p1", "approved", actor="ada")

    assert [(await look(hf, run_id)).status for run_id in runs] == ["pending"] * 3
    assert await count(hf, "proposals") == 2


@pytest.mark.clause("C-22")
async def test_in_a_transaction_only_a_decision_alone_answers_a_run(hf: Holdfast) -> None:
    run_id = await asked(hf)

    async with hf.audit.transaction() as transaction:
        await transaction.record_edit_decision("p1", "approved", actor="ada")
        await say(transaction, "t1", "fine")
        await refused(transaction.commit(), "not_allowed")
    assert (await status(hf), (await look(hf, run_id)).status) == ("pending", "paused")
    assert await hf.audit.list_conversation() == []

    async with hf.audit.transaction() as transaction:
        await transaction.record_edit_decision("p1", "approved", actor="ada")
    assert (await status(hf), (await look(hf, run_id)).status) == ("approved", "pending")


@pytest.mark.clause("C-22")
async def test_nobody_decides_the_proposal_of_another_user(hf: Holdfast) -> None:
    await hf.audit.record_edit_proposed("p1", diffs_json=[])
    eve = hf.as_user("eve")
    run = await eve.create_run(session_id="eves", clog_id="chat", input=1)
    await eve.pause(run.run_id, "edit", kind="approval", metadata={"proposal": "p1"})

    await refused(eve.audit.record_edit_decision("p1", "approved", actor="eve"), "not_found")
    assert (await look(hf, run.run_id)).status == "paused"
    await eve.approve(run.run_id, actor="eve")

    assert await status(hf) == "pending"


@pytest.mark.clause("C-22")
@pytest.mark.parametrize("fault", WRITE_FAULTS)
async def test_a_commit_that_goes_wrong_leaves_both_or_neither(
    hf: Holdfast, faults: FaultyDatabase, fault: Fault
) -> None:
    run_id = await asked(hf)
    faults.strike("write_locked", fault)

    await hf.audit.record_edit_decision("p1", "approved", actor="ada")

    assert (await status(hf), (await look(hf, run_id)).status) == ("approved", "pending")
    assert await count(hf, "proposals") == 2


@pytest.mark.clause("C-22")
async def test_what_a_run_asks_about_is_proved_and_rebuilt(another_hf: Holdfast) -> None:
    hf = another_hf
    run_id = await asked(hf)
    await hf.journal.store.execute(("UPDATE {s}runs SET boundary_proposal = NULL", ()))
    assert not (await hf.fsck()).ok

    await hf.rebuild()

    assert (await hf.fsck()).ok
    await hf.audit.record_edit_decision("p1", "approved", actor="ada")
    assert (await look(hf, run_id)).status == "pending"


@pytest.mark.clause("C-22")
async def test_a_boundary_about_something_else_touches_no_proposal(hf: Holdfast) -> None:
    run = await create(hf)
    await hf.pause(run.run_id, "edit", kind="approval", metadata={"proposal": "unknown"})

    await hf.approve(run.run_id, actor="ada")

    assert await hf.audit.list_edit_proposals() == []


@pytest.mark.clause("C-22")
async def test_of_two_who_decide_at_once_one_decides_both(hf: Holdfast, another: Opener, configuration: str) -> None:
    other = hf if configuration == "memory" else await another()
    for number in range(12):
        request_id = f"p{number}"
        run_id = await asked(hf, request_id)
        deny = other.audit.record_edit_decision(request_id, "denied", actor="bob")
        approve = hf.approve(run_id, actor="ada")

        ends = await asyncio.gather(*((approve, deny) if number % 2 else (deny, approve)), return_exceptions=True)

        failed = [end for end in ends if isinstance(end, BaseException)]
        assert [isinstance(end, Conflict) and end.code in LOST for end in failed] == [True], ends
        ended = (await look(hf, run_id)).status
        assert (await status(hf, request_id), ended) in (("denied", "failed"), ("approved", "pending"))
        assert (ended == "failed") == (failed[0] is ends[number % 2 == 0])


@pytest.mark.clause("C-22")
async def test_of_several_who_record_decisions_at_once_one_decides_both(
    hf: Holdfast, another: Opener, configuration: str
) -> None:
    other = hf if configuration == "memory" else await another()
    for number in range(8):
        request_id = f"p{number}"
        run_id = await asked(hf, request_id)

        await asyncio.gather(
            hf.audit.record_edit_decision(request_id, "approved", actor="ada"),
            other.audit.record_edit_decision(request_id, "denied", actor="bob"),
            hf.audit.record_edit_proposed(request_id, diffs_json=[number]),
            other.audit.record_edit_stale(request_id, "moved"),
            return_exceptions=True,
        )

        ended = (await look(hf, run_id)).status
        sql = "SELECT status FROM {s}proposals WHERE request_id = $1 AND asserted = 1 ORDER BY validity"
        said = [status for (status,) in await hf.journal.store.fetch(sql, request_id)]
        # What is proposed anew after the first decision may be decided once more; the run has gone on by then.
        first = next((status for status in said if status in ("approved", "denied")), None)
        assert ended == ("failed" if first == "denied" else "pending"), said


@pytest.mark.clause("C-22")
async def test_a_decision_waits_for_whoever_proposes_anew(hf: Holdfast, another: Opener, configuration: str) -> None:
    other = hf if configuration == "memory" else await another()
    for number in range(8):
        request_id = f"p{number}"
        run_id = await asked(hf, request_id)

        ends = await asyncio.gather(
            hf.approve(run_id, actor="ada"),
            other.audit.record_edit_proposed(request_id, diffs_json=["other"]),
            return_exceptions=True,
        )

        found = await hf.audit.get_edit_proposal(request_id)
        assert found is not None
        assert found.status == "approved"
        assert (found.diffs_json == ["other"]) == (not isinstance(ends[1], BaseException)), ends


@pytest.mark.clause("C-22")
@pytest.mark.parametrize("configuration", ["postgres"])
async def test_a_decision_waits_for_a_recorder_that_has_not_committed(hf: Holdfast, database_url: str) -> None:
    run_id = await asked(hf)
    store, key = hf.journal.store, proposal_key("p1")
    last = fact_of(key.table, (await store.latest_facts([key]))[key])
    assert isinstance(last, Proposal)
    anew = replace(last, validity=last.validity + 1, diffs_json='["other"]')
    recorder = await asyncpg.connect(database_url)
    async with recorder.transaction():
        for text, values in store.locking(key):
            await recorder.fetch(text, *values)
        marks = ", ".join(f"${place}" for place in range(1, len(PROPOSALS.names) + 1))
        insert = store.qualified(f"INSERT INTO {{s}}proposals ({', '.join(PROPOSALS.names)}) VALUES ({marks})")
        await recorder.execute(insert, *row(anew))

        decision = asyncio.create_task(hf.audit.record_edit_decision("p1", "approved", actor="ada"))
        waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        while not await recorder.fetchval(waiting):
            assert not decision.done()
    await recorder.close()
    await decision

    found = await hf.audit.get_edit_proposal("p1")
    assert found is not None
    assert (found.status, found.diffs_json) == ("approved", ["other"])
    assert (await look(hf, run_id)).status == "pending"
