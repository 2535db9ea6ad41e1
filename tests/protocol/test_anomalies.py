"""What is not accepted: every reason can happen, is recorded once, says what it concerns, and changes nothing else."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from holdfast.protocol import commands, facts
from holdfast.protocol.evolve import fold
from holdfast.protocol.outcomes import Done, Ok
from holdfast.protocol.state import REASONS, Refusal, RunState
from tests.protocol.builders import (
    BOOKKEEPING,
    LEASE,
    SECOND,
    Run,
    active,
    changes,
    ended,
    fence,
    idle,
    paused,
    pending,
)


def claim_fact(claim: str = "c1", key: str = "") -> facts.AttemptClaimed:
    return facts.AttemptClaimed(**fence(claim, key), owner_id="w1", lease_us=LEASE)


def completion(claim: str = "c1", digest: str = "d1") -> facts.AttemptCompleted:
    return facts.AttemptCompleted(**fence(claim, "load"), result_digest=digest)


def completed_step() -> Run:
    run = idle()
    run.schedule("load")
    run.claim("c1", "load")
    run.put(completion())
    return run


def expired() -> Run:
    run = active()
    run.sleep(LEASE)
    return run


# One run and one fact for every reason of the vocabulary.
CASES: dict[str, tuple[Callable[[], Run], facts.Fact]] = {
    "unknown_runnable_intent": (idle, facts.LiveWakeupEmitted(runnable_key="load")),
    "conflicting_runnable_intent": (
        completed_step,
        facts.AttemptScheduled(runnable_key="load", step="load", idempotency_key="another"),
    ),
    "attempt_not_visible": (lambda: Run(has_input=True, delay_us=SECOND), claim_fact()),
    "active_claim": (active, claim_fact("c2")),
    "stale_claim": (active, facts.AttemptHeartbeat(**fence("c2"), lease_us=LEASE)),
    "expired_claim": (expired, facts.AttemptHeartbeat(**fence("c1"), lease_us=LEASE)),
    "terminal_attempt": (completed_step, claim_fact("c2", "load")),
    "terminal_run": (ended, claim_fact()),
    "conflicting_completion": (completed_step, completion(digest="d2")),
    "conflicting_failure": (
        completed_step,
        facts.AttemptFailed(**fence("c1", "load"), error="broken", result_digest="d2"),
    ),
    "result_not_completed": (
        lambda: planned("load"),
        facts.RunnableApplied(runnable_key="load", result_digest="d1"),
    ),
    "malformed_entry": (active, facts.TickSettled(**fence("c1"), outcome="shrug", result_digest="d1")),
    "active_manual_step": (paused, facts.ManualStepPaused(step="other", boundary="pause")),
    "stale_manual_resolution": (pending, facts.ManualStepResolved(step="review", action="resume")),
    "conflicting_child_run": (pending, facts.ChildRunFinished(child_run_id="k1", status="done")),
}


def planned(key: str) -> Run:
    run = idle()
    run.plan(key)
    return run


def test_there_is_a_case_for_every_reason() -> None:
    assert set(CASES) == REASONS


@pytest.mark.clause("SB-5")
@pytest.mark.parametrize("reason", sorted(CASES))
def test_every_reason_happens_says_what_it_concerns_and_changes_nothing_else(reason: str) -> None:
    begin, fact = CASES[reason]
    run = begin()
    before = run.state

    assert run.put(fact) == reason

    assert changes(before, run.state) <= BOOKKEEPING
    claim_id = getattr(fact, "claim_id", "")
    assert run.state.anomalies[reason, claim_id] == Refusal(
        reason=reason,
        entry_kind=fact.kind,
        rev=run.state.rev,
        runnable_key=getattr(fact, "runnable_key", ""),
        claim_id=claim_id,
        step=getattr(fact, "step", ""),
    )


@pytest.mark.clause("SB-5")
def test_an_event_of_a_lost_tick_is_recorded_under_its_tick() -> None:
    run = active()

    run.put(facts.Event(type="text", tick_id="c9"))

    assert list(run.state.anomalies) == [("stale_claim", "c9")]


def test_an_event_of_the_library_itself_needs_no_claim() -> None:
    run = idle()

    assert run.put(facts.Event(type="usage", data={"tokens": 3})) is None


def test_only_the_first_anomaly_of_a_reason_and_claim_is_kept() -> None:
    run = active()
    beat = facts.AttemptHeartbeat(**fence("c2"), lease_us=LEASE)
    run.put(beat)
    first = run.state.anomalies

    run.put(beat)
    assert run.state.anomalies == first

    run.put(facts.AttemptHeartbeat(**fence("c3"), lease_us=LEASE))
    assert len(run.state.anomalies) == 2


def test_a_recorded_refusal_reads_the_same_from_a_refold() -> None:
    run = active()
    run.sleep(LEASE)
    run.settle(Ok())

    refolded = fold(RunState(run_id="r1"), run.entries)

    assert refolded == run.state
    assert list(refolded.anomalies) == [("expired_claim", "c1")]


LATE_FACTS: list[facts.Fact] = [
    claim_fact("c2"),
    facts.AttemptHeartbeat(**fence("c1"), lease_us=LEASE),
    facts.TickSettled(**fence("c1"), outcome="ok", result_digest="d1"),
    facts.TickAbandoned(tick_id="c1", from_seq=1, reason="released"),
    facts.RunTerminal(status="failed"),
    facts.RunTerminal(status="failed", **fence("c1"), result_digest="d2"),
    facts.CancelRequested(),
    facts.ManualStepPaused(step="review", boundary="pause"),
    facts.ManualStepResolved(step="review", action="resume"),
    facts.ChildRunStarted(child_run_id="k1", clog_id="helper", child_key="k"),
    facts.ChildRunFinished(child_run_id="k1", status="done"),
    facts.RunnablePlanned(runnable_key="load", step="load"),
    facts.AttemptScheduled(runnable_key="load", step="load", idempotency_key="k"),
    completion(),
    facts.AttemptFailed(**fence("c1", "load"), error="broken", result_digest="d1"),
    facts.RunnableApplied(runnable_key="load", result_digest="d1"),
    facts.LiveWakeupEmitted(),
    facts.Event(type="text"),
]


@pytest.mark.clause("S-15", "S-63", "H-S6")
@pytest.mark.parametrize("fact", LATE_FACTS, ids=lambda fact: fact.kind)
@pytest.mark.parametrize("status", ["done", "failed", "cancelled"])
def test_whatever_comes_after_the_end_is_an_anomaly_only(status: str, fact: facts.Fact) -> None:
    run = ended(status)
    before = run.state

    assert run.put(fact) == "terminal_run"

    assert changes(before, run.state) <= BOOKKEEPING
    assert run.state.status == status


def test_the_same_end_of_the_same_tick_may_stand_twice() -> None:
    run = active()
    run.settle(Done("result"))
    before = run.state

    assert run.put(run.entries[-1][0]) is None

    assert changes(before, run.state) <= BOOKKEEPING


@pytest.mark.clause("S-61")
def test_the_end_takes_every_item_and_closes_every_tick() -> None:
    run = active()
    run.schedule("load")
    run.schedule("charge")
    run.claim("c2", "load")

    run.settle(Done())

    assert len(run.state.work) == 0
    assert {tick.tick_id: tick.outcome for tick in run.state.ticks.values()} == {"c1": "done", "c2": "fenced"}
    assert run.claim("c3", "charge").refusal == "terminal_run"


@pytest.mark.parametrize(
    ("fact", "reason"),
    [
        (facts.RunTerminal(status="asleep"), "malformed_entry"),
        (facts.RunTerminal(status="done", **fence("c9"), result_digest="d1"), "stale_claim"),
    ],
    ids=["no end", "not the holder"],
)
def test_an_end_that_nobody_may_declare_is_refused(fact: facts.RunTerminal, reason: str) -> None:
    run = active()

    assert run.put(fact) == reason
    assert run.state.status == "active"


def test_an_end_by_a_tick_that_already_settled_is_judged_by_its_result() -> None:
    run = active()
    run.put(facts.TickSettled(**fence("c1"), outcome="ok", result_digest="d1"))

    assert run.put(facts.RunTerminal(status="done", **fence("c1"), result_digest="d1")) is None
    assert run.put(facts.RunTerminal(status="done", **fence("c1"), result_digest="d2")) == "conflicting_completion"
    assert run.state.status == "idle"


def test_a_refused_command_names_its_step() -> None:
    run = pending()

    run.do(commands.Resolve(action="approve", step="review", actor="ann"))

    assert run.state.anomalies["stale_manual_resolution", ""].step == "review"
