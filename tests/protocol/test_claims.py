"""Claims, leases and the fence: who may work on a run, until when, and what a lost worker costs."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from holdfast.protocol import commands, facts
from holdfast.protocol.outcomes import Continue, Done, Ok, Retry
from tests.protocol.builders import BOOKKEEPING, LEASE, NOON, SECOND, Run, active, changes, fence, pending, slice_of


def lost(times: int, **created: object) -> Run:
    """A run whose claims ran out this often, the last one just now."""
    run = Run(has_input=True, input="work", **created)
    for number in range(1, times + 1):
        run.claim(f"c{number}")
        run.sleep(LEASE)
    return run


@pytest.mark.clause("O-11")
def test_a_claim_makes_the_run_active_until_its_lease_ends() -> None:
    run = pending()

    run.claim("c1")

    assert run.state.status == "active"
    (claim,) = run.state.live_claims(NOON)
    assert (claim.claim_id, claim.owner_id, claim.lease_until) == ("c1", "w1", NOON + LEASE)
    assert run.state.started_at == NOON


@pytest.mark.clause("S-29")
def test_a_claim_holds_the_hash_of_its_token() -> None:
    claimed = pending().claim("c1").facts[-1]

    assert isinstance(claimed, facts.AttemptClaimed)
    assert claimed.claim_token_hash == "hash of c1"


@pytest.mark.clause("O-07", "O-08")
def test_every_claim_opens_a_tick_of_its_own() -> None:
    run = active()
    run.settle(Continue())

    run.claim("c2")

    ticks = {tick.tick_id: (tick.outcome, tick.claimed_rev, tick.settled_rev) for tick in run.state.ticks.values()}
    assert ticks == {"c1": ("continue", 2, 3), "c2": (None, 4, None)}


@pytest.mark.clause("O-34", "S-31")
def test_a_live_claim_cannot_be_taken_over() -> None:
    run = active()
    before = run.state

    assert run.claim("c2").refusal == "active_claim"
    assert run.put(facts.AttemptClaimed(**fence("c2"), owner_id="w2", lease_us=LEASE)) == "active_claim"
    assert changes(before, run.state) <= BOOKKEEPING


@pytest.mark.clause("S-30")
def test_a_claim_before_its_time_is_an_anomaly_and_the_item_stays_available() -> None:
    run = Run(has_input=True, delay_us=SECOND)

    assert run.put(facts.AttemptClaimed(**fence("c1"), owner_id="w1", lease_us=LEASE)) == "attempt_not_visible"

    run.sleep(SECOND)

    assert run.claim("c1").refusal is None


@pytest.mark.clause("O-33", "S-33", "H-O1")
def test_a_claim_after_the_lease_closes_the_lost_tick_and_opens_a_new_one() -> None:
    run = lost(1)

    decision = run.claim("c2")

    abandoned, claimed = decision.facts
    assert abandoned == facts.TickAbandoned(tick_id="c1", from_seq=2, reason="expired")
    assert isinstance(claimed, facts.AttemptClaimed)
    assert (run.state.status, run.state.ticks["c1"].outcome) == ("active", "abandoned")
    assert run.state.live_claims(run.now)[0].claim_id == "c2"


def test_a_takeover_without_its_own_entry_closes_the_lost_tick_too() -> None:
    run = lost(1)

    assert run.put(facts.AttemptClaimed(**fence("c2"), owner_id="w2", lease_us=LEASE)) is None

    assert run.state.ticks["c1"].outcome == "abandoned"


@pytest.mark.clause("C-16", "S-31", "S-37")
def test_the_lease_ends_at_one_instant_for_both_sides() -> None:
    run = active()
    beat = facts.AttemptHeartbeat(**fence("c1"), lease_us=LEASE)

    run.sleep(LEASE - 1)
    last_moment = (run.claim("c2").refusal, run.put(beat))

    other = active()
    other.sleep(LEASE)
    first_moment = (other.put(beat), other.claim("c2").refusal)

    assert last_moment == ("active_claim", None)
    assert first_moment == ("expired_claim", None)


@pytest.mark.clause("H-O5")
def test_a_lost_input_is_delivered_again() -> None:
    run = lost(1)

    run.claim("c2")

    assert run.next_input() == "work"


def test_a_claim_sent_again_answers_the_first_one() -> None:
    run = active()

    again = run.claim("c1")

    assert (again.repeat_rev, again.facts) == (2, ())
    assert run.state.deliveries == 1


@pytest.mark.parametrize("lost_at", [0, LEASE], ids=["while held", "after the lease"])
def test_a_journal_that_repeats_a_claim_has_one_tick(lost_at: int) -> None:
    run = active()
    before = run.state
    run.sleep(lost_at)

    assert run.put(run.entries[-1][0]) is None

    assert changes(before, run.state) <= BOOKKEEPING


@pytest.mark.parametrize("how", ["expired", "released"])
def test_a_journal_that_repeats_an_abandonment_counts_it_once(how: str) -> None:
    run = active()
    run.sleep(LEASE if how == "expired" else 0)
    abandoned = facts.TickAbandoned(tick_id="c1", from_seq=2, reason=how)
    assert run.put(abandoned) is None
    before = run.state

    assert run.put(abandoned) is None

    assert changes(before, run.state) <= BOOKKEEPING
    assert (run.state.status, run.state.deliveries) == ("pending", 1 if how == "expired" else 0)


def test_the_id_of_a_closed_claim_is_never_given_again() -> None:
    run = active()
    run.settle(Continue())

    assert run.claim("c1").refusal == "stale_claim"
    assert run.put(facts.AttemptClaimed(**fence("c1"), owner_id="w1", lease_us=LEASE)) == "stale_claim"
    assert run.state.status == "pending"


@pytest.mark.clause("S-36")
def test_a_heartbeat_starts_the_lease_anew() -> None:
    run = active()
    run.sleep(20 * SECOND)

    run.heartbeat()

    assert run.state.live_claims(run.now)[0].lease_until == NOON + 20 * SECOND + LEASE
    run.sleep(20 * SECOND)
    assert run.settle(Ok()).refusal is None


@pytest.mark.clause("S-41")
def test_an_outcome_is_judged_by_when_it_arrives() -> None:
    run = active()

    run.sleep(LEASE)
    late = run.settle(Done("late"))

    assert late.refusal == "expired_claim"
    assert run.state.status == "active"


@pytest.mark.clause("S-36", "S-37", "S-42", "H-O10")
@pytest.mark.parametrize("why", ["stale_claim", "expired_claim", "terminal_run"])
@pytest.mark.parametrize("word", ["heartbeat", "settle", "release", "emit", "start_child"])
def test_whoever_lost_the_claim_is_refused_and_recorded_once(word: str, why: str) -> None:
    run = active()
    if why == "expired_claim":
        run.sleep(LEASE)
    elif why == "terminal_run":
        run.cancel(force=True)
    held = fence("c1") if why != "stale_claim" else {**fence("c1"), "claim_token_hash": "a guess"}
    command: commands.Command = {
        "heartbeat": commands.Heartbeat(**held, lease_us=LEASE),
        "settle": commands.Settle(**held, outcome=Ok()),
        "release": commands.Release(**held),
        "emit": commands.Emit(**held, events=(("text", "hi"),)),
        "start_child": commands.StartChild(**held, child_run_id="k1", clog_id="helper", child_key="k"),
    }[word]
    before = run.state

    first, second = run.do(command), run.do(command)

    assert (first.refusal, second.refusal) == (why, why)
    (anomaly,) = first.facts
    assert isinstance(anomaly, facts.Anomaly)
    assert (anomaly.reason, anomaly.claim_id) == (why, "c1")
    assert second.facts == ()
    assert changes(before, run.state) <= BOOKKEEPING


def test_another_claims_id_with_the_right_hash_is_stale() -> None:
    run = active()

    stranger = {**fence("c2"), "claim_token_hash": fence("c1")["claim_token_hash"]}

    assert run.do(commands.Heartbeat(**stranger, lease_us=LEASE)).refusal == "stale_claim"


@pytest.mark.clause("S-43")
@pytest.mark.parametrize("outcome", [Ok(), Done({"a": 1}), Retry("again")], ids=repr)
def test_the_same_outcome_again_answers_the_first_and_writes_nothing(outcome: Ok | Done | Retry) -> None:
    run = active()
    first = run.settle(outcome)
    rev = run.state.rev

    again = run.settle(outcome)
    run.sleep(LEASE)
    much_later = run.settle(outcome)

    assert first.refusal is None
    assert again == much_later
    assert (again.repeat_rev, again.facts, again.refusal) == (3, (), None)
    assert run.state.rev == rev


def test_the_fact_that_ends_a_tick_names_its_span_and_the_outcome_stays_the_same_in_another() -> None:
    run = active()
    first = run.do(commands.Settle(**fence("c1"), outcome=Retry("later"), traceparent="00-1-1-01"))

    again = run.do(commands.Settle(**fence("c1"), outcome=Retry("later"), traceparent="00-2-2-01"))

    settled, *others = first.facts
    assert isinstance(settled, facts.TickSettled)
    assert settled.traceparent == "00-1-1-01"
    assert not any(isinstance(fact, facts.Settling) for fact in others)
    assert (again.repeat_rev, again.facts) == (3, ())


@pytest.mark.clause("S-44")
@pytest.mark.parametrize("first", [Ok(), Done("one")], ids=repr)
def test_another_outcome_of_a_settled_claim_conflicts_and_the_first_stands(first: Ok | Done) -> None:
    run = active()
    run.settle(first)
    before = run.state

    decision = run.settle(Done("two"))

    assert decision.refusal == "conflicting_completion"
    assert changes(before, run.state) <= BOOKKEEPING
    assert run.state.anomalies["conflicting_completion", "c1"].entry_kind == "tick_settled"


@pytest.mark.clause("S-43", "S-44")
def test_a_journal_that_repeats_a_settled_tick_is_judged_the_same_way() -> None:
    run = active()
    run.settle(Ok())
    settled = run.entries[-1][0]
    assert isinstance(settled, facts.TickSettled)
    before = run.state

    assert run.put(settled) is None
    assert run.put(replace(settled, result_digest="other")) == "conflicting_completion"
    assert changes(before, run.state) <= BOOKKEEPING


@pytest.mark.clause("H-O12")
def test_deliveries_count_claims_of_one_input_and_an_outcome_resets_them() -> None:
    run = lost(2)
    run.claim("c3")
    assert (run.state.deliveries, run.state.attempt) == (3, 0)

    run.settle(Retry("again"), "c3")

    assert (run.state.deliveries, run.state.attempt) == (0, 1)

    run.sleep(SECOND)
    run.claim("c4")

    assert (run.state.deliveries, run.state.attempt) == (1, 1)


@pytest.mark.clause("H-O12")
def test_the_claim_that_would_exceed_the_deliveries_fails_the_run() -> None:
    run = lost(5)

    abandoned, error, last = run.claim("c6").facts

    assert isinstance(abandoned, facts.TickAbandoned)
    assert isinstance(error, facts.Event)
    assert isinstance(last, facts.RunTerminal)
    assert (run.state.status, run.state.error_kind) == ("failed", "worker_lost")
    assert run.state.last_error == "the worker was lost 5 times while working on this input"
    assert "c6" not in run.state.ticks


def test_a_run_that_cannot_be_resumed_fails_with_its_first_lost_worker() -> None:
    run = lost(1, resumable=False)

    run.claim("c2")

    assert (run.state.status, run.state.error_kind) == ("failed", "worker_lost")


def test_a_released_claim_counts_for_nothing_and_is_claimable_at_once() -> None:
    run = active()
    run.emit(("text", "half a word"))

    (released,) = run.release().facts

    assert released == facts.TickAbandoned(tick_id="c1", from_seq=2, reason="released", claim_token_hash="hash of c1")
    assert (run.state.status, run.state.deliveries, run.state.attempt) == ("pending", 0, 0)
    assert run.state.ticks["c1"].outcome == "released"
    run.claim("c2")
    assert (run.state.deliveries, run.next_input()) == (1, "hello")


def test_a_release_sent_again_answers_the_first() -> None:
    run = active()
    run.release()

    again = run.release()

    assert (again.repeat_rev, again.facts) == (3, ())


def test_a_release_leaves_earlier_losses_counted() -> None:
    run = lost(2)
    run.claim("c3")

    run.release("c3")

    assert run.state.deliveries == 2


@pytest.mark.parametrize(
    ("fact", "refusal"),
    [
        (facts.TickAbandoned(tick_id="c1", from_seq=2, reason="expired"), "active_claim"),
        (facts.TickAbandoned(tick_id="c9", from_seq=2, reason="expired"), "stale_claim"),
        (facts.TickAbandoned(tick_id="c1", from_seq=2, reason="released", claim_token_hash="a guess"), "stale_claim"),
        (facts.TickAbandoned(tick_id="c1", from_seq=2, reason="boredom"), "malformed_entry"),
    ],
    ids=["lease holds", "not the holder", "wrong token", "no reason"],
)
def test_a_tick_is_not_abandoned_without_cause(fact: facts.TickAbandoned, refusal: str) -> None:
    run = active()
    before = run.state

    assert run.put(fact) == refusal
    assert changes(before, run.state) <= BOOKKEEPING


@pytest.mark.clause("H-O16")
def test_a_retry_marks_what_the_tick_said_as_dropped_but_for_what_it_keeps() -> None:
    run = active()
    run.emit(("text", "hello"), ("tool_call", {}))

    settled, dropped = run.settle(Retry("again"), keep=[[4, 4]]).facts

    assert isinstance(settled, facts.TickSettled)
    assert dropped == facts.TickAbandoned(tick_id="c1", from_seq=2, reason="retry", keep=[[4, 4]])
    assert (run.state.status, run.state.attempt) == ("pending", 1)


def test_a_retry_of_a_tick_that_said_nothing_drops_nothing() -> None:
    (settled,) = active().settle(Retry("again")).facts

    assert isinstance(settled, facts.TickSettled)


@pytest.mark.clause("H-O16")
def test_events_carry_their_tick_and_attempt() -> None:
    run = active()
    run.settle(Retry("again"))
    run.sleep(SECOND)
    run.claim("c2")

    (event,) = run.emit(("text", "hi"), claim="c2").facts

    assert event == facts.Event(type="text", data="hi", tick_id="c2", attempt=1)


def test_a_slice_that_does_not_show_the_tick_is_judged_the_same_way() -> None:
    run = active()
    run.state = slice_of(run.state)
    rev = run.state.rev

    (released,) = run.release().facts

    assert isinstance(released, facts.TickAbandoned)
    assert released.from_seq == rev
    assert (run.state.status, run.state.deliveries, run.refusals) == ("pending", 0, set())


def test_a_forked_run_counts_an_open_claim_as_released() -> None:
    run = active()
    run.schedule("load")

    assert run.put(facts.RunForked(source_run_id="r0", at_rev=2)) is None

    assert (run.state.status, run.state.deliveries) == ("pending", 0)
    assert "c1" not in run.state.ticks
    assert run.claim("c2").refusal is None


@pytest.mark.clause("H-W11")
def test_an_event_that_belongs_to_a_revision_is_refused_at_any_other_and_leaves_no_trace() -> None:
    run = active()
    said = commands.Emit(**fence("c1"), events=(("text", "hi"),), expected_rev=run.state.rev)

    assert [fact.kind for fact in run.do(said).facts] == ["event"]
    again = run.do(said)

    assert (again.refusal, again.facts) == ("rev_moved", ())
