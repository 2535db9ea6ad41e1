"""Laws of `decide` and `evolve` together, over histories that commands made on a growing clock."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from holdfast.protocol import commands, facts, transitions
from holdfast.protocol.decide import decide
from holdfast.protocol.evolve import evolve, fold
from holdfast.protocol.facts import Fact
from holdfast.protocol.state import PENDING, REASONS, RunState
from tests.protocol.builders import BOOKKEEPING, NOON, SECOND, changes, fence, new_refusals
from tests.protocol.strategies import Step, histories, law


def enter(state: RunState, decided: Iterable[Fact], at: int) -> RunState:
    return fold(state, [(fact, at) for fact in decided])


@law
@given(histories)
def test_what_was_decided_is_accepted(steps: list[Step]) -> None:
    for step in steps:
        recorded = [fact.reason for fact in step.decision.facts if isinstance(fact, facts.Anomaly)]

        assert new_refusals(step.before, step.after) == recorded


@law
@given(histories)
def test_what_was_decided_can_be_stored_and_read_back(steps: list[Step]) -> None:
    for step in steps:
        for fact in step.decision.facts:
            assert facts.decode(fact.kind, facts.encode(fact)) == fact


@law
@given(histories)
def test_a_refusal_changes_nothing_and_is_recorded_once(steps: list[Step]) -> None:
    for step in steps:
        if step.decision.refusal is None or step.decision.refusal == "terminal":
            continue

        again = decide(step.after, step.command, step.now)

        assert changes(step.before, step.after) <= BOOKKEEPING
        assert again.refusal == step.decision.refusal
        assert again.facts == ()


@law
@given(histories)
def test_a_recorded_refusal_has_a_reason_of_the_vocabulary(steps: list[Step]) -> None:
    for step in steps:
        assert {reason for reason, _ in step.after.anomalies} <= REASONS


@law
@given(histories)
def test_a_decision_is_either_facts_or_a_repeat(steps: list[Step]) -> None:
    for step in steps:
        if step.decision.repeat_rev is not None:
            assert step.decision.facts == ()
            assert step.decision.repeat_rev <= step.before.rev


@law
@given(histories)
def test_a_command_sent_again_after_its_commit_does_not_count_twice(steps: list[Step]) -> None:
    for step in steps:
        if isinstance(step.command, commands.Heartbeat | commands.Emit) or step.decision.refusal:
            continue

        again = decide(step.after, step.command, step.now)

        assert changes(step.after, enter(step.after, again.facts, step.now)) <= BOOKKEEPING


@law
@given(histories, st.sampled_from([0, 1, SECOND, 40 * SECOND]))
def test_a_commit_in_the_making_becomes_what_its_instant_makes_of_it(steps: list[Step], passed: int) -> None:
    for step in steps:
        if isinstance(step.command, commands.Claim):
            continue
        at = fenced_instant(step.before, step.command, step.now + passed)

        made = enter(step.before, step.decision.facts, PENDING).resolved(at)

        assert made == enter(step.before, step.decision.facts, at)


def fenced_instant(state: RunState, command: commands.Command, at: int) -> int:
    """The instant, or the last one at which the holder may still act: the store accepts nothing later."""
    work = state.work.get(command.runnable_key) if isinstance(command, commands.ClaimCommand) else None
    return min(at, work.claim.lease_until - 1) if work and work.claim and work.claim.lease_until > state.at else at


@law
@given(histories)
def test_a_second_command_decides_the_same_before_the_first_has_its_instant(steps: list[Step]) -> None:
    for first, second in pairwise(steps):
        if isinstance(first.command, commands.Claim):
            continue
        in_the_making = enter(first.before, first.decision.facts, PENDING)

        decision = decide(in_the_making, second.command, first.now)

        assert decision == decide(in_the_making.resolved(first.now), second.command, first.now)
        if not isinstance(second.command, commands.Claim):
            both = enter(in_the_making, decision.facts, PENDING).resolved(first.now)
            assert both == enter(first.after, decision.facts, first.now)


@law
@given(histories)
def test_a_holders_command_is_decided_without_knowing_the_time(steps: list[Step]) -> None:
    for step in steps:
        if isinstance(step.command, commands.Claim) or not isinstance(step.command, commands.ClaimCommand):
            continue
        if any(work.claim and not work.claim.holds(step.now) for work in step.before.work.values()):
            continue  # only the clock tells that a lease ended

        assert decide(step.before, step.command, 0) == step.decision


def test_a_run_created_and_claimed_in_one_commit_has_the_instant_of_that_commit() -> None:
    created = facts.RunCreated(session_id="s1", clog_id="chat", has_input=True)
    both = [created, facts.AttemptClaimed(**fence("c1"), owner_id="w1", lease_us=SECOND)]

    made = enter(RunState(run_id="r1"), both, PENDING).resolved(NOON)

    assert made == enter(RunState(run_id="r1"), both, NOON)
    assert (made.status, made.ticks["c1"].started_at) == ("active", NOON)


def test_every_time_of_a_commit_in_the_making_is_counted_from_its_instant() -> None:
    beginning = [
        facts.RunCreated(session_id="s1", clog_id="chat", has_input=True, delay_us=SECOND),
        facts.AttemptScheduled(runnable_key="load", step="load", idempotency_key="k"),
        facts.AttemptClaimed(**fence("c1", "load"), owner_id="w1", lease_us=2 * SECOND),
        facts.ManualStepPaused(step="review", boundary="pause", expires_us=3 * SECOND),
        facts.CancelRequested(),
    ]

    open_run = enter(RunState(run_id="r1"), beginning, PENDING).resolved(NOON)
    ended = enter(open_run, [facts.RunTerminal(status="cancelled")], PENDING).resolved(NOON + 1)

    assert open_run == enter(RunState(run_id="r1"), beginning, NOON)
    assert (open_run.wake_at, open_run.work[""].visible_at) == (NOON + SECOND, NOON + SECOND)
    claim, boundary = open_run.work["load"].claim, open_run.boundary
    assert claim is not None
    assert boundary is not None
    assert (claim.lease_until, boundary.expires_at) == (NOON + 2 * SECOND, NOON + 3 * SECOND)
    assert (ended.cancel_requested_at, ended.finished_at, ended.at) == (NOON, NOON + 1, NOON + 1)


@law
@given(histories)
def test_a_resolved_state_holds_no_time_before_the_epoch(steps: list[Step]) -> None:
    for step in steps:
        state = enter(step.before, step.decision.facts, PENDING).resolved(step.now)
        moments = [state.at, state.wake_at, state.cancel_requested_at, state.created_at, state.finished_at]
        moments += [state.started_at, state.boundary.expires_at if state.boundary else None]
        moments += [moment for work in state.work.values() for moment in (work.visible_at, lease_end(state, work.key))]
        moments += [tick.started_at for tick in state.ticks.values()]

        assert all(moment is None or moment >= 0 for moment in moments)


def lease_end(state: RunState, key: str) -> int | None:
    claim = state.work[key].claim
    return claim.lease_until if claim else None


@law
@given(histories)
def test_every_decided_change_of_status_stands_in_the_table(steps: list[Step]) -> None:
    for step in steps:
        state = step.before
        for fact in step.decision.facts:
            after = evolve(state, fact, step.now)
            source = state.status if state.exists else transitions.NEW
            if source != after.status or not state.exists:
                assert (source, transitions.cause(fact), after.status) in transitions.TRANSITIONS
            state = after


@law
@given(histories)
def test_a_run_ends_once_with_its_last_word_and_an_error_before_a_failure(steps: list[Step]) -> None:
    for step in steps:
        kinds = [fact.kind for fact in step.decision.facts]
        if "run_terminal" not in kinds:
            continue
        *before, last = step.decision.facts

        assert isinstance(last, facts.RunTerminal)
        assert kinds.count("run_terminal") == 1
        assert (last.status == "failed") == (bool(before) and isinstance(before[-1], facts.Event))
