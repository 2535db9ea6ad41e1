"""Inspection: the whole picture of a run at one instant, and one reason why it is where it is."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from holdfast import Claim, Conflict, Done, Holdfast, InvalidValue, LeaseLost, Ok, Wait
from holdfast.runtime import Inspection
from tests.conftest import FakeClock
from tests.contract.builders import (
    INSTANT,
    LEASE_S,
    active,
    claim_one,
    create,
    entry,
    fence,
    hash_of,
    idle,
    in_status,
    look,
    quiet,
    start_child,
    step_of,
    stolen,
)
from tests.contract.scene import Scene, build
from tests.contract.stage import sizes

LOAD = {"runnable_key": "load", "step": "load"}


async def inspect(hf: Holdfast, run_id: str) -> Inspection:
    found = await hf.inspect(run_id)
    assert found is not None
    return found


async def step_done(hf: Holdfast) -> Claim:
    """A run with one workflow step that has a result nobody has applied."""
    run = await idle(hf)
    await hf.journal.append(f"run:{run.run_id}", [entry("runnable_planned", **LOAD), step_of(run.run_id, "load")])
    claim = await claim_one(hf)
    await hf.complete(claim, Done("loaded"))
    return claim


async def applied(hf: Holdfast, claim: Claim) -> None:
    sql = "SELECT result_digest FROM {s}runnables WHERE run_id = $1 AND key = 'load'"
    ((result_digest,),) = await hf.journal.store.fetch(sql, claim.run_id)
    fact = entry("runnable_applied", runnable_key="load", result_digest=result_digest)
    await hf.journal.append(f"run:{claim.run_id}", [fact])


class TestReason:
    @pytest.mark.clause("SB-7")
    @pytest.mark.parametrize(
        ("status", "reason"),
        [
            ("idle", "idle"),
            ("pending", "attempt_visible"),
            ("waiting", "attempt_scheduled_for_later"),
            ("backing off", "attempt_scheduled_for_later"),
            ("paused", "manual_intervention_required"),
            ("done", "terminal"),
            ("failed", "terminal"),
            ("cancelled", "terminal"),
        ],
    )
    async def test_a_run_nobody_works_on(self, hf: Holdfast, status: str, reason: str) -> None:
        seen = await inspect(hf, await in_status(hf, status))

        assert seen.reason == reason
        assert seen.terminal is (reason == "terminal")

    @pytest.mark.clause("SB-7", "S-35", "C-16")
    async def test_a_claim_is_expired_from_the_very_end_of_its_lease(self, hf: Holdfast, clock: FakeClock) -> None:
        run = await create(hf)
        claim = await claim_one(hf, owner="w1")

        clock.advance(LEASE_S - INSTANT)
        held = await inspect(hf, run.run_id)
        clock.advance(INSTANT)
        lost = await inspect(hf, run.run_id)

        assert (held.reason, held.expired_claims) == ("attempt_claimed", ())
        assert [item.claim_id for item in held.claimed_attempts] == [claim.claim_id]
        assert (lost.reason, lost.claimed_attempts) == ("expired_claim", ())
        assert [(item.claim_id, item.owner_id) for item in lost.expired_claims] == [(claim.claim_id, "w1")]

    @pytest.mark.clause("SB-7")
    async def test_a_time_that_has_come_makes_it_visible(self, hf: Holdfast, clock: FakeClock) -> None:
        run_id = await in_status(hf, "waiting")

        clock.advance(3_600 - INSTANT)
        before = await inspect(hf, run_id)
        clock.advance(INSTANT)
        after = await inspect(hf, run_id)

        assert (before.reason, after.reason) == ("attempt_scheduled_for_later", "attempt_visible")
        assert (len(before.scheduled_attempts), len(before.visible_attempts)) == (1, 0)
        assert before.next_visible_at == clock.now()
        assert (len(after.scheduled_attempts), len(after.visible_attempts)) == (0, 1)
        assert after.next_visible_at is None

    @pytest.mark.clause("SB-7")
    async def test_a_step_on_its_way(self, hf: Holdfast) -> None:
        run = await idle(hf)
        thread = f"run:{run.run_id}"

        await hf.journal.append(thread, [entry("runnable_planned", **LOAD)])
        planned = await inspect(hf, run.run_id)
        await hf.journal.append(thread, [step_of(run.run_id, "load")])
        scheduled = await inspect(hf, run.run_id)

        assert planned.reason == "planned_dispatch_pending_schedule"
        assert [(step.runnable_key, step.rev) for step in planned.pending_dispatches] == [("load", 2)]
        assert (scheduled.reason, scheduled.pending_dispatches) == ("attempt_visible", ())
        assert (scheduled.planned_keys, scheduled.applied_keys) == (("load",), ())

    @pytest.mark.clause("SB-7")
    async def test_a_result_nobody_applied(self, hf: Holdfast) -> None:
        claim = await step_done(hf)

        unapplied = await inspect(hf, claim.run_id)
        await applied(hf, claim)
        settled = await inspect(hf, claim.run_id)

        assert unapplied.reason == "completed_result_pending_apply"
        assert [(step.runnable_key, step.step) for step in unapplied.pending_results] == [("load", "load")]
        assert [(item.runnable_key, item.status) for item in unapplied.attempts] == [("load", "completed")]
        assert (settled.reason, settled.pending_results, settled.applied_keys) == ("idle", (), ("load",))

    @pytest.mark.clause("SB-7")
    async def test_of_several_reasons_the_strongest_counts(self, hf: Holdfast, clock: FakeClock) -> None:
        claim = await step_done(hf)
        run_id, thread = claim.run_id, f"run:{claim.run_id}"
        words: list[str] = []

        async def note() -> None:
            words.append((await inspect(hf, run_id)).reason)

        steps = [step_of(run_id, key) for key in ("lost", "held", "free")]
        later = entry("attempt_scheduled", runnable_key="later", step="later", idempotency_key="l", delay_us=10**9)
        await hf.journal.append(thread, [*steps, later])
        await hf.claim_next(lease_ms=1_000)
        await hf.claim_next()
        await hf.journal.append(thread, [entry("runnable_planned", runnable_key="next", step="next")])
        clock.advance(1)
        await hf.pause(run_id, "review")
        await note()
        await hf.resume(run_id)
        await note()
        await applied(hf, claim)
        await note()
        clock.advance(1)
        await hf.journal.append(thread, [step_of(run_id, "next")])
        await note()
        assert len(await hf.claim_next(limit=2)) == 2
        await note()
        await hf.claim_next()
        await note()
        await hf.cancel(run_id, force=True)
        await note()

        assert words == [
            "manual_intervention_required",
            "completed_result_pending_apply",
            "planned_dispatch_pending_schedule",
            "expired_claim",
            "attempt_visible",
            "attempt_claimed",
            "terminal",
        ]


class TestPicture:
    @pytest.mark.clause("SB-7", "S-61")
    async def test_it_agrees_with_the_run_itself(self, hf: Holdfast, clock: FakeClock) -> None:
        scene = await build(hf, clock)

        for run_id in scene.runs.values():
            seen, info = await inspect(hf, run_id), await look(hf, run_id)
            shared = set(type(seen).__struct_fields__) & set(type(info).__struct_fields__)
            assert len(shared) == 17
            assert {name: getattr(seen, name) for name in shared} == {name: getattr(info, name) for name in shared}
            assert seen.revisions == {f"run:{run_id}": info.rev}
            assert seen.seen_at == clock.now()

    @pytest.mark.clause("SB-7")
    async def test_the_history_tells_every_order_and_who_gave_it(self, hf: Holdfast, clock: FakeClock) -> None:
        run = await create(hf, input="not to be shown", key="order-1")
        clock.advance(1)
        await hf.signal(run.run_id, "nor this", name="more", key="s-1")
        await hf.pause(run.run_id, "go-live", kind="approval", metadata={"risk": "low"})
        asked = await inspect(hf, run.run_id)
        await hf.approve(run.run_id, actor="ada", comment="fine", key="yes")
        await hf.cancel(run.run_id, "enough", actor="bob")

        seen = await inspect(hf, run.run_id)

        assert asked.manual_state is not None
        assert (asked.manual_state.step, asked.manual_state.kind) == ("go-live", "approval")
        assert asked.manual_state.metadata == {"risk": "low"}
        assert seen.manual_state is None
        told = [(each.rev, each.command, each.actor, each.comment, each.key) for each in seen.command_history]
        assert told == [
            (1, "start", None, None, "order-1"),
            (2, "signal", None, None, "s-1"),
            (3, "pause", None, None, None),
            (4, "approve", "ada", "fine", "yes"),
            (5, "cancel", "bob", "enough", None),
        ]
        assert seen.command_history[0].at + timedelta(seconds=1) == seen.command_history[1].at
        assert "shown" not in json.dumps(seen.to_dict())
        assert "nor this" not in json.dumps(seen.to_dict())

    @pytest.mark.clause("SB-7", "O-07")
    async def test_every_tick_is_there_in_order(self, hf: Holdfast, clock: FakeClock) -> None:
        first = await active(hf)
        clock.advance(LEASE_S)
        second = await claim_one(hf)
        await hf.complete(second, Ok())
        await hf.signal(first.run_id, 1)
        third = await claim_one(hf)

        seen = await inspect(hf, first.run_id)

        assert [(tick.tick_id, tick.outcome) for tick in seen.ticks] == [
            (first.tick_id, "abandoned"),
            (second.tick_id, "ok"),
            (third.tick_id, None),
        ]
        assert seen.ticks[0].started_at + timedelta(seconds=LEASE_S) == seen.ticks[1].started_at

    @pytest.mark.clause("SB-7", "S-53")
    async def test_it_shows_the_family(self, hf: Holdfast) -> None:
        claim = await active(hf)
        await hf.journal.execute(claim.run_id, start_child(claim, "child", step="split"))
        await quiet(hf)

        parent, child = await inspect(hf, claim.run_id), await inspect(hf, "child")
        (other,) = await hf.claim_next()
        await hf.complete(other)
        await quiet(hf)
        (after,) = (await inspect(hf, claim.run_id)).child_runs

        (seen,) = parent.child_runs
        assert (seen.run_id, seen.clog_id, seen.child_key, seen.step, seen.status) == (
            *("child", "helper", "k", "split"),
            None,
        )
        assert child.parent_run is not None
        assert (child.parent_run.run_id, child.parent_run.child_key, child.parent_run.step) == (
            *(claim.run_id, "k"),
            "split",
        )
        assert (parent.parent_run, child.child_runs) == (None, ())
        assert after.status == "done"

    @pytest.mark.clause("SB-7")
    async def test_it_names_the_run_it_was_replayed_from(self, hf: Holdfast) -> None:
        body = {"session_id": "s1", "clog_id": "chat", "replayed_from": "older"}
        await hf.journal.append("run:newer", [entry("run_created", **body)], expected_rev=0)

        seen = await inspect(hf, "newer")

        assert seen.replayed_from == "older"
        assert [each.command for each in seen.command_history] == ["replay"]

    @pytest.mark.clause("SB-7")
    async def test_a_wait_without_an_end_has_no_time(self, hf: Holdfast) -> None:
        claim = await active(hf)
        await hf.complete(claim, Wait())

        seen = await inspect(hf, claim.run_id)

        assert seen.reason == "attempt_scheduled_for_later"
        assert (seen.scheduled_attempts[0].visible_at, seen.next_visible_at) == (None, None)

    @pytest.mark.clause("SB-7", "SB-5")
    async def test_anomalies_say_where_they_come_from(self, hf: Holdfast) -> None:
        claim = await active(hf)
        with pytest.raises(LeaseLost):
            await hf.heartbeat(stolen(claim))
        with pytest.raises(Conflict):
            await hf.approve(claim.run_id, actor="ada", step="go-live")

        seen = await inspect(hf, claim.run_id)

        assert [(each.source, each.reason, each.entry_kind, each.claim_id, each.step) for each in seen.anomalies] == [
            ("dispatch", "stale_claim", "attempt_heartbeat", claim.claim_id, ""),
            ("workflow", "stale_manual_resolution", "manual_step_resolved", "", "go-live"),
        ]
        assert seen.anomalies[0].rev < seen.anomalies[1].rev

    @pytest.mark.clause("SB-7", "SB-4")
    async def test_attempts_carry_one_of_five_words(self, hf: Holdfast, clock: FakeClock) -> None:
        run = await idle(hf)
        keys = ("free", "retried", "held", "done", "broken")
        await hf.journal.append(f"run:{run.run_id}", [step_of(run.run_id, key) for key in keys])
        claims = {claim.runnable_key: claim for claim in await hf.claim_next(limit=5)}
        await hf.release(claims["free"])
        await hf.fail(claims["retried"], "again")
        await hf.complete(claims["done"])
        await hf.fail(claims["broken"], "for good", retry=False)

        seen = await inspect(hf, run.run_id)

        assert {item.runnable_key: item.status for item in seen.attempts} == {
            "free": "available",
            "retried": "retry_scheduled",
            "held": "claimed",
            "done": "completed",
            "broken": "failed",
        }


@pytest.mark.clause("H-S9")
async def test_no_hash_and_no_token_is_ever_shown(hf: Holdfast, clock: FakeClock) -> None:
    scene = await build(hf, clock)
    claim = await active(hf, session_id="last")
    hashes = [row[0] for row in await hf.journal.store.fetch("SELECT claim_token_hash FROM {s}work") if row[0]]
    hidden = [scene.used_token_hash, claim.token, hash_of(claim), *hashes]

    for run_id in (*scene.runs.values(), claim.run_id):
        seen, told = await inspect(hf, run_id), await hf.explain(run_id)
        assert told is not None
        shown = json.dumps([seen.to_dict(), told.to_dict()]) + repr(seen) + repr(told)
        assert [word for word in hidden if word in shown] == []
        assert "token" not in shown
    assert len(hashes) > 3
    assert fence(claim)["claim_id"] in json.dumps((await inspect(hf, claim.run_id)).to_dict())


@pytest.mark.clause("SB-7", "SB-8")
async def test_looking_changes_nothing(hf: Holdfast, clock: FakeClock) -> None:
    scene = await build(hf, clock)
    clock.advance(7_200)
    before = await sizes(hf), await scene.digests(), await scene.rows()

    for run_id in scene.runs.values():
        await hf.inspect(run_id)
        await hf.explain(run_id)

    assert (await sizes(hf), await scene.digests(), await scene.rows()) == before


@pytest.mark.clause("SB-7")
async def test_a_run_that_is_not_there_is_none(hf: Holdfast) -> None:
    assert await hf.inspect("nobody") is None
    assert await hf.explain("nobody") is None
    for ask in (hf.inspect, hf.explain):
        with pytest.raises(InvalidValue):
            await ask("")


@pytest.mark.parametrize("configuration", ["memory", "file", "postgres"])
async def test_another_users_run_is_not_there(hf: Holdfast) -> None:
    run = await create(hf, user_id="ada")
    ada, bob = hf.as_user("ada"), hf.as_user("bob")

    assert await bob.inspect(run.run_id) is None
    assert await bob.explain(run.run_id) is None
    assert [event async for event in bob.events(run.run_id)] == []
    assert (await inspect(ada, run.run_id)).run_id == run.run_id
    assert [event.type async for event in ada.events(run.run_id)] == ["run_queued"]


async def test_the_plain_form_is_json(hf: Holdfast, clock: FakeClock) -> None:
    scene: Scene = await build(hf, clock)

    for run_id in scene.runs.values():
        plain: dict[str, Any] = (await inspect(hf, run_id)).to_dict()
        assert json.loads(json.dumps(plain)) == plain
        assert plain["seen_at"].endswith("Z")
