"""What Hypothesis draws: values, facts with any content, wild lives, and histories that commands could have made.

A life is played with dice: every move is a few bytes, and what they mean depends on where the run stands. That keeps
drawing cheap, and shrinking drops moves.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from holdfast.moments import from_us
from holdfast.protocol import commands, facts
from holdfast.protocol.commands import Command
from holdfast.protocol.decide import decide
from holdfast.protocol.decisions import Decision
from holdfast.protocol.evolve import evolve, fold
from holdfast.protocol.facts import ROOT, Fact
from holdfast.protocol.graphs import Graph, Node
from holdfast.protocol.outcomes import UNSET, Continue, Done, Fail, Ok, Outcome, Retry, Wait
from holdfast.protocol.state import RunState
from tests.protocol.builders import NOON, SECOND, fence, hash_token

T = TypeVar("T")
law = settings(deadline=None, max_examples=150, derandomize="CI" in os.environ)

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)
dirty_texts = st.text(st.one_of(st.characters(), st.sampled_from("\0\ud800\udfff")), max_size=8)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(10**64) + 1, 10**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
)


def trees(leaves: SearchStrategy[Any], keys: SearchStrategy[str]) -> SearchStrategy[Any]:
    return st.recursive(
        leaves, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4), max_leaves=8
    )


values = trees(scalars | texts, texts)
dirty_values = trees(scalars | dirty_texts, dirty_texts)

CLAIMS = tuple(f"c{n}" for n in range(8))
STEPS = ("load", "charge")
DURATIONS = (0, 1, 5, 20)
SMALL_VALUES = (None, 0, False, "", "x", {"a": [1]})

# What a field may hold, by name, for every field of every fact; pools are small so that facts meet.
POOLS: dict[str, tuple[Any, ...]] = {
    "action": ("resume", "approve", "reject", "expire", "shrug"),
    "actor": (None, "ann"),
    "args": SMALL_VALUES,
    "args_sha256": ("a",),
    "arguments_json": (None, "1"),
    "at_rev": (0, 3),
    "attempt": (0, 1, 2),
    "awaits": ([], ["signal:a"], ["child:k1", "approval:load"]),
    "backoff_max_us": DURATIONS,
    "backoff_us": DURATIONS,
    "boundary": ("pause", "approval", "pause", "approval", "wall"),
    "call_id": ("a",),
    "calls": (0, 0, 1, 2),
    "child_key": ("a", "b"),
    "child_run_id": ("k1", "k2"),
    "claim_id": CLAIMS,
    "clog_id": ("chat", "helper"),
    "comment": (None, "why not"),
    "data": SMALL_VALUES,
    "delay_us": DURATIONS,
    "edited": SMALL_VALUES,
    "entry_kind": ("event", "tick_settled"),
    "error": ("broken",),
    "error_kind": (None, "oops"),
    "expires_us": (None, 5),
    "fingerprint": ("f1", "f1", "f2"),
    "flow": (False, True),
    "force": (False, True),
    "from_seq": (0, 3),
    "graph": (Graph(nodes=tuple(Node(name=step) for step in STEPS)),),
    "has_input": (True, True, False),
    "idempotency_key": ("a", "b"),
    "input": (*SMALL_VALUES, {"text": "hi"}),
    "interrupt": (False, True),
    "irreversible": (False, True),
    "items": (0, 1, 2),
    "keep": ([], [[1, 2]]),
    "kept": (False, True),
    "key": (None, None, "a", "b"),
    "key_digest": ("a", "b", None),
    "lane": (None, "main"),
    "lease_us": (5, 20, 20, 20, 0),
    "map_key": ("", "", "load"),
    "max_attempts": (0, 1, 3),
    "max_deliveries": (0, 1, 3),
    "metadata": ({}, {"why": "because"}),
    "method": ("sum",),
    "mode": ("session", "single"),
    "name": (None, "a"),
    "occurrence": (0, 0, 1),
    "on_cancel": ("cancel", "abandon", "cancel", "shrug"),
    "outcome": ("ok", "continue", "wait", "retry", "ok", "continue", "wait", "retry", "done"),
    "outbox_id": ("o1", "o2"),
    "outcome_json": (None, "1"),
    "outcome_sha256": (None, "a"),
    "output": SMALL_VALUES,
    "owner_id": ("w1",),
    "parent_id": (None, "p1"),
    "parent": (None, facts.Parent(run_id="p1", child_key="k")),
    "payload": SMALL_VALUES,
    "payload_sha": ("a",),
    "priority": (-1, 0, 1),
    "queue": ("default",),
    "reason": ("expired", "released", "retry", "shrug"),
    "repaired": (False, True),
    "replayed_from": (None, "r0"),
    "result": SMALL_VALUES,
    "result_digest": ("a", "b"),
    "resumable": (True, False),
    "retry_delay_us": (None, *DURATIONS),
    "runnable_key": (ROOT, *STEPS, "load[0]", "load[1]"),
    "said": ([], [[2, 3]]),
    "seq": (2, 3, 4, 5, 6),
    "session_id": ("s1",),
    "shown": SMALL_VALUES,
    "shown_sha": (None, "a"),
    "slot": ("|a", "|b", "load|a"),
    "signal_id": ("m1", "m2", "m3", "m4"),
    "skipped": (False, True),
    "source_run_id": ("r0",),
    "spent": ([], ["r:chat"], ["r:chat", "w:helper"]),
    "start": ({}, {"input": 1}),
    "status": ("done", "failed", "cancelled", "idle"),
    "step": STEPS,
    "target_space": ("mail",),
    "tick_id": CLAIMS,
    "claim_token_hash": tuple(hash_token(claim) for claim in CLAIMS),
    "tool_key": ("a",),
    "traceparent": (None, "00-1-1-01"),
    "tries": (0, 0, 1),
    "type": ("note", "final"),
    "until_us": (None, 0, 25, 50),
    "user_id": ("local",),
    "v": (facts.VERSION,),
    "vendor": ("local",),
    "version": ("1",),
    "waiting": (False, True),
    "writes": (
        [facts.StorageWrite(scope="run", value=1)],
        [facts.StorageWrite(scope="tick", row_id="a", value="x"), facts.StorageWrite(scope="global", value=2)],
        [facts.StorageWrite(scope="run", cleared=True), facts.StorageWrite(scope="tick", cleared=True)],
    ),
}
_FREE = frozenset({"args", "data", "edited", "input", "output", "payload", "result", "shown"})
_NULLABLE = {("run_terminal", "claim_id"), ("event", "tick_id")}


_OF_FLOWS: dict[tuple[str, str], tuple[Any, ...]] = {
    ("step_recorded", "name"): ("a", "@now", "@start"),
    ("step_recorded", "result"): (*SMALL_VALUES, {"version": 1, "input": None}),
    ("tool_requested", "name"): ("search",),
    ("tool_answered", "name"): ("search",),
    ("tool_answered", "status"): ("completed", "failed", "idle"),
    ("step_recorded", "status"): ("done", "retry", "begun", "failed", "idle"),
    ("signal_taken", "step"): ("@receive:", "@receive:a"),
}


def pool(kind: str, name: str) -> tuple[Any, ...]:
    if (kind, name) in _OF_FLOWS:
        return _OF_FLOWS[kind, name]
    return (None, *POOLS[name]) if (kind, name) in _NULLABLE else POOLS[name]


def facts_of(kind: str) -> SearchStrategy[Fact]:
    """Facts of one kind with any JSON where JSON may stand."""
    cls = facts.KINDS[kind]
    names = cls.__struct_fields__
    fields = {name: values if name in _FREE else st.sampled_from(pool(kind, name)) for name in names}
    return st.builds(cls, **fields)


any_fact: SearchStrategy[Fact] = st.sampled_from(sorted(facts.KINDS)).flatmap(facts_of)


class Dice:
    """Choices from bytes; when they are used up, always the first."""

    def __init__(self, throws: bytes) -> None:
        self._throws = iter(throws)

    def pick(self, options: Sequence[T]) -> T:
        return options[next(self._throws, 0) % len(options)]

    def throws_well(self) -> bool:
        """Mostly."""
        return self.pick((True, True, True, False))


def _moves(size_max: int) -> SearchStrategy[list[bytes]]:
    """A short game or a long one; games that fail shrink to short ones."""
    move = st.binary(min_size=12, max_size=12)
    return st.lists(move, max_size=6) | st.lists(move, min_size=size_max // 2, max_size=size_max)


class Lived(NamedTuple):
    """One fact in a life, with the run before and after it."""

    before: RunState
    fact: Fact
    at: int
    after: RunState


def _live_wildly(moves: list[bytes]) -> list[Lived]:
    """Any facts in any order, at instants that jump both ways. Most lives begin with a beginning."""
    lives: list[Lived] = []
    state, over = RunState(run_id="r1"), 0
    for throws in moves:
        dice = Dice(throws)
        at = max(state.at + dice.pick((0, 0, 0, 1, 1, 5, 25, -5)), 0)
        fact = _wild_fact(state, dice)
        after = evolve(state, fact, at)
        lives.append(Lived(state, fact, at, after))
        state = after
        over += state.terminal
        if over > 4:
            break
    return lives


# What may well happen next, given what is open. Everything else happens too, only less often.
_OFTEN = ("signal_received", "attempt_scheduled", "manual_step_paused", "child_run_started", "runnable_planned")
_OF_HOLDERS = (
    *("attempt_heartbeat", "event", "tick_abandoned", "run_terminal", "step_recorded", "signal_taken"),
    *("tool_requested", "tool_requested", "tool_answered", "tool_answered"),
)


def _wild_fact(state: RunState, dice: Dice) -> Fact:
    if not state.exists and dice.throws_well():
        return _fact("run_created", state, dice)
    likely = list(_OFTEN)
    for key, work in state.work.items():
        if work.claim is None or not work.claim.holds(state.at):
            likely += ["attempt_claimed"] * 6
        else:
            likely += [
                *_OF_HOLDERS,
                *(["tick_settled"] * 8 if key == ROOT else ["attempt_completed", "attempt_failed"] * 4),
            ]
    likely += ["manual_step_resolved"] * 6 if state.boundary else []
    likely += ["runnable_applied"] * len(state.runnables)
    likely += ["child_run_finished"] * len(state.children)
    return _fact(dice.pick(dice.pick((likely, likely, likely, sorted(facts.KINDS)))), state, dice)


def _fact(kind: str, state: RunState, dice: Dice) -> Fact:
    cls = facts.KINDS[kind]
    fields = {name: dice.pick(pool(kind, name)) for name in sorted(cls.__struct_fields__, key=_fence_last)}
    held = [(work.claim.claim_id, key) for key, work in state.work.items() if work.claim]
    if "claim_token_hash" in fields and held and kind != "attempt_claimed" and dice.throws_well():
        _hold(fields, *dice.pick([pair for pair in held if (pair[1] == ROOT) == (kind == "tick_settled")] or held))
    elif kind == "attempt_claimed" and state.work and dice.throws_well():
        fields["runnable_key"] = dice.pick(sorted(state.work))
    if state.boundary and kind == "manual_step_resolved" and dice.throws_well():
        fields["step"] = state.boundary.step
    if kind == "signal_taken" and state.mailbox and dice.throws_well():
        fields["seq"] = dice.pick(state.mailbox)
    claim = fields.get("claim_id") or fields.get("tick_id")
    if "claim_token_hash" in fields and claim and dice.throws_well():
        fields["claim_token_hash"] = hash_token(claim)
    if kind == "runnable_applied" and state.runnables and dice.throws_well():
        runnable = state.runnables[dice.pick(sorted(state.runnables))]
        fields |= {"runnable_key": runnable.key, "result_digest": runnable.result_digest or "a"}
    return cls(**fields)


def _hold(fields: dict[str, Any], claim: str, key: str) -> None:
    """Make the fact one of this claim's holder."""
    name = "claim_id" if "claim_id" in fields else "tick_id"
    fields |= {name: claim, "runnable_key": key}


def _fence_last(name: str) -> tuple[bool, str]:
    """Fields that decide nothing come last, when the dice may be used up."""
    return (name in ("repaired", "v", "owner_id", "metadata", "user_id", "queue", "session_id", "error"), name)


wild_lives = _moves(40).map(_live_wildly)


class Step(NamedTuple):
    """One command in a history: the run before it, what was asked at which instant, what was decided, the run after."""

    before: RunState
    command: Command
    now: int
    decision: Decision
    after: RunState


def _live_by_commands(moves: list[bytes]) -> list[Step]:
    """Commands on a growing clock; now and then a planner adds a step."""
    state, now, over = RunState(run_id="r1"), NOON, 0
    steps: list[Step] = []
    for turn, throws in enumerate(moves):
        dice = Dice(throws)
        now += dice.pick((0, 0, 0, 0, 0, 1, 1, 1, SECOND // 2, SECOND, 2 * SECOND, 31 * SECOND))
        command = _command(state, dice, now, turn) if state.exists else _creation(dice)
        decision = decide(state, command, now)
        after = fold(state, [(fact, now) for fact in decision.facts])
        steps.append(Step(state, command, now, decision, after))
        state = fold(after, [(fact, now) for fact in _planned(after, dice)])
        over += state.terminal
        if over > 4:
            break
    return steps


def _creation(dice: Dice) -> Command:
    return commands.Create(
        fact=facts.RunCreated(
            session_id="s1",
            clog_id="chat",
            has_input=dice.pick((True, True, False)),
            mode=dice.pick(("session", "session", "single")),
            delay_us=dice.pick((0, 0, SECOND)),
            max_attempts=dice.pick((3, 1, 2)),
            max_deliveries=dice.pick((5, 1, 2)),
            resumable=dice.pick((True, True, False)),
            parent=dice.pick(POOLS["parent"]),
        )
    )


def _command(state: RunState, dice: Dice, now: int, turn: int) -> Command:
    """A command that often, not always, fits the state."""
    held = [(work.claim.claim_id, key) for key, work in state.work.items() if work.claim]
    live = [(claim.claim_id, key) for key, work in state.work.items() if (claim := work.claim) and claim.holds(now)]
    free = [key for key, work in state.work.items() if not (work.claim and work.claim.holds(now))]
    if live and dice.throws_well():
        return _of_holder(fence(*dice.pick(live)), dice, now)
    if free and not state.boundary and dice.throws_well():
        return _claim(fence(f"c{turn}", dice.pick(free)), dice)
    known = [(tick.tick_id, tick.key) for tick in state.ticks.values()]
    someone = fence(*dice.pick([*held, *known, ("nobody", ROOT)]))
    match dice.pick(("anyone", "anyone", "anyone", "anyone", "someone", "new holder")):
        case "anyone":
            return _of_anyone(state, dice)
        case "someone":
            return _of_holder(someone, dice, now)
        case _:
            return _claim(dice.pick((someone, fence(f"c{turn}", someone["runnable_key"]))), dice)


def _claim(claimant: dict[str, Any], dice: Dice) -> Command:
    return commands.Claim(**claimant, owner_id="w1", lease_us=dice.pick((30 * SECOND, SECOND)))


def _of_holder(held: dict[str, Any], dice: Dice, now: int) -> Command:
    orders = ("settle", "settle", "settle", "settle", "emit", "heartbeat", "release", "child", "step", "take", "ask")
    match dice.pick(orders):
        case "settle":
            told = {name: dice.pick(POOLS[name]) for name in ("keep", "flow")}
            return commands.Settle(
                **held, **told, outcome=_outcome(dice, now), awaits=tuple(dice.pick(POOLS["awaits"]))
            )
        case "step":
            told = {"occurrence": dice.pick((0, 1)), "status": dice.pick(("done", "retry", "failed"))}
            return commands.RecordStep(**held, **told, name="a", events=dice.pick(((), (("text", "hi"),))))
        case "take":
            return commands.TakeSignal(**held, name=dice.pick((None, "a")), occurrence=dice.pick((0, 1)))
        case "ask":
            return commands.OpenBoundary(**held, step=dice.pick(STEPS), expires_us=dice.pick((None, SECOND)))
        case "emit":
            return commands.Emit(**held, events=dice.pick(((("text", "hi"),), (("a", 1), ("b", None)), ())))
        case "heartbeat":
            return commands.Heartbeat(**held, lease_us=dice.pick((30 * SECOND, SECOND)))
        case "release":
            return commands.Release(**held)
        case _:
            child = {name: dice.pick(POOLS[name]) for name in ("child_run_id", "child_key", "clog_id")}
            return commands.StartChild(**held, **child)


def _outcome(dice: Dice, now: int) -> Outcome:
    delays: tuple[float | timedelta, ...] = (0, 0.25, timedelta(seconds=1))
    options: tuple[Outcome, ...] = (
        Ok(),
        Continue("next"),
        Continue(UNSET),
        Wait(seconds=2),
        Wait(until=from_us(now + dice.pick((-SECOND, 0, 3 * SECOND)))),
        Wait(),
        Retry("again"),
        Retry("again", after=dice.pick(delays)),
        Done(dice.pick(SMALL_VALUES)),
        Fail("broken"),
    )
    return dice.pick(options)


def _of_anyone(state: RunState, dice: Dice) -> Command:
    keyed: dict[str, Any] = {"key": dice.pick(POOLS["key"]), "key_digest": dice.pick(("a", "b"))}
    orders = ("signal", "signal", "signal", "pause", "resolve", "finish child", "cancel", "signal", "expire")
    match dice.pick(("resolve", "resolve", "resolve", *orders) if state.boundary else orders):
        case "signal":
            sent = {name: dice.pick(POOLS[name]) for name in ("has_input", "interrupt", "signal_id", "name")}
            return commands.Signal(**sent, **keyed)
        case "pause":
            told = {name: dice.pick(POOLS[name]) for name in ("step", "expires_us")}
            return commands.Pause(**told, boundary=dice.pick(("pause", "approval")))
        case "resolve":
            told = {"action": dice.pick(("resume", "approve", "reject")), "step": dice.pick((None, None, *STEPS))}
            return commands.Resolve(**told, actor=dice.pick(("ann", None)), **keyed)
        case "expire":
            return commands.ExpireBoundary()
        case "finish child":
            return commands.FinishChild(child_run_id=dice.pick(("k1", "k2")), status=dice.pick(("done", "failed")))
        case _:
            return commands.Cancel(force=dice.pick((False, False, True)))


def _planned(state: RunState, dice: Dice) -> Sequence[Fact]:
    """What a planner would add to this run, acceptable where it stands."""
    if not state.exists or state.terminal or dice.pick((True, True, False)):
        return ()
    key = dice.pick(STEPS)
    runnable = state.runnables.get(key)
    if runnable is None:
        return (
            facts.RunnablePlanned(runnable_key=key, step=key),
            facts.AttemptScheduled(runnable_key=key, step=key, idempotency_key=key),
        )
    if runnable.status == "completed" and runnable.result_digest:
        return (facts.RunnableApplied(runnable_key=key, result_digest=runnable.result_digest),)
    return ()


histories = _moves(40).map(_live_by_commands)
