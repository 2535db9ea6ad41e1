"""Idempotency keys of signals and commands, one namespace for each run."""

from __future__ import annotations

import pytest

from holdfast.protocol.outcomes import Done
from tests.protocol.builders import Run, active, ended, idle, pending


def keyed(body: str = "one") -> dict[str, str]:
    return {"key": "k", "key_digest": body}


@pytest.mark.clause("C-26")
def test_the_same_key_with_the_same_body_answers_the_first_entry() -> None:
    run = idle()
    run.signal("m1", "hi", **keyed())
    rev = run.state.rev

    again = run.signal("m2", "hi", **keyed())

    assert (again.repeat_rev, again.facts, again.refusal) == (rev, (), None)
    assert len(run.state.mailbox) == 1


@pytest.mark.clause("C-26")
def test_the_same_key_with_another_body_is_refused_and_writes_nothing() -> None:
    run = idle()
    run.signal("m1", "hi", **keyed())

    other = run.signal("m2", "ho", **keyed("two"))

    assert (other.refusal, other.facts) == ("key_reused", ())


@pytest.mark.clause("C-26")
def test_a_key_is_remembered_after_the_end() -> None:
    run = active()
    run.signal("m1", "hi", **keyed())
    rev = run.state.rev
    run.settle(Done())

    assert run.signal("m2", "hi", **keyed()).repeat_rev == rev


def test_a_late_signal_remembers_its_key_too() -> None:
    run = ended()
    run.signal("m1", "late", **keyed())

    assert run.signal("m2", "late", **keyed()).repeat_rev == run.state.rev


@pytest.mark.clause("C-26")
@pytest.mark.parametrize("action", ["approve", "reject"])
def test_a_decision_with_the_same_key_has_one_effect(action: str) -> None:
    run = pending()
    run.pause("review", "approval")
    run.resolve(action, actor="ann", **keyed())
    rev = run.state.keys["k"].rev
    before = run.state

    again = run.resolve(action, actor="ann", **keyed())

    assert (again.repeat_rev, again.facts) == (rev, ())
    assert run.state is before


def test_signals_and_commands_share_the_keys_of_their_run() -> None:
    run = pending()
    run.signal("m1", **keyed("signal"))
    run.pause()

    assert run.resolve("resume", **keyed("resolve")).refusal == "key_reused"


def test_a_refused_command_leaves_its_key_free() -> None:
    run = pending()
    run.resolve("resume", **keyed())

    run.pause()

    assert run.resolve("resume", **keyed()).refusal is None


def test_without_a_key_every_signal_counts() -> None:
    run = idle()

    run.signal("m1", "hi")
    run.signal("m2", "hi")

    assert len(run.state.mailbox) == 2
    assert len(run.state.keys) == 0


def test_keys_belong_to_their_run() -> None:
    one, other = Run(), Run()
    one.signal("m1", **keyed("one"))

    assert other.signal("m1", **keyed("two")).refusal is None
