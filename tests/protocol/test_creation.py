"""How a run begins, and what a repeated beginning means."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.protocol import commands, facts
from holdfast.protocol.decide import decide
from holdfast.protocol.evolve import evolve
from holdfast.protocol.state import RunState
from tests.protocol.builders import BOOKKEEPING, LIVE, NOON, SECOND, Run, changes, ended, pending


@pytest.mark.clause("O-04")
@pytest.mark.parametrize("input", [0, False, "", None, {"text": "hello"}], ids=repr)
def test_a_run_with_an_input_is_pending_and_its_first_tick_gets_it(input: Any) -> None:
    run = Run(has_input=True, input=input)

    assert run.state.status == "pending"
    assert run.next_input() is input


@pytest.mark.clause("O-04")
def test_a_run_without_an_input_is_idle_and_has_nothing_to_do() -> None:
    run = Run()

    assert run.state.status == "idle"
    assert (run.state.input_rev, len(run.state.work)) == (None, 0)
    assert run.claim().refusal == "unknown_runnable_intent"


@pytest.mark.clause("O-06")
def test_a_fresh_run_has_used_no_attempt_and_carries_no_lock_wake_time_or_error() -> None:
    state = pending().state

    assert (state.attempt, state.deliveries) == (0, 0)
    assert (state.wake_at, state.last_error, state.error_kind) == (None, None, None)
    assert state.live_claims(NOON) == ()
    assert (state.started_at, state.finished_at, state.cancel_requested_at) == (None, None, None)


def test_a_run_remembers_what_it_was_created_with() -> None:
    told: dict[str, Any] = {
        "session_id": "s9",
        "clog_id": "digest",
        "user_id": "ann",
        "queue": "slow",
        "mode": "single",
    }
    told |= {"lane": "main", "priority": -3, "max_deliveries": 2, "resumable": False}

    state = Run(**told).state

    assert {name: getattr(state, name) for name in told} == told
    assert (state.created_at, state.at, state.rev) == (NOON, NOON, 1)


def test_a_run_remembers_the_key_it_was_created_under_apart_from_its_own() -> None:
    keyed, plain = Run(key="k1", key_digest="d1"), Run()

    assert (keyed.state.created_key, plain.state.created_key) == (("k1", "d1"), None)
    assert len(keyed.state.keys) == 0


def test_a_delayed_run_cannot_be_claimed_before_its_time() -> None:
    run = Run(has_input=True, delay_us=SECOND)

    run.sleep(SECOND - 1)

    assert run.claim().refusal == "attempt_not_visible"
    assert run.state.wake_at == NOON + SECOND

    run.sleep(1)

    assert run.claim().refusal is None


@pytest.mark.clause("S-53")
def test_a_child_knows_its_parent() -> None:
    child = Run(parent=facts.Parent(run_id="p1", child_key="k1", step="load", attempt=2))

    assert child.state.parent_run_id == "p1"


@pytest.mark.clause("SB-17")
@pytest.mark.parametrize("status", [*LIVE, "done"])
def test_creating_a_run_again_with_the_same_body_answers_the_first_entry(status: str) -> None:
    run = LIVE[status]() if status in LIVE else ended()

    decision = run.do(commands.Create(fact=run.created))

    assert (decision.repeat_rev, decision.facts, decision.refusal) == (1, (), None)


@pytest.mark.clause("SB-17")
def test_creating_another_run_under_a_used_id_is_refused() -> None:
    run = pending()

    decision = run.do(commands.Create(fact=replace(run.created, clog_id="other")))

    assert (decision.refusal, decision.facts) == ("id_reused", ())


def test_the_id_of_a_deleted_run_is_never_used_again() -> None:
    run = pending()
    deleted = RunState(run_id="r1", created_digest=run.state.created_digest)

    decision = decide(deleted, commands.Create(fact=run.created), NOON)

    assert (decision.refusal, decision.facts) == ("id_reused", ())


def test_a_second_creation_in_a_journal_changes_nothing() -> None:
    run = pending()
    before = run.state

    assert run.put(run.created) is None
    assert run.put(replace(run.created, clog_id="other")) == "conflicting_runnable_intent"

    assert changes(before, run.state) <= BOOKKEEPING


@pytest.mark.parametrize("kind", sorted(facts.KINDS.keys() - {"run_created"}))
def test_a_fact_before_the_beginning_is_malformed(kind: str) -> None:
    required = dict.fromkeys(facts.required_fields(kind), "x")
    others = {"lease_us": 1, "from_seq": 1, "at_rev": 1, "seq": 1, "writes": [], "items": 1, "graph": {"nodes": []}}
    numbers = {name: value for name, value in others.items() if name in required}
    state = RunState(run_id="r1")

    after = evolve(state, facts.from_value(kind, {**required, **numbers}), NOON)

    assert [reason for reason, _ in after.anomalies] == ["malformed_entry"]
    assert not after.exists


@pytest.mark.parametrize(
    ("command", "refusal"),
    [
        (commands.Claim(claim_id="c1", claim_token_hash="h", owner_id="w", lease_us=1), "unknown_runnable_intent"),
        (commands.Heartbeat(claim_id="c1", claim_token_hash="h", lease_us=1), "stale_claim"),
        (commands.Signal(signal_id="m1"), "not_found"),
        (commands.Cancel(), "not_found"),
        (commands.Pause(step="a"), "not_found"),
        (commands.Resolve(action="resume"), "not_found"),
    ],
    ids=lambda part: type(part).__name__ if isinstance(part, commands.Command) else part,
)
def test_a_command_to_an_unknown_run_is_refused_and_writes_nothing(command: commands.Command, refusal: str) -> None:
    decision = decide(RunState(run_id="nobody"), command, NOON)

    assert (decision.refusal, decision.facts) == (refusal, ())


def test_the_end_of_a_child_whose_parent_is_gone_is_no_error() -> None:
    decision = decide(RunState(run_id="nobody"), commands.FinishChild(child_run_id="k1", status="done"), NOON)

    assert (decision.refusal, decision.facts) == (None, ())
