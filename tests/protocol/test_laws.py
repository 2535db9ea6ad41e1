"""Laws of the fold that hold for any facts in any order, at instants that jump both ways."""

from __future__ import annotations

import pytest
from hypothesis import given

from holdfast.protocol import facts, transitions
from holdfast.protocol.evolve import evolve, fold
from holdfast.protocol.facts import Fact
from holdfast.protocol.judging import judge_fence
from holdfast.protocol.messages import is_message
from holdfast.protocol.state import RunState
from tests.protocol.builders import BOOKKEEPING, changes, fence, new_refusals
from tests.protocol.strategies import Lived, law, wild_lives

FORKED = {"parent_run_id", "created_key", "children", "child_ids", "ticks"}
KEPT_AFTER_THE_END = BOOKKEEPING | {"mailbox", "signals", "signal_ids", "keys", "spoken", "deleted"} | FORKED


@law
@given(wild_lives)
def test_a_fold_is_the_same_every_time_and_leaves_its_beginning_alone(lives: list[Lived]) -> None:
    entries = [(life.fact, life.at) for life in lives]
    beginnings = [life.before for life in lives]

    again = fold(RunState(run_id="r1"), entries)

    assert again == (lives[-1].after if lives else RunState(run_id="r1"))
    for count, beginning in enumerate(beginnings):
        assert beginning == fold(RunState(run_id="r1"), entries[:count])


@law
@given(wild_lives)
def test_every_fact_counts_one_revision_and_sets_the_instant(lives: list[Lived]) -> None:
    for life in lives:
        assert (life.after.rev, life.after.at) == (life.before.rev + 1, life.at)


@law
@given(wild_lives)
def test_a_fact_that_is_not_accepted_changes_nothing_but_the_anomalies(lives: list[Lived]) -> None:
    for life in lives:
        if new_refusals(life.before, life.after):
            assert changes(life.before, life.after) <= BOOKKEEPING


@law
@given(wild_lives)
def test_a_duplicate_of_an_accepted_fact_changes_nothing(lives: list[Lived]) -> None:
    for life in lives:
        if new_refusals(life.before, life.after):
            continue

        again = evolve(life.after, life.fact, life.at)

        allowed = BOOKKEEPING if is_an_anomaly_when_repeated(life.fact) else BOOKKEEPING - {"anomalies"}
        assert changes(life.after, again) <= allowed


def is_an_anomaly_when_repeated(fact: Fact) -> bool:
    """Facts whose repetition is recorded, though it changes nothing else."""
    match fact:
        case facts.ManualStepResolved():
            return True  # S-59: the boundary is closed
        case facts.RunTerminal(claim_id=None):
            return True  # S-63: the run is over, and no claim proves that this is the same end
        case facts.AttemptHeartbeat(lease_us=0):
            return True  # S-37: it ended its own lease
        case _:
            return False


@law
@given(wild_lives)
def test_a_run_that_ended_never_changes_how_it_ended(lives: list[Lived]) -> None:
    for life in lives:
        if life.before.terminal:
            assert changes(life.before, life.after) <= KEPT_AFTER_THE_END


@pytest.mark.clause("S-36", "S-37", "S-42", "S-44")
@law
@given(wild_lives)
def test_no_fact_of_a_claim_that_does_not_hold_is_accepted(lives: list[Lived]) -> None:
    for life in lives:
        if not may_act(life.before, life.fact, life.at):
            assert changes(life.before, life.after) <= BOOKKEEPING


def may_act(state: RunState, fact: Fact, at: int) -> bool:
    """An own reading of the fence: the item's current claim, its hash, and an instant before its lease ends."""
    match fact:
        case facts.AttemptClaimed():
            return True
        case facts.Fenced() | facts.RunTerminal(claim_id=str()):
            claim_id = fact.claim_id
        case facts.Event(tick_id=str()) | facts.TickAbandoned(reason="released"):
            claim_id = fact.tick_id
        case _:
            return True
    work = state.work.get(fact.runnable_key)
    if work is None or work.claim is None:
        return False
    known = work.claim
    return (
        known.claim_id == claim_id
        and fact.claim_token_hash in (None, known.claim_token_hash)
        and at < known.lease_until
    )


@pytest.mark.clause("O-31", "S-30", "S-31")
@law
@given(wild_lives)
def test_a_new_claim_is_given_only_when_visible_free_and_not_paused(lives: list[Lived]) -> None:
    for life in lives:
        if not isinstance(life.fact, facts.AttemptClaimed) or life.before.ticks == life.after.ticks:
            continue
        work = life.before.work[life.fact.runnable_key]

        assert life.before.boundary is None
        assert work.visible_at <= life.at
        assert work.claim is None or work.claim.lease_until <= life.at


@law
@given(wild_lives)
def test_every_change_of_status_stands_in_the_table(lives: list[Lived]) -> None:
    for before, fact, _, after in lives:
        source = before.status if before.exists else transitions.NEW
        if after.exists and source != after.status:
            assert (source, transitions.cause(fact), after.status) in transitions.TRANSITIONS


@law
@given(wild_lives)
def test_a_tick_is_open_exactly_as_long_as_its_claim(lives: list[Lived]) -> None:
    for life in lives:
        open_ticks = {tick.tick_id for tick in life.after.ticks.values() if tick.outcome is None}

        assert open_ticks == {work.claim.claim_id for work in life.after.work.values() if work.claim}


@pytest.mark.clause("H-O3")
@law
@given(wild_lives)
def test_the_mailbox_is_in_order_and_a_bound_signal_is_its_head(lives: list[Lived]) -> None:
    for life in lives:
        state = life.after
        assert list(state.mailbox) == sorted(state.mailbox)
        assert {seq for seq, signal in state.signals.items() if signal.tick_id is None} == set(state.mailbox)
        if state.input_rev in state.signals:
            assert state.input_rev == state.mailbox[0]


@pytest.mark.clause("S-61", "S-62")
@law
@given(wild_lives)
def test_nothing_is_open_after_the_end(lives: list[Lived]) -> None:
    for life in lives:
        state = life.after
        if state.terminal:
            assert (len(state.work), state.boundary, state.wake_at, state.input_rev) == (0, None, None, None)


@pytest.mark.clause("C-16")
@law
@given(wild_lives)
def test_at_every_instant_either_the_holder_may_act_or_the_item_is_claimable(lives: list[Lived]) -> None:
    for life in lives:
        state, at = life.after, life.at
        for key, work in state.work.items():
            if work.claim is None or state.boundary or at < work.visible_at:
                continue
            holder_may_act = judge_fence(state, key, work.claim.claim_id, work.claim.claim_token_hash, at) is None
            takeover = facts.AttemptClaimed(**fence("another", key), owner_id="w2", lease_us=1)

            taken = "another" in evolve(state, takeover, at).ticks

            assert holder_may_act != taken


@law
@given(wild_lives)
def test_only_a_message_makes_a_run_one_that_has_spoken_and_nothing_unsays_it(lives: list[Lived]) -> None:
    for life in lives:
        if life.before.spoken or not is_message(life.fact):
            assert life.after.spoken == life.before.spoken
