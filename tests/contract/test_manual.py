"""Questions to people: a boundary is opened once, answered once, by someone, in the right words."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from holdfast import Conflict, Done, Holdfast, InvalidValue, NotFound, Ok
from tests.conftest import FakeClock
from tests.contract.builders import LEASE_S, active, anomalies, claim_one, create, entries, in_status, kinds, look


@pytest.mark.clause("S-56", "S-58", "S-60", "H-S5", "C-21")
@pytest.mark.parametrize("status", ["idle", "pending", "waiting"])
async def test_a_paused_run_goes_on_where_it_was(hf: Holdfast, status: str) -> None:
    run_id = await in_status(hf, status)

    paused = await hf.pause(run_id, "review", metadata={"why": "odd"})
    assert paused.status == "paused"
    assert await hf.claim_next() == []
    resumed = await hf.resume(run_id, actor="ada")

    assert resumed.status == status
    opened, closed = (await entries(hf, run_id))[-2:]
    assert (opened.kind, opened.data["step"], opened.data["metadata"]) == (
        "manual_step_paused",
        "review",
        {"why": "odd"},
    )
    assert (closed.kind, closed.data["action"], closed.data["actor"]) == ("manual_step_resolved", "resume", "ada")
    assert len(await hf.claim_next()) == (1 if status == "pending" else 0)


@pytest.mark.clause("S-56", "S-57", "S-60", "SB-15")
async def test_an_approval_lets_the_run_go_on(hf: Holdfast) -> None:
    run_id = await in_status(hf, "pending")
    await hf.pause(run_id, "go-live", "approval")

    approved = await hf.approve(run_id, actor="ada", comment="ship it", edited={"tone": "kind"})

    assert approved.status == "pending"
    resolved = (await entries(hf, run_id))[-1].data
    assert (resolved["action"], resolved["comment"], resolved["edited"]) == ("approve", "ship it", {"tone": "kind"})
    assert (await claim_one(hf)).run_id == run_id


@pytest.mark.clause("S-56", "S-60", "S-61")
async def test_a_rejection_fails_the_run(hf: Holdfast) -> None:
    run_id = await in_status(hf, "pending")
    await hf.pause(run_id, "go-live", "approval")

    rejected = await hf.reject(run_id, actor="ada", comment="too risky")

    assert (rejected.status, rejected.error_kind, rejected.last_error) == ("failed", "rejected", "too risky")
    assert await kinds(hf, run_id, after=2) == ["manual_step_resolved", "event", "run_terminal"]
    assert await hf.claim_next() == []


@pytest.mark.clause("S-59")
async def test_the_same_pause_again_is_a_no_op_and_another_is_refused(hf: Holdfast) -> None:
    run_id = await in_status(hf, "pending")
    first = await hf.pause(run_id, "review")

    assert await hf.pause(run_id, "review") == first
    for step, kind in (("review", "approval"), ("other", "pause")):
        with pytest.raises(Conflict) as caught:
            await hf.pause(run_id, step, kind)  # type: ignore[arg-type]
        assert caught.value.code == "active_manual_step"

    assert await kinds(hf, run_id) == ["run_created", "manual_step_paused", "anomaly"]
    assert (await hf.resume(run_id, step="review")).status == "pending"


Answer = Callable[[Holdfast, str], Awaitable[object]]

WRONG_FOR_APPROVAL: dict[str, Answer] = {
    "resume": lambda hf, run_id: hf.resume(run_id, actor="ada"),
    "another step": lambda hf, run_id: hf.approve(run_id, actor="ada", step="other"),
    "nobody approves": lambda hf, run_id: hf.approve(run_id, actor=""),
    "nobody rejects": lambda hf, run_id: hf.reject(run_id, actor=""),
}
WRONG_FOR_PAUSE: dict[str, Answer] = {
    "approve": lambda hf, run_id: hf.approve(run_id, actor="ada"),
    "reject": lambda hf, run_id: hf.reject(run_id, actor="ada"),
    "another step": lambda hf, run_id: hf.resume(run_id, step="other"),
}


@pytest.mark.clause("S-59", "SB-15")
async def test_a_wrong_answer_is_refused_and_the_question_stays_open(hf: Holdfast) -> None:
    for kind, answers in (("approval", WRONG_FOR_APPROVAL), ("pause", WRONG_FOR_PAUSE)):
        for answer in answers.values():
            run_id = await in_status(hf, "idle")
            await hf.pause(run_id, "review", kind)  # type: ignore[arg-type]

            for _ in range(2):
                with pytest.raises(Conflict) as caught:
                    await answer(hf, run_id)
                assert caught.value.code == "stale_manual_resolution"

            assert (await look(hf, run_id)).status == "paused"
            assert await anomalies(hf, run_id) == [("stale_manual_resolution", "manual_step_resolved")]


@pytest.mark.clause("S-59")
async def test_an_answer_to_no_question_is_refused(hf: Holdfast) -> None:
    run_id = await in_status(hf, "pending")
    await hf.pause(run_id, "review")
    await hf.resume(run_id)

    with pytest.raises(Conflict) as caught:
        await hf.resume(run_id)

    assert caught.value.code == "stale_manual_resolution"
    assert (await look(hf, run_id)).status == "pending"


@pytest.mark.clause("S-59")
async def test_of_several_answers_at_once_exactly_one_counts(hf: Holdfast) -> None:
    run_id = await in_status(hf, "pending")
    await hf.pause(run_id, "go-live", "approval")

    answers = await asyncio.gather(
        *(hf.approve(run_id, actor=f"a{i}") for i in range(3)),
        *(hf.reject(run_id, actor=f"r{i}") for i in range(3)),
        return_exceptions=True,
    )

    assert sum(isinstance(answer, Conflict) for answer in answers) == 5
    assert (await kinds(hf, run_id)).count("manual_step_resolved") == 1


@pytest.mark.clause("S-59", "S-63")
@pytest.mark.parametrize("status", ["done", "failed", "cancelled"])
async def test_a_run_that_is_over_asks_and_hears_nothing(hf: Holdfast, status: str) -> None:
    run_id = await in_status(hf, status)

    with pytest.raises(Conflict) as paused:
        await hf.pause(run_id, "review")
    with pytest.raises(Conflict) as resumed:
        await hf.resume(run_id)

    assert (paused.value.code, resumed.value.code) == ("terminal_run", "terminal_run")
    assert (await look(hf, run_id)).status == status
    assert (await kinds(hf, run_id)).count("anomaly") == 1


async def test_questions_about_unknown_runs_are_not_found(hf: Holdfast) -> None:
    with pytest.raises(NotFound):
        await hf.pause("nobody", "review")
    with pytest.raises(NotFound):
        await hf.approve("nobody", actor="ada")
    with pytest.raises(InvalidValue):
        await hf.pause("nobody", "review", "vote")  # type: ignore[arg-type]


@pytest.mark.clause("H-S5", "S-60")
async def test_a_live_claim_goes_on_while_the_run_is_paused(hf: Holdfast) -> None:
    claim = await active(hf)
    await hf.pause(claim.run_id, "review")

    await hf.emit(claim, "text", "still here")
    await hf.heartbeat(claim)
    settled = await hf.complete(claim, Ok())

    assert settled.status == "paused"
    assert (await hf.resume(claim.run_id)).status == "idle"


@pytest.mark.clause("H-S5", "S-60")
async def test_a_paused_run_can_be_finished_by_its_worker(hf: Holdfast) -> None:
    claim = await active(hf)
    await hf.pause(claim.run_id, "review", "approval")

    ended = await hf.complete(claim, Done("over"))

    assert (ended.status, ended.output) == ("done", "over")
    with pytest.raises(Conflict):
        await hf.approve(claim.run_id, actor="ada")


@pytest.mark.clause("H-S5")
async def test_a_claim_that_expires_while_paused_is_taken_over_only_after_the_answer(
    hf: Holdfast, clock: FakeClock
) -> None:
    claim = await active(hf)
    await hf.pause(claim.run_id, "review")
    clock.advance(LEASE_S)

    assert await hf.claim_next() == []
    assert (await hf.resume(claim.run_id)).status == "active"

    assert (await claim_one(hf)).input == "hello"


@pytest.mark.clause("C-21", "O-40")
async def test_signals_queue_while_the_run_is_paused(hf: Holdfast) -> None:
    run_id = await in_status(hf, "idle")
    await hf.pause(run_id, "review")
    for i in range(2):
        assert (await hf.signal(run_id, i)).accepted
    assert (await look(hf, run_id)).status == "paused"
    assert await hf.claim_next() == []

    await hf.resume(run_id)

    for i in range(2):
        claim = await claim_one(hf)
        assert claim.input == i
        await hf.complete(claim, Ok())


@pytest.mark.clause("S-58", "S-57")
async def test_questions_follow_one_another(hf: Holdfast) -> None:
    run_id = (await create(hf)).run_id
    for step in ("first", "second", "first"):
        await hf.pause(run_id, step, "approval")
        await hf.approve(run_id, actor="ada", step=step)

    assert await anomalies(hf, run_id) == []
    assert (await kinds(hf, run_id)).count("manual_step_resolved") == 3
