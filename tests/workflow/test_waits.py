"""Waits, approvals and pauses: nobody works meanwhile, nothing before them runs again, the answer decides."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from holdfast import Conflict, Decision, Done, Holdfast, Ok, Workflow
from tests.conftest import FakeClock, Opener
from tests.runtime.clogs import shared
from tests.workflow.test_steps import ended, started


async def status(hf: Holdfast, run_id: str) -> str:
    run = await hf.get_run(run_id)
    assert run is not None
    return run.status


def asking(calls: list[str], **options: Any) -> Workflow:
    flow = Workflow("asking")

    @flow.step()
    async def charge(ctx: Any, input: Any) -> int:
        calls.append("charge")
        return 100

    flow.approval("manager", after=["charge"], details=lambda results: {"amount": results["charge"]}, **options)

    @flow.step(after=["manager", "charge"])
    async def ship(ctx: Any, manager: Decision, charge: int) -> list[Any]:
        calls.append("ship")
        return [manager.approved, manager.actor, manager.comment, manager.expired, charge]

    return flow


@shared
async def test_a_wait_delays_what_comes_after_it_also_over_a_restart(
    hf: Holdfast, clock: FakeClock, another: Opener
) -> None:
    flow = Workflow("slow")
    flow.wait("nap", seconds=90)

    @flow.step(after=["nap"])
    async def after(ctx: Any, nap: None) -> str:
        return "awake"

    run = await started(hf, flow)
    first = await hf.advance()
    info = await hf.get_run(run.run_id)
    assert info is not None
    assert (info.status, info.wake_at, first.next_wake_at) == (
        "waiting",
        clock.now() + timedelta(seconds=90),
        clock.now() + timedelta(seconds=90),
    )

    other = await another()
    other.register(flow)
    clock.advance(89.999)
    assert (await other.advance()).advanced == 0
    clock.advance(0.001)
    await other.advance()
    await other.drain()

    assert await other.result(run.run_id) == {"after": "awake"}


async def test_the_longest_of_several_waits_decides_for_a_join(hf: Holdfast, clock: FakeClock) -> None:
    flow = Workflow("slowest")
    flow.wait("short", seconds=5)
    flow.wait("long", seconds=timedelta(minutes=1))

    @flow.step(after=["short", "long"])
    async def join(ctx: Any) -> str:
        return "both"

    run = await started(hf, flow)
    await hf.advance()
    clock.advance(5)
    await hf.advance()
    assert await status(hf, run.run_id) == "waiting"
    clock.advance(54.999)
    assert (await hf.advance()).advanced == 0
    clock.advance(0.001)
    await hf.advance()
    await hf.advance()

    await hf.drain()
    assert await hf.result(run.run_id) == {"join": "both"}


@pytest.mark.clause("S-57", "S-60")
async def test_an_approval_shows_its_details_and_passes_the_decision_on(hf: Holdfast) -> None:
    calls: list[str] = []
    run = await started(hf, asking(calls))
    await hf.drain()

    assert await status(hf, run.run_id) == "paused"
    (question,) = (await hf.approvals()).items
    assert (question.step, question.kind, question.details) == ("manager", "approval", {"amount": 100})
    await hf.approve(run.run_id, actor="eva", comment="fine")
    await hf.drain()

    assert await hf.result(run.run_id) == {"ship": [True, "eva", "fine", False, 100]}
    assert calls == ["charge", "ship"]


async def test_a_rejection_fails_the_run(hf: Holdfast) -> None:
    calls: list[str] = []
    run = await started(hf, asking(calls))
    await hf.drain()

    await hf.reject(run.run_id, actor="eva", comment="too dear")
    await hf.drain()

    info = await hf.get_run(run.run_id)
    assert info is not None
    assert (info.status, info.error_kind, calls) == ("failed", "rejected", ["charge"])
    assert "too dear" in str(info.last_error)


async def test_a_rejection_takes_the_error_route_if_there_is_one(hf: Holdfast) -> None:
    flow = asking([], on_error="refuse")

    @flow.step()
    async def refuse(ctx: Any, error: dict[str, Any], input: Any) -> list[Any]:
        return [error["step"], error["kind"], input]

    run = await started(hf, flow, "given")
    await hf.drain()
    await hf.reject(run.run_id, actor="eva")
    await hf.drain()

    assert await hf.result(run.run_id) == {"refuse": ["manager", "rejected", "given"]}


@pytest.mark.parametrize(("on_expiry", "kept"), [("approve", "done"), ("reject", "failed")])
async def test_a_question_that_nobody_answers_counts_as_it_was_told_to(
    hf: Holdfast, clock: FakeClock, on_expiry: Any, kept: str
) -> None:
    run = await started(hf, asking([], expires=60, on_expiry=on_expiry))
    await hf.advance()
    await hf.advance()
    await hf.advance()
    assert await status(hf, run.run_id) == "paused"

    clock.advance(60)
    with pytest.raises(Conflict):
        await hf.approve(run.run_id, actor="late")
    await hf.drain()

    info = await hf.get_run(run.run_id)
    assert info is not None
    assert info.status == kept
    if kept == "done":
        assert info.output == {"ship": [True, None, None, True, 100]}
    else:
        assert info.error_kind == "approval_expired"


async def test_questions_that_are_due_together_wait_their_turn(hf: Holdfast) -> None:
    flow = Workflow("two")
    flow.approval("first")
    flow.approval("second")
    run = await started(hf, flow)
    await hf.drain()

    asked = []
    for _ in range(2):
        (question,) = (await hf.approvals()).items
        asked.append(question.step)
        await hf.approve(run.run_id, actor="eva", step=question.step)
        await hf.drain()

    assert sorted(asked) == ["first", "second"]
    assert (await hf.result(run.run_id)).keys() == {"first", "second"}


@pytest.mark.clause("S-57")
async def test_a_pause_waits_for_resume(hf: Holdfast) -> None:
    flow = Workflow("paused")
    flow.pause("hold")

    @flow.step(after=["hold"])
    async def after(ctx: Any, hold: None) -> str:
        return "resumed"

    run = await started(hf, flow)
    await hf.drain()
    assert await status(hf, run.run_id) == "paused"
    with pytest.raises(Conflict):
        await hf.approve(run.run_id, actor="eva")

    await hf.resume(run.run_id)
    await hf.drain()

    assert await hf.result(run.run_id) == {"after": "resumed"}


@pytest.mark.clause("H-S5")
async def test_while_it_is_paused_nothing_new_begins_and_what_runs_may_finish(hf: Holdfast) -> None:
    flow = Workflow("siblings")
    flow.approval("ask")

    @flow.step()
    async def sibling(ctx: Any, input: Any) -> None:
        raise AssertionError("somebody else runs it")

    @flow.step(after=["sibling"])
    async def follower(ctx: Any, sibling: str) -> str:
        return sibling

    run = await started(hf, flow)
    await hf.advance()
    claims = {claim.runnable_key: claim for claim in await hf.claim_next(limit=2)}
    await hf.release(claims["ask"])
    await hf.execute_next()

    assert await status(hf, run.run_id) == "paused"
    await hf.complete(claims["sibling"], "done meanwhile")
    assert await hf.claim_next(limit=5) == []
    await hf.approve(run.run_id, actor="eva")
    await hf.drain()

    assert (await hf.result(run.run_id))["follower"] == "done meanwhile"


@pytest.mark.parametrize("kind", ["approval", "pause"])
async def test_a_runner_of_ones_own_cannot_answer_for_a_person(hf: Holdfast, kind: str) -> None:
    flow = Workflow("guarded")
    getattr(flow, kind)("ask")
    run = await started(hf, flow)
    await hf.advance()
    (claim,) = await hf.claim_next()

    for answer in (True, Ok(), Done({"approved": True})):
        with pytest.raises(Conflict) as caught:
            await hf.complete(claim, answer)
        assert caught.value.code == "workflow_tick"
    await hf.release(claim)
    await hf.drain()

    assert await status(hf, run.run_id) == "paused"


async def test_an_edited_answer_reaches_the_step(hf: Holdfast) -> None:
    flow = Workflow("edited")
    flow.approval("ask", details={"to": "ann"})

    @flow.step(after=["ask"])
    async def send(ctx: Any, ask: Decision) -> Any:
        return ask.edited

    run = await started(hf, flow)
    await hf.drain()
    await hf.approve(run.run_id, actor="eva", edited={"to": "bob"})
    await hf.drain()

    assert await hf.result(run.run_id) == {"send": {"to": "bob"}}


async def test_a_question_that_is_not_wanted_is_not_asked(hf: Holdfast) -> None:
    flow = Workflow("small")

    @flow.step()
    async def amount(ctx: Any, input: int) -> int:
        return input

    flow.approval("ask", after=["amount"], when=lambda results: results["amount"] > 100)
    flow.pause("hold", after=["amount"], when=lambda results: False)

    assert await ended(hf, flow, 3) == {"ask": None, "hold": None}
