"""Long lives fold in a time that grows with their length, not with its square."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.protocol import facts
from holdfast.protocol.evolve import fold
from holdfast.protocol.facts import Fact
from holdfast.protocol.state import RunState
from tests.protocol.builders import LEASE, NOON, fence

MANY = 20_000
CREATED = facts.RunCreated(session_id="s1", clog_id="chat", has_input=True)


def lived(entries: Iterator[Fact]) -> RunState:
    return fold(RunState(run_id="r1"), ((fact, NOON + number) for number, fact in enumerate(entries)))


def claimed(claim: str) -> facts.AttemptClaimed:
    return facts.AttemptClaimed(**fence(claim), owner_id="w1", lease_us=LEASE)


def settled(claim: str, outcome: str) -> facts.TickSettled:
    return facts.TickSettled(**fence(claim), outcome=outcome, result_digest=claim)


def test_a_tick_of_many_events_folds() -> None:
    def entries() -> Iterator[Fact]:
        yield CREATED
        yield claimed("c1")
        yield from (facts.Event(type="text", data=number, tick_id="c1") for number in range(MANY))

    state = lived(entries())

    assert (state.status, state.rev, len(state.anomalies)) == ("active", MANY + 2, 0)


def test_a_run_of_many_ticks_folds() -> None:
    def entries() -> Iterator[Fact]:
        yield CREATED
        for number in range(MANY // 2):
            yield claimed(f"c{number}")
            yield settled(f"c{number}", "continue")

    state = lived(entries())

    assert (state.status, len(state.ticks), len(state.anomalies)) == ("pending", MANY // 2, 0)


def test_a_long_mailbox_is_emptied_in_order() -> None:
    signals = MANY // 3

    def entries() -> Iterator[Fact]:
        yield CREATED
        yield claimed("c0")
        yield from (facts.SignalReceived(signal_id=f"m{number}") for number in range(signals))
        yield settled("c0", "ok")
        for number in range(1, signals + 1):
            yield claimed(f"c{number}")
            yield settled(f"c{number}", "ok")

    state = lived(entries())

    assert (state.status, state.mailbox, len(state.anomalies)) == ("idle", (), 0)
    assert [signal.tick_id for _, signal in sorted(state.signals.items())] == [f"c{n}" for n in range(1, signals + 1)]


def test_a_workflow_of_many_steps_folds() -> None:
    def entries() -> Iterator[Fact]:
        yield CREATED
        for number in range(MANY // 5):
            key = f"s{number}"
            held = fence(f"c{number}", key)
            yield facts.RunnablePlanned(runnable_key=key, step=key)
            yield facts.AttemptScheduled(runnable_key=key, step=key, idempotency_key=key)
            yield facts.AttemptClaimed(**held, owner_id="w1", lease_us=LEASE)
            yield facts.AttemptCompleted(**held, result_digest="d")
            yield facts.RunnableApplied(runnable_key=key, result_digest="d")

    state = lived(entries())

    assert (len(state.runnables), list(state.work), len(state.anomalies)) == (MANY // 5, [""], 0)
