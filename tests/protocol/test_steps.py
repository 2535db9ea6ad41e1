"""Workflow steps: planned, scheduled, claimed, completed or failed, applied."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.protocol import facts
from holdfast.protocol.outcomes import Continue, Done, Fail, Ok, Outcome, Retry, Wait
from tests.protocol.builders import BOOKKEEPING, LEASE, NOON, SECOND, Run, active, changes, fence


def claimed_step() -> Run:
    """A run whose only work is the step `load`, held by c1."""
    run = Run(max_attempts=2)
    run.plan("load")
    run.schedule("load", input={"page": 1})
    run.claim("c1", "load")
    return run


def completed(claim: str = "c1", digest: str = "d1") -> facts.AttemptCompleted:
    return facts.AttemptCompleted(**fence(claim, "load"), result_digest=digest)


def failed(claim: str = "c1", digest: str = "d1", **options: Any) -> facts.AttemptFailed:
    return facts.AttemptFailed(**fence(claim, "load"), error="broken", result_digest=digest, **options)


def test_a_planned_step_is_no_work_until_it_is_scheduled() -> None:
    run = Run()

    run.plan("load")
    assert (run.state.status, run.state.runnables["load"].status) == ("idle", "planned")

    run.schedule("load", delay_us=SECOND)
    assert (run.state.status, run.state.runnables["load"].status) == ("pending", "scheduled")
    assert run.state.work["load"].visible_at == NOON + SECOND


def test_a_step_keeps_its_own_counters_beside_the_runs() -> None:
    run = active()
    run.schedule("load", attempt=1)

    run.claim("c2", "load")

    work = run.state.work["load"]
    assert (work.attempt, work.deliveries) == (1, 1)
    assert (run.state.attempt, run.state.deliveries) == (0, 1)
    assert {claim.claim_id for claim in run.state.live_claims(NOON)} == {"c1", "c2"}


@pytest.mark.clause("S-21")
def test_the_same_intent_again_is_no_news() -> None:
    run = Run()
    run.schedule("load", input=1)
    before = run.state

    assert run.schedule("load", input=1) is None

    assert changes(before, run.state) <= BOOKKEEPING


@pytest.mark.clause("S-21")
@pytest.mark.parametrize(
    "other",
    [{"idempotency_key": "other"}, {"attempt": 1}, {"step": "other"}, {"input": 2}, {"delay_us": 1}],
    ids=lambda other: next(iter(other)),
)
def test_another_intent_for_the_same_key_is_an_anomaly_and_the_first_stands(other: dict[str, Any]) -> None:
    run = Run()
    run.schedule("load", input=1)
    before = run.state

    assert run.schedule("load", **{"input": 1, **other}) == "conflicting_runnable_intent"

    assert changes(before, run.state) <= BOOKKEEPING


@pytest.mark.parametrize("first", [Run.plan, Run.schedule], ids=["planned", "scheduled"])
@pytest.mark.parametrize("second", [Run.plan, Run.schedule], ids=["planned", "scheduled"])
def test_a_key_belongs_to_the_step_that_took_it_first(first: Any, second: Any) -> None:
    run = Run()
    first(run, "load")
    before = run.state

    assert second(run, "load", step="other") == "conflicting_runnable_intent"

    assert changes(before, run.state) <= BOOKKEEPING


def test_a_plan_is_repeated_silently_and_may_follow_its_intent() -> None:
    run = Run()
    run.schedule("load")

    assert run.plan("load") is None
    assert run.plan("load") is None

    assert (run.state.runnables["load"].scheduled_rev, run.state.runnables["load"].planned_rev) == (2, 3)


def test_the_runs_own_key_is_no_step() -> None:
    run = Run()

    assert run.plan("", step="load") == "malformed_entry"
    assert run.put(facts.AttemptScheduled(runnable_key="", step="load", idempotency_key="k")) is None
    assert (len(run.state.runnables), len(run.state.work)) == (0, 0)


@pytest.mark.clause("S-20")
def test_a_wakeup_without_an_intent_is_an_anomaly_and_makes_no_work() -> None:
    run = Run()

    assert run.put(facts.LiveWakeupEmitted(runnable_key="load")) == "unknown_runnable_intent"
    assert len(run.state.work) == 0


def test_a_wakeup_of_known_work_changes_nothing() -> None:
    run = Run()
    run.schedule("load")
    before = run.state

    assert run.put(facts.LiveWakeupEmitted(runnable_key="load")) is None

    assert changes(before, run.state) <= BOOKKEEPING


@pytest.mark.clause("S-42", "S-46")
def test_a_steps_result_is_kept_and_then_applied() -> None:
    run = claimed_step()

    (fact,) = run.settle(Done({"rows": 3}), "c1", "load").facts

    assert isinstance(fact, facts.AttemptCompleted)
    assert fact.result == {"rows": 3}
    assert (run.state.runnables["load"].status, run.state.status) == ("completed", "idle")
    assert run.state.runnables["load"].result_rev == run.state.rev

    assert run.put(facts.RunnableApplied(runnable_key="load", result_digest=fact.result_digest)) is None
    assert run.state.runnables["load"].applied_rev == run.state.rev


def test_a_step_that_is_ok_is_a_step_without_a_result() -> None:
    run = claimed_step()

    (fact,) = run.settle(Ok(), "c1", "load").facts

    assert isinstance(fact, facts.AttemptCompleted)
    assert fact.result is None


@pytest.mark.parametrize(("outcome", "delay_s"), [(Wait(seconds=5), 5), (Continue(), 0)], ids=repr)
def test_a_step_that_waits_or_continues_comes_back_with_no_attempt_counted(outcome: Outcome, delay_s: int) -> None:
    run = claimed_step()

    run.settle(outcome, "c1", "load")

    work = run.state.work["load"]
    assert (work.claim, work.attempt, work.deliveries) == (None, 0, 0)
    assert work.visible_at == run.state.at + delay_s * 1_000_000
    assert run.state.status == ("waiting" if delay_s else "pending")
    assert run.state.runnables["load"].status == "scheduled"


@pytest.mark.clause("S-43")
def test_a_repeated_completion_is_no_news() -> None:
    run = claimed_step()
    first = run.settle(Done(1), "c1", "load")
    before = run.state

    again = run.settle(Done(1), "c1", "load")
    assert run.put(first.facts[0]) is None

    assert (again.repeat_rev, again.facts) == (before.rev, ())
    assert changes(before, run.state) <= BOOKKEEPING


@pytest.mark.clause("S-44")
def test_another_result_of_a_completed_step_conflicts_and_the_first_stands() -> None:
    run = claimed_step()
    run.settle(Done(1), "c1", "load")
    before = run.state

    assert run.settle(Done(2), "c1", "load").refusal == "conflicting_completion"
    assert run.put(completed(claim="c9")) == "stale_claim"

    assert changes(before, run.state) <= BOOKKEEPING


@pytest.mark.clause("S-32")
@pytest.mark.parametrize("outcome", [Done(1), Fail("broken")], ids=repr)
def test_a_claim_never_reopens_a_settled_step(outcome: Outcome) -> None:
    run = claimed_step()
    run.settle(outcome, "c1", "load")
    before = run.state

    assert run.claim("c2", "load").refusal == "terminal_attempt"
    assert run.put(facts.AttemptClaimed(**fence("c2", "load"), owner_id="w1", lease_us=LEASE)) == "terminal_attempt"

    assert changes(before, run.state) <= BOOKKEEPING


@pytest.mark.clause("S-45")
def test_a_failed_step_is_tried_again_after_its_backoff_with_the_same_input() -> None:
    run = claimed_step()
    scheduled_rev = run.state.work["load"].input_rev

    (fact,) = run.settle(Retry("again"), "c1", "load").facts

    assert isinstance(fact, facts.AttemptFailed)
    assert fact.retry_delay_us == SECOND
    work = run.state.work["load"]
    assert (work.attempt, work.deliveries, work.visible_at) == (1, 0, NOON + SECOND)
    assert (work.input_rev, work.claim) == (scheduled_rev, None)
    assert run.state.runnables["load"].status == "retry_scheduled"
    assert run.claim("c2", "load").refusal == "attempt_not_visible"
    run.sleep(SECOND)
    assert run.claim("c2", "load").refusal is None


def test_a_step_may_name_its_own_delay() -> None:
    run = claimed_step()

    run.settle(Retry("again", after=9), "c1", "load")

    assert run.state.work["load"].visible_at == NOON + 9 * SECOND


@pytest.mark.parametrize("how", ["used up", "failed"])
def test_a_step_without_another_try_is_failed_and_the_run_goes_on(how: str) -> None:
    run = claimed_step()
    if how == "used up":
        run.settle(Retry("again"), "c1", "load")
        run.sleep(SECOND)
        run.claim("c2", "load")

    claim, outcome = ("c2", Retry("again")) if how == "used up" else ("c1", Fail("broken"))
    (fact,) = run.settle(outcome, claim, "load").facts

    assert isinstance(fact, facts.AttemptFailed)
    assert fact.retry_delay_us is None
    assert (run.state.runnables["load"].status, run.state.status) == ("failed", "idle")
    assert len(run.state.work) == 0


def test_a_step_that_spoke_and_is_tried_again_takes_its_words_back() -> None:
    run = claimed_step()
    run.emit(("text", "half"), claim="c1", key="load")

    again, dropped = run.settle(Retry("again"), "c1", "load", keep=[[5, 5]]).facts

    assert isinstance(again, facts.AttemptFailed)
    assert dropped == facts.TickAbandoned(tick_id="c1", from_seq=4, reason="retry", runnable_key="load", keep=[[5, 5]])


@pytest.mark.clause("S-45")
@pytest.mark.parametrize("why", ["stale_claim", "expired_claim"])
def test_a_late_failure_schedules_no_retry(why: str) -> None:
    run = claimed_step()
    before = run.state
    run.sleep(LEASE if why == "expired_claim" else 0)

    assert run.put(failed("c1" if why == "expired_claim" else "c9", retry_delay_us=0)) == why

    assert changes(before, run.state) <= BOOKKEEPING


@pytest.mark.clause("H-S3")
def test_an_identical_failure_is_no_news_and_another_one_conflicts() -> None:
    run = claimed_step()
    run.put(failed(retry_delay_us=SECOND))
    before = run.state

    assert run.put(failed(retry_delay_us=SECOND)) is None
    assert run.put(failed(digest="other")) == "conflicting_failure"

    assert changes(before, run.state) <= BOOKKEEPING


@pytest.mark.clause("S-42")
@pytest.mark.parametrize("fact", [completed(), failed()], ids=["completion", "failure"])
def test_a_result_without_an_intent_is_an_anomaly(fact: facts.Fenced) -> None:
    run = active()
    before = run.state

    assert run.put(fact) == "unknown_runnable_intent"
    assert run.put(replace(fact, runnable_key="")) is None

    assert changes(before, run.state) <= BOOKKEEPING


@pytest.mark.clause("S-46")
def test_a_result_is_not_applied_before_its_completion() -> None:
    run = claimed_step()

    assert run.put(facts.RunnableApplied(runnable_key="load", result_digest="d1")) == "result_not_completed"
    assert run.state.runnables["load"].applied_rev is None


@pytest.mark.clause("S-46")
def test_a_failed_step_has_no_result_to_apply() -> None:
    run = claimed_step()
    run.settle(Fail("broken"), "c1", "load")

    assert run.put(facts.RunnableApplied(runnable_key="load", result_digest="d1")) == "result_not_completed"


@pytest.mark.clause("S-47")
def test_a_runnable_of_another_run_is_not_applied() -> None:
    run = claimed_step()

    assert run.put(facts.RunnableApplied(runnable_key="elsewhere", result_digest="d1")) == "unknown_runnable_intent"


@pytest.mark.clause("S-48")
def test_applying_again_is_no_news_and_another_result_conflicts() -> None:
    run = Run()
    digest = run.finish_step("load", 1)
    run.put(facts.RunnableApplied(runnable_key="load", result_digest=digest))
    before = run.state

    assert run.put(facts.RunnableApplied(runnable_key="load", result_digest=digest)) is None
    assert run.put(facts.RunnableApplied(runnable_key="load", result_digest="other")) == "conflicting_completion"

    assert changes(before, run.state) <= BOOKKEEPING


@pytest.mark.clause("S-49")
def test_results_are_applied_one_after_the_other_each_on_its_own_revision() -> None:
    run = Run()
    digests = {key: run.finish_step(key, key, claim=f"claim of {key}") for key in ("load", "charge")}

    for key, digest in digests.items():
        run.put(facts.RunnableApplied(runnable_key=key, result_digest=digest))

    applied = [run.state.runnables[key].applied_rev for key in digests]
    assert applied == [run.state.rev - 1, run.state.rev]


def test_a_step_is_not_settled_like_the_runs_own_tick() -> None:
    run = claimed_step()
    fact = facts.TickSettled(**fence("c1", "load"), outcome="ok", result_digest="d1")

    assert run.put(fact) == "malformed_entry"


def test_a_step_whose_worker_is_lost_is_taken_over() -> None:
    run = claimed_step()
    run.sleep(LEASE)

    abandoned, _ = run.claim("c2", "load").facts

    assert abandoned == facts.TickAbandoned(tick_id="c1", from_seq=4, reason="expired", runnable_key="load")
    assert run.state.work["load"].deliveries == 2
    assert run.settle(Done(1), "c1", "load").refusal == "stale_claim"
