"""Signals: a mailbox in order, one signal for one tick, none of them lost."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.protocol import facts
from holdfast.protocol.outcomes import Continue, Done, Fail, Ok, Outcome, Retry, Wait
from tests.protocol.builders import BOOKKEEPING, LEASE, LIVE, NOON, SECOND, Run, active, changes, ended, idle, pending


def delivered(run: Run, ticks: int) -> list[Any]:
    """What the next ticks get, each of them ending in ok."""
    inputs = []
    for number in range(ticks):
        claim = f"next {number}"
        run.claim(claim)
        inputs.append(run.next_input())
        run.settle(Ok(), claim)
    return inputs


@pytest.mark.clause("O-36", "O-11")
@pytest.mark.parametrize(
    ("before", "after"),
    [("idle", "pending"), ("waiting", "pending"), ("pending", "pending"), ("active", "active"), ("paused", "paused")],
)
def test_a_signal_wakes_a_resting_run_and_leaves_the_others_their_status(before: str, after: str) -> None:
    run = LIVE[before]()

    run.signal("m1", "hi")

    assert run.state.status == after
    assert len(run.state.mailbox) == 1


@pytest.mark.clause("O-37", "H-O2")
def test_a_signal_ends_a_sleep_at_once() -> None:
    run = active()
    run.settle(Wait(seconds=3600))

    run.signal("m1", "wake up")

    assert run.state.wake_at is None
    assert delivered(run, 1) == ["wake up"]


@pytest.mark.clause("H-O2")
def test_a_signal_leaves_a_retrys_backoff_alone() -> None:
    run = active()
    run.settle(Retry("again"))

    run.signal("m1", "hi")

    assert run.state.wake_at == NOON + SECOND
    assert run.claim("c2").refusal == "attempt_not_visible"


@pytest.mark.clause("H-O2", "OB-9")
def test_an_interrupting_signal_ends_a_backoff_but_not_the_order() -> None:
    run = active()
    run.settle(Retry("again"))

    run.signal("m1", "hurry", interrupt=True)

    assert (run.state.wake_at, run.state.attempt) == (None, 1)
    assert delivered(run, 2) == ["hello", "hurry"]


@pytest.mark.parametrize("status", ["active", "paused"])
def test_an_interrupting_signal_disturbs_neither_a_holder_nor_a_person(status: str) -> None:
    run = LIVE[status]()
    before = run.state

    run.signal("m1", "hurry", interrupt=True)

    assert changes(before, run.state) == {"rev", "mailbox", "signals", "signal_ids"}


@pytest.mark.clause("O-40", "H-O3")
def test_three_signals_are_three_ticks_in_order() -> None:
    run = idle()
    for number in (1, 2, 3):
        run.signal(f"m{number}", number)

    assert delivered(run, 3) == [1, 2, 3]
    assert (run.state.status, run.state.mailbox) == ("idle", ())


@pytest.mark.clause("H-O3")
def test_a_signal_with_the_payload_of_the_one_at_work_is_a_tick_of_its_own() -> None:
    run = idle()
    run.signal("m1", "same")
    run.claim()

    run.signal("m2", "same")
    run.settle(Ok())

    assert delivered(run, 1) == ["same"]


@pytest.mark.clause("H-O3")
def test_a_bare_signal_during_a_tick_also_makes_a_tick() -> None:
    run = active()

    run.signal("m1")
    run.settle(Ok())

    assert run.state.status == "pending"
    assert delivered(run, 1) == [None]


@pytest.mark.clause("O-39", "O-40")
@pytest.mark.parametrize("outcome", [Ok(), Wait(seconds=3600), Wait()], ids=repr)
def test_a_signal_during_a_tick_that_then_rests_is_next(outcome: Outcome) -> None:
    run = active()
    run.signal("m1", "meanwhile")

    run.settle(outcome)

    assert (run.state.status, run.state.wake_at) == ("pending", None)
    assert delivered(run, 1) == ["meanwhile"]


@pytest.mark.clause("O-40", "H-O3")
def test_the_order_is_the_retried_input_then_the_continued_one_then_signals() -> None:
    run = active()
    run.signal("m1", "signal")
    run.settle(Retry("again"))
    run.sleep(SECOND)

    run.claim("c2")
    retried = run.next_input()
    run.settle(Continue("continued"), "c2")

    assert [retried, *delivered(run, 2)] == ["hello", "continued", "signal"]


@pytest.mark.clause("H-O5", "O-38")
def test_a_signal_stays_in_the_mailbox_until_its_outcome_commits() -> None:
    run = idle()
    run.signal("m1", "precious")
    run.claim()
    seq = run.state.mailbox[0]

    run.sleep(LEASE)
    run.claim("c2")
    after_the_loss = (list(run.state.mailbox), run.next_input())

    run.settle(Retry("again"), "c2")
    after_the_retry = list(run.state.mailbox)

    run.sleep(SECOND)
    run.claim("c3")
    run.settle(Ok(), "c3")

    assert after_the_loss == ([seq], "precious")
    assert after_the_retry == [seq]
    assert (run.state.status, run.state.mailbox) == ("idle", ())
    assert run.state.signals[seq].tick_id == "c3"


@pytest.mark.parametrize("outcome", [Done(), Fail("broken")], ids=repr)
def test_the_last_outcome_spends_its_own_signal_and_leaves_the_others_undelivered(outcome: Outcome) -> None:
    run = idle()
    run.signal("m1", "first")
    run.claim()
    run.signal("m2", "second")

    run.settle(outcome)

    first, second = sorted(run.state.signals.values(), key=lambda signal: signal.seq)
    assert (first.tick_id, second.tick_id) == ("c1", None)
    assert run.state.mailbox == (second.seq,)


@pytest.mark.clause("H-O13", "C-20")
@pytest.mark.parametrize("status", ["done", "failed", "cancelled"])
def test_a_signal_to_an_ended_run_is_kept_and_answered_with_its_end(status: str) -> None:
    run = ended(status)

    decision = run.signal("m1", "too late")

    assert decision.refusal == "terminal"
    assert [fact.kind for fact in decision.facts] == ["signal_received"]
    assert run.state.status == status
    assert [signal.tick_id for signal in run.state.signals.values()] == [None]
    assert run.refusals == set()


@pytest.mark.clause("H-O13")
def test_a_signal_to_an_unknown_run_is_answered_and_not_kept() -> None:
    run = idle()
    run.state = type(run.state)(run_id="nobody")

    decision = run.signal("m1")

    assert (decision.refusal, decision.facts) == ("not_found", ())


@pytest.mark.parametrize("status", [*LIVE, "done"])
def test_a_signal_sent_again_answers_the_first(status: str) -> None:
    run = LIVE[status]() if status in LIVE else ended()
    run.signal("m1", "once")
    rev = run.state.rev

    again = run.signal("m1", "once")

    assert (again.repeat_rev, again.facts) == (rev, ())


def test_a_journal_that_repeats_a_signal_delivers_it_once() -> None:
    run = idle()
    run.signal("m1", "once")
    before = run.state

    assert run.put(run.entries[-1][0]) is None

    assert changes(before, run.state) <= BOOKKEEPING


@pytest.mark.clause("C-21")
def test_idle_needs_a_signal_waiting_also_takes_time_and_paused_takes_neither() -> None:
    resting = {status: LIVE[status]() for status in ("idle", "waiting", "paused")}

    by_time, by_signal = {}, {}
    for status, run in resting.items():
        run.sleep(LEASE)
        by_time[status] = run.claim("timer").refusal
        run.signal("m1", "hi")
        by_signal[status] = run.state.status

    assert by_time == {"idle": "unknown_runnable_intent", "waiting": None, "paused": "active_manual_step"}
    assert by_signal == {"idle": "pending", "waiting": "active", "paused": "paused"}


def test_a_timer_tick_has_no_input_and_comes_before_later_signals() -> None:
    run = active()
    run.settle(Wait(seconds=1))
    run.sleep(SECOND)
    run.claim("c2")
    run.signal("m1", "later")

    run.sleep(LEASE)
    run.claim("c3")

    assert run.state.input_rev is None
    run.settle(Ok(), "c3")
    assert delivered(run, 1) == ["later"]


def test_a_named_signal_keeps_its_name() -> None:
    run = pending()

    run.signal("m1", name="verified")

    (signal,) = run.state.signals.values()
    assert (signal.name, signal.has_input) == ("verified", False)
    assert isinstance(run.entries[-1][0], facts.SignalReceived)
