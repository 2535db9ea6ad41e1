"""Workflow steps as facts: planned, scheduled, claimed, completed, applied."""

from __future__ import annotations

import pytest

from holdfast import Conflict, Done, Fail, Holdfast, Retry
from tests.conftest import FakeClock
from tests.contract.builders import anomalies, claim_one, entry, idle, kinds, look, step_of


async def runnable(hf: Holdfast, run_id: str, key: str) -> tuple[str, str | None]:
    """A step's status and the digest of its result."""
    sql = "SELECT status, result_digest FROM {s}runnables WHERE run_id = $1 AND key = $2"
    ((status, result_digest),) = await hf.journal.store.fetch(sql, run_id, key)
    return status, result_digest


@pytest.mark.clause("S-26", "S-27", "S-46", "S-48")
async def test_a_step_is_claimed_completed_and_applied(hf: Holdfast) -> None:
    run = await idle(hf)
    thread = f"run:{run.run_id}"
    await hf.journal.append(thread, [entry("runnable_planned", runnable_key="load", step="load"), step_of("r", "load")])

    claim = await claim_one(hf)
    await hf.complete(claim, Done({"rows": 3}))
    status, digest = await runnable(hf, run.run_id, "load")
    applied = entry("runnable_applied", runnable_key="load", result_digest=digest)
    await hf.journal.append(thread, [applied])
    await hf.journal.append(thread, [applied])

    assert (claim.runnable_key, status) == ("load", "completed")
    assert await anomalies(hf, run.run_id) == []
    assert (await look(hf, run.run_id)).status == "idle"
    assert await hf.claim_next() == []


@pytest.mark.clause("S-46", "S-47", "S-48")
async def test_only_a_completed_step_of_this_run_can_be_applied(hf: Holdfast) -> None:
    run = await idle(hf)
    thread = f"run:{run.run_id}"
    await hf.journal.append(thread, [step_of("r", "load")])

    await hf.journal.append(thread, [entry("runnable_applied", runnable_key="load", result_digest="d")])
    await hf.journal.append(thread, [entry("runnable_applied", runnable_key="other", result_digest="d")])
    await hf.complete(await claim_one(hf), Done(1))
    await hf.journal.append(thread, [entry("runnable_applied", runnable_key="load", result_digest="another")])

    assert await anomalies(hf, run.run_id) == [
        ("result_not_completed", "runnable_applied"),
        ("unknown_runnable_intent", "runnable_applied"),
        ("conflicting_completion", "runnable_applied"),
    ]


@pytest.mark.clause("S-21", "S-20")
async def test_an_equal_intent_is_a_no_op_and_a_different_one_an_anomaly(hf: Holdfast) -> None:
    run = await idle(hf)
    thread = f"run:{run.run_id}"
    await hf.journal.append(thread, [step_of("r", "load")])

    await hf.journal.append(thread, [step_of("r", "load"), entry("live_wakeup_emitted", runnable_key="load")])
    assert await anomalies(hf, run.run_id) == []

    await hf.journal.append(thread, [step_of("another", "load"), entry("live_wakeup_emitted", runnable_key="none")])
    assert await anomalies(hf, run.run_id) == [
        ("conflicting_runnable_intent", "attempt_scheduled"),
        ("unknown_runnable_intent", "live_wakeup_emitted"),
    ]
    assert len(await hf.claim_next(limit=5)) == 1


@pytest.mark.clause("S-24", "S-32", "C-10")
async def test_siblings_are_claimed_side_by_side_and_never_reopened(hf: Holdfast) -> None:
    run = await idle(hf)
    await hf.journal.append(f"run:{run.run_id}", [step_of("r", "left"), step_of("r", "right")])

    claims = {claim.runnable_key: claim for claim in await hf.claim_next(limit=5)}
    await hf.complete(claims["left"], Done("l"))
    await hf.complete(claims["left"], Done("l"))
    with pytest.raises(Conflict) as caught:
        await hf.complete(claims["left"], Done("other"))

    assert set(claims) == {"left", "right"}
    assert caught.value.code == "conflicting_completion"
    assert (await look(hf, run.run_id)).status == "active"
    assert await hf.claim_next() == []
    await hf.complete(claims["right"], Done("r"))
    assert (await look(hf, run.run_id)).status == "idle"


@pytest.mark.clause("S-45", "S-39", "H-S3")
async def test_a_failed_step_is_scheduled_again_until_its_attempts_are_used_up(hf: Holdfast, clock: FakeClock) -> None:
    run = await idle(hf)
    await hf.journal.append(f"run:{run.run_id}", [step_of("r", "load")])

    first = await claim_one(hf)
    await hf.complete(first, Retry("away"))
    await hf.complete(first, Retry("away"))
    assert await hf.claim_next() == []
    clock.advance(1)
    second = await claim_one(hf)
    await hf.complete(second, Fail("gone"))

    assert (first.attempt, second.attempt) == (0, 1)
    assert (await runnable(hf, run.run_id, "load"))[0] == "failed"
    assert await hf.claim_next() == []
    assert (await kinds(hf, run.run_id)).count("attempt_failed") == 2


@pytest.mark.clause("S-30")
async def test_a_delayed_step_is_visible_from_its_instant_on(hf: Holdfast, clock: FakeClock) -> None:
    run = await idle(hf)
    delayed = step_of("r", "load")
    delayed["data"]["delay_us"] = 5_000_000
    await hf.journal.append(f"run:{run.run_id}", [delayed])

    clock.advance(4.999999)
    assert await hf.claim_next() == []
    clock.advance(0.000001)

    assert (await claim_one(hf)).runnable_key == "load"
