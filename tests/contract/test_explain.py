"""Explanation: why a run is where it is, in plain words made from facts, and what would move it on."""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast import Done, Fail, Holdfast, Retry, Wait
from holdfast.runtime import Explanation
from tests.conftest import FakeClock
from tests.contract.builders import LEASE_S, active, claim_one, create, entry, idle, quiet, start_child, step_of

NEXT_ACTIONS = {
    *("schedule_pending_dispatch", "apply_pending_result", "recover_expired_claim", "wait_for_worker_claim"),
    *("wait_until_attempt_visible", "wait_for_attempt_completion", "resolve_manual_step", "inspect_terminal_run"),
    *("wait_for_new_runnables", "inspect_dispatch_state"),
}


async def explain(hf: Holdfast, run_id: str) -> Explanation:
    found = await hf.explain(run_id)
    assert found is not None
    assert set(found.next_actions) <= NEXT_ACTIONS
    return found


async def told(hf: Holdfast, run_id: str) -> tuple[str, tuple[str, ...], str]:
    found = await explain(hf, run_id)
    return found.reason, found.next_actions, found.summary


@pytest.mark.clause("SB-8")
class TestWords:
    async def test_of_a_run_that_rests(self, hf: Holdfast) -> None:
        run = await idle(hf)

        assert await told(hf, run.run_id) == (
            "idle",
            ("wait_for_new_runnables",),
            "It rests: there is nothing left to do until a signal arrives.",
        )

    async def test_of_a_run_that_is_due(self, hf: Holdfast) -> None:
        run = await create(hf, queue="slow")

        assert await told(hf, run.run_id) == (
            "attempt_visible",
            ("wait_for_worker_claim",),
            "It is due since 2030-01-01 00:00:00 UTC and waits for a worker of queue 'slow'.",
        )

    async def test_of_a_run_that_someone_works_on(self, hf: Holdfast, clock: FakeClock) -> None:
        run = await create(hf)
        await claim_one(hf, owner="w1")
        clock.advance(LEASE_S - 12)

        assert await told(hf, run.run_id) == (
            "attempt_claimed",
            ("wait_for_attempt_completion",),
            "It is held by worker w1 with a lease of 12 s.",
        )

    async def test_of_a_run_whose_worker_is_lost(self, hf: Holdfast, clock: FakeClock) -> None:
        run = await create(hf)
        await claim_one(hf, owner="w1")
        clock.advance(LEASE_S + 7_200)

        assert await told(hf, run.run_id) == (
            "expired_claim",
            ("recover_expired_claim",),
            "Worker w1 let its lease end 2 h ago; the next worker of its queue takes it over.",
        )

    async def test_of_a_run_whose_last_worker_is_lost(self, hf: Holdfast, clock: FakeClock) -> None:
        run = await create(hf, max_deliveries=1)
        await claim_one(hf, owner="w1")
        clock.advance(LEASE_S + 5)

        _, _, summary = await told(hf, run.run_id)

        assert summary.endswith("let its lease end 5 s ago; it was lost too often, so the next claim fails the run.")

    async def test_of_a_run_that_sleeps(self, hf: Holdfast) -> None:
        claim = await active(hf)
        await hf.complete(claim, Wait(seconds=3_600))

        assert await told(hf, claim.run_id) == (
            "attempt_scheduled_for_later",
            ("wait_until_attempt_visible",),
            "It waits until 2030-01-01 01:00:00 UTC, in 60 min; a signal may come first.",
        )

    async def test_of_a_run_that_sleeps_until_it_is_told(self, hf: Holdfast) -> None:
        claim = await active(hf)
        await hf.complete(claim, Wait())

        assert (await explain(hf, claim.run_id)).summary == "It waits for a signal; nothing else is planned."

    async def test_of_a_run_that_backs_off(self, hf: Holdfast) -> None:
        claim = await active(hf)
        await hf.complete(claim, Retry("the model was away", after=90))

        assert (await explain(hf, claim.run_id)).summary == (
            "It waits until 2030-01-01 00:01:30 UTC, in 90 s, before try 2 of 3: the model was away."
        )

    async def test_of_a_run_that_needs_approval(self, hf: Holdfast) -> None:
        run = await idle(hf)
        await hf.pause(run.run_id, "go-live", kind="approval")
        await hf.signal(run.run_id, "meanwhile")

        assert await told(hf, run.run_id) == (
            "manual_intervention_required",
            ("resolve_manual_step",),
            "It needs approval: someone must approve or reject step 'go-live'. "
            "Signals in its mailbox: 1; they are kept until then.",
        )

    async def test_of_a_run_that_is_paused(self, hf: Holdfast) -> None:
        run = await idle(hf)
        await hf.pause(run.run_id, "look")

        assert (await explain(hf, run.run_id)).summary == "It is paused at step 'look' until someone resumes it."

    async def test_of_steps_between_two_entries(self, hf: Holdfast) -> None:
        run = await idle(hf)
        thread = f"run:{run.run_id}"

        await hf.journal.append(thread, [entry("runnable_planned", runnable_key="load", step="load")])
        planned = await told(hf, run.run_id)
        await hf.journal.append(thread, [step_of(run.run_id, "load")])
        await hf.complete(await claim_one(hf), Done(1))
        finished = await told(hf, run.run_id)

        assert planned == (
            "planned_dispatch_pending_schedule",
            ("schedule_pending_dispatch",),
            "Step 'load' was planned, but nobody can claim it yet.",
        )
        assert finished == (
            "completed_result_pending_apply",
            ("apply_pending_result",),
            "Step 'load' finished, but the result is not part of the run yet.",
        )

    @pytest.mark.parametrize(
        ("outcome", "summary"),
        [
            (Done(1), "The run is done since 2030-01-01 00:00:00 UTC."),
            (Fail("broken"), "The run failed at 2030-01-01 00:00:00 UTC because: broken."),
            (
                Fail("too big", kind="model_limit"),
                "The run failed at 2030-01-01 00:00:00 UTC (model_limit) because: too big.",
            ),
        ],
    )
    async def test_of_a_run_that_is_over(self, hf: Holdfast, outcome: Any, summary: str) -> None:
        claim = await active(hf)
        await hf.complete(claim, outcome)

        assert await told(hf, claim.run_id) == ("terminal", ("inspect_terminal_run",), summary)

    async def test_of_a_run_that_was_cancelled(self, hf: Holdfast) -> None:
        claim = await active(hf)
        await hf.cancel(claim.run_id, "enough", actor="ada")
        asked = await explain(hf, claim.run_id)
        await hf.complete(claim)

        assert asked.summary.endswith("Cancel was requested at 2030-01-01 00:00:00 UTC; the next outcome ends the run.")
        assert (await explain(hf, claim.run_id)).summary == (
            "The run was cancelled by ada at 2030-01-01 00:00:00 UTC because: enough."
        )

    async def test_of_runs_that_wait_for_their_lane(self, hf: Holdfast, clock: FakeClock) -> None:
        for name in ("a", "b", "c", "d"):
            await create(hf, run_id=name, lane="desk")
            clock.advance(1)
        await create(hf, run_id="elsewhere", lane="desk", session_id="s2")

        reasons = {name: (await explain(hf, name)).reason for name in ("a", "b", "c", "d", "elsewhere")}
        third = await explain(hf, "c")
        await hf.cancel("a")
        await quiet(hf)
        promoted = await explain(hf, "b")

        waiting = dict.fromkeys(("b", "c", "d"), "waiting_for_dispatch")
        assert reasons == {"a": "attempt_visible", **waiting, "elsewhere": "attempt_visible"}
        assert third.summary == "It is third in its lane 'desk' and starts when those before it rest or end."
        assert third.next_actions == ("inspect_dispatch_state",)
        assert third.details["lane"] == {"name": "desk", "place": 3}
        assert (promoted.reason, promoted.details["lane"]["place"]) == ("attempt_visible", 1)
        assert (await explain(hf, "c")).details["lane"]["place"] == 2

    async def test_of_a_run_with_children(self, hf: Holdfast) -> None:
        claim = await active(hf)
        await hf.journal.execute(claim.run_id, start_child(claim, "child"))
        await quiet(hf)
        await hf.complete(claim, Wait())

        found = await explain(hf, claim.run_id)

        assert found.summary.endswith("Of its child runs 1 is not over.")
        assert found.details["open_children"] == ["child"]


@pytest.mark.clause("H-O15")
@pytest.mark.parametrize("configuration", ["memory", "file", "postgres"])
async def test_a_clog_that_is_not_served_here_is_named(hf: Holdfast, clock: FakeClock) -> None:
    run = await create(hf, clog_id="stranger")

    unknown = await explain(hf, run.run_id)
    hf._known_clogs = frozenset({"chat"})
    elsewhere = await explain(hf, run.run_id)
    hf._known_clogs = frozenset({"chat", "stranger"})
    here = await explain(hf, run.run_id)

    assert (unknown.reason, here.reason) == ("attempt_visible", "attempt_visible")
    assert (elsewhere.reason, elsewhere.next_actions) == ("no_handler_here", ("wait_for_worker_claim",))
    assert elsewhere.summary == (
        "It is due, but there is no handler for clog 'stranger' here; a process that registers it has to serve "
        "queue 'default'."
    )


@pytest.mark.clause("H-O15")
@pytest.mark.parametrize("configuration", ["memory", "file", "postgres"])
async def test_a_handler_is_only_missed_where_one_is_needed(hf: Holdfast, clock: FakeClock) -> None:
    resting = await idle(hf)
    lost = await active(hf)
    hf._known_clogs = frozenset()

    held = (await explain(hf, lost.run_id)).reason
    clock.advance(LEASE_S)

    assert held == "attempt_claimed"
    assert (await explain(hf, lost.run_id)).reason == "no_handler_here"
    assert (await explain(hf, resting.run_id)).reason == "idle"


@pytest.mark.clause("SB-8")
async def test_the_evidence_counts_what_was_seen(hf: Holdfast) -> None:
    claim = await active(hf)
    for n in range(3):
        await hf.signal(claim.run_id, n)
    await hf.cancel(claim.run_id)

    found = await explain(hf, claim.run_id)

    assert found.evidence["revisions"] == {f"run:{claim.run_id}": 6}
    assert found.evidence["counts"] == {
        "attempts": 1,
        "ticks": 1,
        "signals_waiting": 3,
        "anomalies": 0,
        "child_runs": 0,
        "commands": {"start": 1, "signal": 3, "cancel": 1},
    }
    assert found.evidence["duplicate_commands"] == 0


@pytest.mark.clause("SB-8")
async def test_orders_that_came_twice_are_counted(hf: Holdfast) -> None:
    claim = await active(hf)
    await hf.cancel(claim.run_id, "enough")
    again = [entry("cancel_requested", reason="enough")] * 2
    await hf.journal.append(f"run:{claim.run_id}", again)

    assert (await explain(hf, claim.run_id)).evidence["duplicate_commands"] == 2


async def test_the_plain_form_is_json(hf: Holdfast) -> None:
    claim = await active(hf)

    plain = (await explain(hf, claim.run_id)).to_dict()

    assert json.loads(json.dumps(plain)) == plain
    assert plain["details"]["claimed_attempts"][0]["claim_id"] == claim.claim_id
    assert sorted(plain) == ["details", "evidence", "next_actions", "reason", "run_id", "status", "summary"]
