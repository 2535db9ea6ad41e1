"""Sleeps, signals and questions: the worker is free meanwhile, and a restart forgets nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from holdfast import Conflict, Decision, FlowContext, Holdfast
from holdfast.protocol.values import fingerprint
from tests.conftest import FakeClock

DAY = 86_400


async def status(hf: Holdfast, run_id: str) -> str:
    run = await hf.get_run(run_id)
    assert run is not None
    return run.status


def sleeper(hf: Holdfast, **sleep: Any) -> Any:
    @hf.flow("sleeper")
    async def flow(ctx: FlowContext, input: Any) -> str:
        await ctx.sleep(**sleep)
        return "awake"

    return flow


@pytest.mark.parametrize(
    ("asleep", "seconds"),
    [
        ({"seconds": 90}, 90),
        ({"minutes": 3}, 180),
        ({"hours": 2, "minutes": 1}, 7_260),
        ({"days": 1}, DAY),
    ],
)
async def test_a_sleep_lasts_as_long_as_it_says(
    hf: Holdfast, clock: FakeClock, asleep: dict[str, float], seconds: int
) -> None:
    run = await hf.start(sleeper(hf, **asleep), session_id="s")

    first = await hf.advance()
    assert first.next_wake_at == clock.now() + timedelta(seconds=seconds)
    clock.advance(seconds - 1)
    assert (await hf.advance()).advanced == 0
    clock.advance(1)
    await hf.advance()

    assert await hf.result(run.run_id) == "awake"


async def test_a_sleep_until_an_instant(hf: Holdfast, clock: FakeClock) -> None:
    run = await hf.start(sleeper(hf, until=clock.now() + timedelta(hours=5)), session_id="s")

    assert (await hf.advance()).next_wake_at == clock.now() + timedelta(hours=5)
    await hf.drain()

    assert await hf.result(run.run_id) == "awake"


async def test_no_signal_shortens_a_sleep(hf: Holdfast, clock: FakeClock) -> None:
    run = await hf.start(sleeper(hf, seconds=60), session_id="s")
    await hf.advance()

    await hf.signal(run.run_id, "wake up")
    await hf.signal(run.run_id, "wake up", name="alarm", interrupt=True)
    clock.advance(59)

    assert (await hf.advance()).advanced == 0
    assert await status(hf, run.run_id) == "waiting"


@pytest.mark.parametrize("configuration", ["file", "postgres"])
async def test_a_sleep_survives_a_restart(hf: Holdfast, clock: FakeClock, database_url: str, schema: str) -> None:
    run = await hf.start(sleeper(hf, hours=1), session_id="s")
    await hf.advance()
    clock.advance(3_600)

    async with Holdfast(database_url, clock=clock, schema=schema) as other:
        sleeper(other, hours=99)
        await other.advance()
        assert await other.result(run.run_id) == "awake"


async def test_signals_are_received_by_name_first_in_first_out(hf: Holdfast) -> None:
    @hf.flow("f")
    async def flow(ctx: FlowContext, input: Any) -> Any:
        return [
            await ctx.receive("a"),
            await ctx.receive(),
            await ctx.receive("a"),
            await ctx.receive("b"),
        ]

    run = await hf.start(flow, "input", session_id="s")
    for value, name in [(1, "a"), (2, "b"), (3, None), (4, "a")]:
        await hf.signal(run.run_id, value, name=name)
    await hf.drain()

    assert await hf.result(run.run_id) == [1, 3, 4, 2]


async def test_a_flow_is_woken_only_by_what_it_waits_for(hf: Holdfast) -> None:
    @hf.flow("f")
    async def flow(ctx: FlowContext, input: Any) -> Any:
        return await ctx.receive("go")

    run = await hf.start(flow, session_id="s")
    await hf.advance()

    await hf.signal(run.run_id, "noise")
    await hf.signal(run.run_id, "noise", name="other")
    assert (await hf.advance()).advanced == 0
    await hf.signal(run.run_id, "now", name="go")
    await hf.advance()

    assert await hf.result(run.run_id) == "now"


async def test_the_signal_that_starts_an_idle_flow_is_its_input(hf: Holdfast) -> None:
    @hf.flow("f")
    async def flow(ctx: FlowContext, input: Any) -> Any:
        return [input, await ctx.receive()]

    run = await hf.create_run(session_id="s", clog_id="f")
    await hf.signal(run.run_id, "start")
    await hf.advance()
    assert await status(hf, run.run_id) == "waiting"
    await hf.signal(run.run_id, "second")
    await hf.advance()

    assert await hf.result(run.run_id) == ["start", "second"]


async def test_what_does_not_come_in_time_times_out_the_same_way_again(hf: Holdfast, clock: FakeClock) -> None:
    seen: list[str] = []

    @hf.flow("f")
    async def flow(ctx: FlowContext, input: Any) -> Any:
        try:
            await ctx.receive("go", timeout=10)
        except TimeoutError as error:
            seen.append(str(error))
        await ctx.sleep(1)
        return await ctx.receive("go", timeout=10)

    run = await hf.start(flow, session_id="s")
    await hf.advance()
    clock.advance(10)
    await hf.advance()
    await hf.signal(run.run_id, "late", name="go")
    await hf.drain()

    assert await hf.result(run.run_id) == "late"
    assert seen == ["no signal go came within 10 s"] * 2


async def test_a_signal_in_time_leaves_its_deadline_behind(hf: Holdfast) -> None:
    @hf.flow("f")
    async def flow(ctx: FlowContext, input: Any) -> Any:
        got = await ctx.receive("go", timeout=10)
        await ctx.sleep(60)
        return got

    run = await hf.start(flow, session_id="s")
    await hf.advance()
    await hf.signal(run.run_id, "in time", name="go")
    await hf.drain()

    assert await hf.result(run.run_id) == "in time"


def asking(hf: Holdfast, **options: Any) -> Any:
    @hf.flow("asking")
    async def flow(ctx: FlowContext, input: Any) -> Any:
        decision = await ctx.approval("go-live", details={"amount": 5}, **options)
        assert isinstance(decision, Decision)
        await ctx.sleep(1)
        return [decision.approved, decision.actor, decision.comment, decision.edited, decision.expired]

    return flow


Answer = Callable[[Holdfast, str], Awaitable[Any]]
ANSWERS: dict[str, tuple[Answer, list[Any]]] = {
    "approve": (lambda hf, run: hf.approve(run, actor="ann", comment="ok"), [True, "ann", "ok", None, False]),
    "reject": (lambda hf, run: hf.reject(run, actor="ann", comment="no"), [False, "ann", "no", None, False]),
    "edit": (
        lambda hf, run: hf.approve(run, actor="ann", edited={"amount": 3}),
        [True, "ann", None, {"amount": 3}, False],
    ),
}


@pytest.mark.clause("S-57", "S-60")
@pytest.mark.parametrize("answer", ANSWERS)
async def test_a_person_decides(hf: Holdfast, clock: FakeClock, answer: str) -> None:
    decide, expected = ANSWERS[answer]
    run = await hf.start(asking(hf, expires=60), session_id="s")
    await hf.advance()
    assert await status(hf, run.run_id) == "paused"
    (question,) = (await hf.approvals()).items
    assert (question.run_id, question.step, question.details) == (run.run_id, "go-live", {"amount": 5})
    assert question.shown_sha == fingerprint({"amount": 5})
    assert question.expires_at == clock.now() + timedelta(seconds=60)

    await decide(hf, run.run_id)
    assert (await hf.approvals()).items == []
    await hf.drain()

    assert await hf.result(run.run_id) == expected
    (resolved,) = [
        entry for entry in await hf.journal.read(f"run:{run.run_id}") if entry.kind == "manual_step_resolved"
    ]
    assert resolved.data["shown_sha"] == question.shown_sha


async def test_nobody_decides_in_time(hf: Holdfast, clock: FakeClock) -> None:
    run = await hf.start(asking(hf, expires=timedelta(hours=4)), session_id="s")
    first = await hf.advance()
    assert first.next_wake_at == clock.now() + timedelta(hours=4)

    clock.advance(4 * 3_600)
    with pytest.raises(Conflict) as caught:
        await hf.approve(run.run_id, actor="ann")
    assert caught.value.code == "stale_manual_resolution"
    await hf.drain()

    assert await hf.result(run.run_id) == [False, None, None, None, True]
    assert "approval_expired" in [event.type async for event in hf.events(run.run_id)]


async def test_two_questions_wait_their_turn(hf: Holdfast) -> None:
    @hf.flow("f")
    async def flow(ctx: FlowContext, input: Any) -> Any:
        decisions = await ctx.gather(ctx.approval("legal"), ctx.approval("money"))
        return [decision.actor for decision in decisions]

    run = await hf.start(flow, session_id="s")
    for actor in ("ann", "bob"):
        await hf.advance()
        assert await status(hf, run.run_id) == "paused"
        await hf.approve(run.run_id, actor=actor)
    await hf.drain()

    assert await hf.result(run.run_id) == ["ann", "bob"]


async def test_the_same_question_may_be_asked_again(hf: Holdfast) -> None:
    @hf.flow("f")
    async def flow(ctx: FlowContext, input: Any) -> Any:
        rounds = 0
        while not (await ctx.approval("good enough")).approved:
            rounds += 1
        return rounds

    run = await hf.start(flow, session_id="s")
    for answer in (hf.reject, hf.reject, hf.approve):
        await hf.advance()
        await answer(run.run_id, actor="ann")
    await hf.drain()

    assert await hf.result(run.run_id) == 2


@pytest.mark.clause("S-59", "SB-15")
async def test_an_answer_needs_an_actor_who_saw_the_question(hf: Holdfast) -> None:
    run = await hf.start(asking(hf), session_id="s")
    await hf.advance()
    (question,) = (await hf.approvals()).items

    for answer in (
        hf.approve(run.run_id),
        hf.reject(run.run_id, actor=""),
        hf.approve(run.run_id, actor="ann", step="other"),
        hf.approve(run.run_id, actor="ann", seen_rev=question.rev - 1),
        hf.resume(run.run_id, actor="ann"),
    ):
        with pytest.raises(Conflict) as caught:
            await answer
        assert caught.value.code == "stale_manual_resolution"
    await hf.approve(run.run_id, actor="ann", seen_rev=question.rev, key="k")
    again = await hf.approve(run.run_id, actor="ann", seen_rev=question.rev, key="k")

    assert again.status == "pending"
    with pytest.raises(Conflict):
        await hf.approve(run.run_id, actor="bob")


@pytest.mark.clause("H-S5")
async def test_a_pause_by_hand_holds_a_flow_and_is_no_answer_of_its_own(hf: Holdfast, clock: FakeClock) -> None:
    run = await hf.start(asking(hf), session_id="s")
    await hf.pause(run.run_id, "freeze", expires=60)
    assert (await hf.advance()).advanced == 0
    assert (await hf.approvals()).items == []
    assert [item.kind for item in (await hf.approvals(kind=None)).items] == ["pause"]

    clock.advance(60)
    await hf.advance()

    assert [item.step for item in (await hf.approvals()).items] == ["go-live"]


async def test_the_inbox_has_pages_and_owners(hf: Holdfast, clock: FakeClock) -> None:
    flow = asking(hf)
    ids = []
    for number in range(5):
        run = await hf.start(flow, session_id=f"s{number % 2}-{number % 3}", user_id="ann" if number == 4 else "local")
        ids.append(run.run_id)
        clock.advance(1)
    await hf.drain()

    first = await hf.approvals(limit=3)
    rest = await hf.approvals(limit=3, cursor=first.next)

    assert [item.run_id for item in (*first.items, *rest.items)] == ids[::-1]
    assert rest.next is None
    assert [item.run_id for item in (await hf.as_user("ann").approvals()).items] == [ids[4]]
    assert [item.run_id for item in (await hf.approvals(session_id="s1-1", clog_id="asking")).items] == [ids[1]]


def pausing(hf: Holdfast, calls: list[str], **options: Any) -> Any:
    @hf.flow("pausing")
    async def flow(ctx: FlowContext, input: Any) -> Any:
        await ctx.step("before", lambda: calls.append("before"))
        found = await ctx.pause("look first", details={"why": "odd"}, **options)
        await ctx.step("after", lambda: calls.append("after"))
        return [found.approved, found.actor, found.expired]

    return flow


@pytest.mark.clause("S-56", "S-57", "S-58", "S-60")
async def test_a_flow_pauses_until_somebody_resumes_it(hf: Holdfast) -> None:
    calls: list[str] = []
    run = await hf.start(pausing(hf, calls), session_id="s")
    await hf.drain()
    seen = await hf.inspect(run.run_id)
    assert seen is not None
    assert seen.manual_state is not None
    assert (seen.status, seen.manual_state.kind, seen.manual_state.metadata) == ("paused", "pause", {"why": "odd"})
    assert [item.step for item in (await hf.approvals(kind="pause")).items] == ["look first"]
    with pytest.raises(Conflict) as caught:
        await hf.approve(run.run_id, actor="ann")
    assert caught.value.code == "stale_manual_resolution"

    await hf.resume(run.run_id, actor="ann", step="look first", key="k")
    await hf.resume(run.run_id, actor="ann", step="look first", key="k")
    await hf.drain()

    assert await hf.result(run.run_id) == [True, "ann", False]
    assert calls == ["before", "after"]
    over = await hf.inspect(run.run_id)
    assert over is not None
    assert over.manual_state is None
    assert [each.kind for each in await hf.journal.read(f"run:{run.run_id}")].count("manual_step_resolved") == 1


@pytest.mark.clause("S-57")
async def test_a_pause_that_nobody_ends_ends_itself(hf: Holdfast) -> None:
    calls: list[str] = []
    run = await hf.start(pausing(hf, calls, expires=60), session_id="s")
    await hf.drain()

    assert await hf.result(run.run_id) == [False, None, True]
    assert calls == ["before", "after"]


@pytest.mark.clause("S-60", "S-62")
async def test_whoever_stops_a_run_that_asks_closes_its_question(hf: Holdfast) -> None:
    for flow in (asking(hf), pausing(hf, [])):
        run = await hf.start(flow, session_id="s")
        await hf.advance()
        assert await status(hf, run.run_id) == "paused"

        await hf.cancel(run.run_id)

        assert await status(hf, run.run_id) == "cancelled"
        assert (await hf.approvals(kind=None)).items == []


@pytest.mark.clause("SB-15", "S-57")
async def test_an_answer_and_the_next_tick_are_one_commit(hf: Holdfast) -> None:
    """So a crash after the answer leaves nothing to repair, and the same answer again adds nothing."""
    run = await hf.start(asking(hf), session_id="s")
    await hf.advance()

    answered = [await hf.approve(run.run_id, actor="ann", key="k") for _ in range(2)]

    assert {info.rev for info in answered} == {answered[0].rev}
    assert [claim.run_id for claim in await hf.claim_next()] == [run.run_id]
    kinds = [entry.kind for entry in await hf.journal.read(f"run:{run.run_id}")]
    assert kinds.count("manual_step_resolved") == 1
    assert kinds[-2:] == ["manual_step_resolved", "attempt_claimed"]
