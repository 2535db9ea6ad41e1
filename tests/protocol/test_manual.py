"""Manual boundaries: a run that waits for a person."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.protocol import facts
from holdfast.protocol.outcomes import Done, Ok, Retry
from holdfast.protocol.values import fingerprint
from tests.protocol.builders import (
    BOOKKEEPING,
    LIVE,
    NOON,
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


def asked(boundary: str = "approval") -> Run:
    run = pending()
    run.pause("review", boundary)
    return run


@pytest.mark.clause("S-56", "S-58", "S-60")
@pytest.mark.parametrize("boundary", ["pause", "approval"])
def test_a_pause_opens_one_boundary_and_shows_it(boundary: str) -> None:
    run = pending()

    run.pause("review", boundary, metadata={"diff": "+1"}, expires_us=SECOND)

    assert run.state.status == "paused"
    opened = run.state.boundary
    assert opened is not None
    assert (opened.step, opened.kind, opened.rev, opened.expires_at) == ("review", boundary, 2, NOON + SECOND)
    assert run.entries[-1][0] == facts.ManualStepPaused(
        step="review", boundary=boundary, metadata={"diff": "+1"}, expires_us=SECOND
    )


@pytest.mark.clause("S-56", "S-60")
@pytest.mark.parametrize("status", ["idle", "pending", "active", "waiting"])
def test_resolving_puts_the_run_back_where_it_was(status: str) -> None:
    run = LIVE[status]()
    run.pause()

    run.resolve("resume")

    assert (run.state.status, run.state.boundary) == (status, None)


@pytest.mark.clause("S-56", "S-58")
def test_a_resolution_says_who_decided_what() -> None:
    run = asked()

    run.resolve("approve", actor="ann", comment="fine", edited={"amount": 3})

    assert run.state.boundary is None
    assert run.entries[-1][0] == facts.ManualStepResolved(
        step="review",
        action="approve",
        actor="ann",
        comment="fine",
        edited={"amount": 3},
        shown_sha=fingerprint({}),
    )


def test_a_rejection_without_an_error_route_fails_the_run() -> None:
    run = asked()

    resolved, error, last = run.resolve("reject", actor="ann").facts

    assert isinstance(resolved, facts.ManualStepResolved)
    assert error == facts.Event(type="error", data={"message": "review was rejected by ann", "kind": "rejected"})
    assert isinstance(last, facts.RunTerminal)
    assert (run.state.status, run.state.error_kind) == ("failed", "rejected")


def test_a_rejections_comment_is_the_error() -> None:
    run = asked()

    run.resolve("reject", actor="ann", comment="too expensive")

    assert run.state.last_error == "too expensive"


@pytest.mark.clause("S-59")
def test_the_same_pause_again_is_no_news() -> None:
    run = asked()
    before = run.state

    again = run.pause("review", "approval")
    assert run.put(facts.ManualStepPaused(step="review", boundary="approval")) is None

    assert (again.repeat_rev, again.facts) == (2, ())
    assert changes(before, run.state) <= BOOKKEEPING


@pytest.mark.clause("S-59")
@pytest.mark.parametrize(("step", "boundary"), [("other", "approval"), ("review", "pause")])
def test_a_second_pause_while_one_is_open_is_refused(step: str, boundary: str) -> None:
    run = asked()
    before = run.state

    assert run.pause(step, boundary).refusal == "active_manual_step"

    assert changes(before, run.state) <= BOOKKEEPING
    refused = run.state.anomalies["active_manual_step", ""]
    assert (refused.entry_kind, refused.step) == ("manual_step_paused", step)


@pytest.mark.clause("S-59")
def test_a_second_pause_in_a_journal_is_an_anomaly() -> None:
    run = asked()
    before = run.state

    assert run.put(facts.ManualStepPaused(step="other", boundary="pause")) == "active_manual_step"

    assert changes(before, run.state) <= BOOKKEEPING


@pytest.mark.clause("S-59", "SB-15")
@pytest.mark.parametrize(
    ("boundary", "action", "options"),
    [
        ("approval", "approve", {"actor": "ann", "step": "other"}),
        ("approval", "resume", {"actor": "ann"}),
        ("pause", "approve", {"actor": "ann"}),
        ("pause", "reject", {"actor": "ann"}),
        ("approval", "approve", {}),
        ("approval", "reject", {"actor": ""}),
        ("approval", "shrug", {"actor": "ann"}),
    ],
    ids=[
        "other step",
        "resume an approval",
        "approve a pause",
        "reject a pause",
        "no actor",
        "empty actor",
        "no action",
    ],
)
def test_a_resolution_that_does_not_fit_is_stale(boundary: str, action: str, options: dict[str, Any]) -> None:
    run = asked(boundary)
    before = run.state

    assert run.resolve(action, **options).refusal == "stale_manual_resolution"

    assert changes(before, run.state) <= BOOKKEEPING
    assert run.refusals == {"stale_manual_resolution"}


@pytest.mark.clause("S-59")
def test_a_resolution_with_nothing_open_is_stale() -> None:
    run = asked()
    run.resolve("approve", actor="ann")

    assert run.resolve("approve", actor="ann").refusal == "stale_manual_resolution"
    assert run.state.status == "pending"


@pytest.mark.clause("S-59")
@pytest.mark.parametrize(
    "fact",
    [
        facts.ManualStepResolved(step="other", action="approve"),
        facts.ManualStepResolved(step="review", action="resume"),
    ],
    ids=["other step", "wrong kind"],
)
def test_a_wrong_resolution_in_a_journal_is_an_anomaly(fact: facts.ManualStepResolved) -> None:
    run = asked()
    before = run.state

    assert run.put(fact) == "stale_manual_resolution"

    assert changes(before, run.state) <= BOOKKEEPING


@pytest.mark.clause("S-59")
def test_a_repeated_resolution_in_a_journal_is_an_anomaly() -> None:
    run = asked()
    run.resolve("approve", actor="ann")
    before = run.state

    assert run.put(run.entries[-1][0]) == "stale_manual_resolution"

    assert changes(before, run.state) <= BOOKKEEPING


@pytest.mark.clause("S-59", "S-63")
def test_manual_words_after_the_end_are_refused() -> None:
    run = ended()
    before = run.state

    assert run.pause().refusal == "terminal_run"
    assert run.resolve("resume").refusal == "terminal_run"

    assert changes(before, run.state) <= BOOKKEEPING


@pytest.mark.clause("S-60", "S-62")
def test_the_end_of_a_paused_run_clears_its_boundary() -> None:
    run = paused()

    run.cancel()

    assert (run.state.status, run.state.boundary) == ("cancelled", None)


def test_a_boundary_of_no_known_kind_is_malformed() -> None:
    run = pending()

    assert run.put(facts.ManualStepPaused(step="review", boundary="wall")) == "malformed_entry"
    assert run.state.status == "pending"


@pytest.mark.clause("H-S5")
def test_a_paused_run_gives_no_claim_until_it_is_resolved() -> None:
    run = paused()

    assert run.claim().refusal == "active_manual_step"
    assert run.put(facts.AttemptClaimed(**fence("c1"), owner_id="w1", lease_us=SECOND)) == "active_manual_step"

    run.resolve("resume")

    assert run.claim().refusal is None


@pytest.mark.clause("H-S5")
@pytest.mark.parametrize(("outcome", "then"), [(Ok(), "idle"), (Retry("again"), "pending"), (Done(), "done")], ids=repr)
def test_a_claim_that_was_live_before_the_pause_may_finish(outcome: Any, then: str) -> None:
    run = active()
    run.pause()
    assert run.state.status == "paused"

    assert run.heartbeat().refusal is None
    assert run.settle(outcome).refusal is None
    run.resolve("resume")

    assert run.state.status == then


@pytest.mark.clause("C-21")
def test_signals_queue_while_paused_and_are_delivered_after() -> None:
    run = idle()
    run.pause()
    run.signal("m1", "one")
    run.signal("m2", "two")
    assert (run.state.status, run.state.input_rev) == ("paused", None)

    run.resolve("resume")

    assert (run.state.status, run.next_input()) == ("pending", "one")


def test_a_sleeper_that_got_mail_while_paused_wakes_when_resolved() -> None:
    run = LIVE["waiting"]()
    run.pause()
    run.signal("m1", "hi")

    run.resolve("resume")

    assert (run.state.status, run.next_input()) == ("pending", "hi")


def test_a_step_may_pause_without_saying_which_is_open() -> None:
    run = paused()

    decision = run.resolve("resume", step=None)

    assert decision.facts == (facts.ManualStepResolved(step="review", action="resume"),)
