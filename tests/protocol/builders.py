"""Small builders: a run whose commands go through `decide` and whose facts go through `evolve`, on a clock that the
test moves. Claims are named; `c1` is held with the hash `hash of c1`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from immutables import Map

from holdfast.protocol import commands, facts
from holdfast.protocol.commands import Command
from holdfast.protocol.decide import decide
from holdfast.protocol.decisions import Decision
from holdfast.protocol.evolve import evolve
from holdfast.protocol.facts import ROOT, Fact
from holdfast.protocol.outcomes import UNSET, Done, Outcome
from holdfast.protocol.state import RunState

MILLISECOND = 1_000
SECOND = 1_000_000
NOON = 1_700_000_000 * SECOND
LEASE = 30 * SECOND

BOOKKEEPING = frozenset({"rev", "at", "anomalies"})
"""What a fact that was not accepted still changes."""


def hash_token(claim: str) -> str:
    return f"hash of {claim}"


def fence(claim: str, key: str = ROOT) -> dict[str, Any]:
    """What every fact and command of a claim's holder carries."""
    return {"claim_id": claim, "claim_token_hash": hash_token(claim), "runnable_key": key}


def changes(before: RunState, after: RunState) -> set[str]:
    """The names of the fields in which two states differ."""
    return {name for name in RunState.__struct_fields__ if getattr(before, name) != getattr(after, name)}


def new_refusals(before: RunState, after: RunState) -> list[str]:
    """Why the facts between these states were not accepted."""
    return [reason for reason, claim in after.anomalies if (reason, claim) not in before.anomalies]


class Run:
    """One run in a test. `do` sends a command, `put` enters a fact as a journal reader would."""

    def __init__(self, **created: Any) -> None:
        self.state = RunState(run_id="r1")
        self.now = NOON
        self.entries: list[tuple[Fact, int]] = []
        self.created = facts.RunCreated(**{"session_id": "s1", "clog_id": "chat", **created})
        self.do(commands.Create(fact=self.created))

    def do(self, command: Command) -> Decision:
        """Decide, then enter what was decided."""
        decision = decide(self.state, command, self.now)
        for fact in decision.facts:
            self.put(fact)
        return decision

    def put(self, fact: Fact) -> str | None:
        """Enter a fact. Answers why it was not accepted, or None."""
        before = self.state
        self.state = evolve(before, fact, self.now)
        self.entries.append((fact, self.now))
        return next(iter(new_refusals(before, self.state)), None)

    def sleep(self, us: int) -> None:
        self.now += us

    def claim(self, claim: str = "c1", key: str = ROOT, *, lease_us: int = LEASE) -> Decision:
        return self.do(commands.Claim(**fence(claim, key), owner_id="w1", lease_us=lease_us))

    def heartbeat(self, claim: str = "c1", key: str = ROOT, *, lease_us: int = LEASE) -> Decision:
        return self.do(commands.Heartbeat(**fence(claim, key), lease_us=lease_us))

    def emit(self, *events: tuple[str, Any], claim: str = "c1", key: str = ROOT) -> Decision:
        return self.do(commands.Emit(**fence(claim, key), events=events))

    def settle(
        self, outcome: Outcome, claim: str = "c1", key: str = ROOT, *, keep: list[list[int]] | None = None
    ) -> Decision:
        return self.do(commands.Settle(**fence(claim, key), outcome=outcome, keep=keep or []))

    def release(self, claim: str = "c1", key: str = ROOT) -> Decision:
        return self.do(commands.Release(**fence(claim, key)))

    def signal(self, signal_id: str, input: Any = UNSET, **options: Any) -> Decision:
        given = {} if input is UNSET else {"has_input": True, "input": input}
        return self.do(commands.Signal(signal_id=signal_id, **given, **options))

    def cancel(self, **options: Any) -> Decision:
        return self.do(commands.Cancel(**options))

    def pause(self, step: str = "review", boundary: str = "pause", **options: Any) -> Decision:
        return self.do(commands.Pause(step=step, boundary=boundary, **options))

    def resolve(self, action: str, **options: Any) -> Decision:
        return self.do(commands.Resolve(action=action, **options))

    def start_child(self, child: str, claim: str = "c1", **options: Any) -> Decision:
        told = {"clog_id": "helper", "child_key": "k1", **options}
        return self.do(commands.StartChild(**fence(claim), child_run_id=child, **told))

    def plan(self, key: str, step: str | None = None, **options: Any) -> str | None:
        return self.put(facts.RunnablePlanned(runnable_key=key, step=step or key, **options))

    def schedule(self, key: str, step: str | None = None, **options: Any) -> str | None:
        told = {"idempotency_key": f"{key}/0", **options}
        return self.put(facts.AttemptScheduled(runnable_key=key, step=step or key, **told))

    def finish_step(self, key: str, result: Any = None, claim: str = "c1") -> str:
        """Schedule, claim and complete a step; answers the digest of its result."""
        self.schedule(key)
        self.claim(claim, key)
        self.settle(Done(result), claim, key)
        digest = self.state.runnables[key].result_digest
        assert digest is not None
        return digest

    @property
    def refusals(self) -> set[str]:
        return {reason for reason, _ in self.state.anomalies}

    def next_input(self) -> Any:
        """What the bound entry delivers to the tick."""
        assert self.state.input_rev is not None
        entry = self.entries[self.state.input_rev - 1][0]
        return getattr(entry, "input")  # noqa: B009 - every kind that can be bound has one


def idle() -> Run:
    return Run()


def pending() -> Run:
    return Run(has_input=True, input="hello")


def active() -> Run:
    run = pending()
    run.claim()
    return run


def waiting() -> Run:
    run = active()
    run.put(facts.TickSettled(**fence("c1"), outcome="wait", result_digest="d1", delay_us=SECOND))
    return run


def paused() -> Run:
    run = pending()
    run.pause()
    return run


LIVE: dict[str, Callable[[], Run]] = {
    "idle": idle,
    "pending": pending,
    "active": active,
    "waiting": waiting,
    "paused": paused,
}


def ended(status: str = "done") -> Run:
    run = pending()
    run.put(facts.RunTerminal(status=status))
    return run


def slice_of(state: RunState) -> RunState:
    """The state as rows show it to a command that did not ask for ticks."""
    return msgspec.structs.replace(state, ticks=Map())
