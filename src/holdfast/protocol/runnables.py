"""Workflow steps: how the facts about them are folded.

A map's items are counted, not listed: the map knows how many there are, which one comes next and how many have no
result, so that the ten-thousandth item costs what the tenth does.
"""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.protocol import facts, ledger
from holdfast.protocol.facts import ROOT
from holdfast.protocol.graphs import UNDO, item_key
from holdfast.protocol.judging import close_tick, judge_result, refuse
from holdfast.protocol.state import NEVER, Runnable, RunState, Work
from holdfast.protocol.values import fingerprint

MAPPED = "map"
"""The digest of a map's result: it is what its items' results are."""
RESTS = frozenset({"wait", "continue"})
"""How a step may end its tick without a result."""


def started(state: RunState, fact: facts.WorkflowStarted, at: int) -> RunState:
    if state.definition is not None:
        same = state.definition == fact.fingerprint
        return state if same else refuse(state, fact, "conflicting_runnable_intent")
    return replace(state, definition=fact.fingerprint, definition_rev=state.rev)


def planned(state: RunState, fact: facts.RunnablePlanned, at: int) -> RunState:
    known = state.runnables.get(fact.runnable_key)
    if fact.runnable_key == ROOT:
        return refuse(state, fact, "malformed_entry")
    if known and known.step != fact.step:
        return refuse(state, fact, "conflicting_runnable_intent")
    if known and known.planned_rev is not None:
        return state
    runnable = known or Runnable(key=fact.runnable_key, step=fact.step)
    return _with_runnable(state, replace(runnable, planned_rev=state.rev))


def scheduled(state: RunState, fact: facts.AttemptScheduled, at: int) -> RunState:
    if fact.runnable_key == ROOT:
        return _look_again(state, fact, at)
    intent = fingerprint([fact.step, fact.idempotency_key, fact.attempt, fact.input, fact.delay_us])
    known = state.runnables.get(fact.runnable_key)
    if known and known.intent_digest == intent:
        return state
    if known and (known.intent_digest is not None or known.step != fact.step):
        return refuse(state, fact, "conflicting_runnable_intent")
    if fact.map_key:
        group = state.runnables.get(fact.map_key)
        if group is None or fact.runnable_key != item_key(group.key, group.next_item):
            return refuse(state, fact, "unknown_runnable_intent")
        state = _with_runnable(state, replace(group, next_item=group.next_item + 1))
    runnable = known or Runnable(key=fact.runnable_key, step=fact.step, map_key=fact.map_key)
    intended = replace(runnable, status="scheduled", scheduled_rev=state.rev, intent_digest=intent)
    work = Work(
        key=fact.runnable_key,
        step=fact.step,
        visible_at=at + fact.delay_us,
        waiting=fact.waiting,
        attempt=fact.attempt,
        input_rev=state.rev,
    )
    return _with_runnable(state, intended).with_work(work)


def _look_again(state: RunState, fact: facts.AttemptScheduled, at: int) -> RunState:
    """The planner of a workflow has to look. One that is due, or just looking, sees this anyway."""
    if state.definition is None:
        return refuse(state, fact, "malformed_entry")
    return state if ROOT in state.work else state.with_work(Work(visible_at=at))


def completed(state: RunState, fact: facts.AttemptCompleted, at: int) -> RunState:
    runnable = state.runnables.get(fact.runnable_key)
    if runnable is None:
        return refuse(state, fact, "unknown_runnable_intent")
    verdict = judge_result(state, fact, at)
    if verdict:
        return state if verdict == "repeat" else refuse(state, fact, verdict)
    state = ledger.close(state, fact.runnable_key)
    state = close_tick(state, fact.claim_id, "completed", fact.result_digest).without_work(fact.runnable_key)
    done = replace(
        runnable, status="completed", result_digest=fact.result_digest, result_rev=state.rev, skipped=fact.skipped
    )
    group = state.runnables.get(runnable.map_key)
    if group is None:
        return _with_runnable(state, done)
    # An item is part of its map at once; only the map itself is applied.
    return _with_runnable(_with_runnable(state, replace(done, applied_rev=state.rev)), _one_less(group, state.rev))


def _one_less(group: Runnable, rev: int) -> Runnable:
    remaining = max(group.remaining - 1, 0)
    if remaining or group.status != "mapping":
        return replace(group, remaining=remaining)
    return replace(group, remaining=0, status="completed", result_digest=MAPPED, result_rev=rev)


def expanded(state: RunState, fact: facts.MapExpanded, at: int) -> RunState:
    runnable = state.runnables.get(fact.runnable_key)
    if runnable is None:
        return refuse(state, fact, "unknown_runnable_intent")
    verdict = judge_result(state, fact, at)
    if verdict:
        return state if verdict == "repeat" else refuse(state, fact, verdict)
    state = close_tick(state, fact.claim_id, "expanded", fact.result_digest).without_work(fact.runnable_key)
    group = replace(runnable, status="mapping", items=fact.items, remaining=fact.items)
    if not fact.items:
        group = replace(group, status="completed", result_digest=MAPPED, result_rev=state.rev)
    return _with_runnable(state, group)


def failed(state: RunState, fact: facts.AttemptFailed, at: int) -> RunState:
    runnable = state.runnables.get(fact.runnable_key)
    if runnable is None:
        return refuse(state, fact, "unknown_runnable_intent")
    verdict = judge_result(state, fact, at)
    if verdict:
        conflict = "conflicting_failure" if verdict == "conflicting_completion" else verdict
        return state if verdict == "repeat" else refuse(state, fact, conflict)
    work = state.work[fact.runnable_key]
    state = close_tick(state, fact.claim_id, "failed", fact.result_digest)
    if fact.retry_delay_us is not None:
        visible_at = at + fact.retry_delay_us
        again = replace(work, claim=None, attempt=work.attempt + 1, deliveries=0, visible_at=visible_at, waiting=False)
        return _with_runnable(state, replace(runnable, status="retry_scheduled")).with_work(again)
    state = ledger.close(state.without_work(work.key), work.key)
    state = _with_runnable(state, replace(runnable, status="failed", result_rev=state.rev))
    group = state.runnables.get(runnable.map_key)
    if group is None or group.status == "failed":
        return state
    return _with_runnable(state, replace(group, status="failed", result_rev=state.rev))


def rested(state: RunState, fact: facts.TickSettled, at: int) -> RunState:
    """A step has no result yet, and comes back to it: at once or later."""
    if fact.outcome not in RESTS or fact.runnable_key not in state.runnables:
        return refuse(state, fact, "malformed_entry")
    verdict = judge_result(state, fact, at)
    if verdict:
        return state if verdict == "repeat" else refuse(state, fact, verdict)
    visible_at = at if fact.outcome == "continue" else wakes_at(fact, at)
    work = replace(
        state.work[fact.runnable_key],
        claim=None,
        deliveries=0,
        visible_at=visible_at,
        waiting=fact.outcome == "wait",
    )
    state = ledger.close(state, fact.runnable_key)
    return close_tick(state, fact.claim_id, fact.outcome, fact.result_digest).with_work(work)


def wakes_at(fact: facts.TickSettled, at: int) -> int:
    """When a sleep ends by itself."""
    if fact.until_us is not None:
        return fact.until_us
    return at + fact.delay_us if fact.delay_us is not None else NEVER


def applied(state: RunState, fact: facts.RunnableApplied, at: int) -> RunState:
    runnable = state.runnables.get(fact.runnable_key)
    if runnable is None:
        return refuse(state, fact, "unknown_runnable_intent")
    if runnable.status != "completed":
        return refuse(state, fact, "result_not_completed")
    if runnable.result_digest != fact.result_digest:
        return refuse(state, fact, "conflicting_completion")
    if runnable.applied_rev is not None:
        return state
    return _with_runnable(state, replace(runnable, applied_rev=state.rev))


def compensation_begun(state: RunState, fact: facts.CompensationBegun, at: int) -> RunState:
    if state.definition is None:
        return refuse(state, fact, "malformed_entry")
    state = replace(state, undoing=True)
    for key, work in state.work.items():
        if work.claim is None and is_withdrawn(state, key):
            state = withdraw(state, key)
    return state


def is_withdrawn(state: RunState, key: str) -> bool:
    """Is this work that a workflow which is being undone does not begin any more?"""
    return state.undoing and key != ROOT and not key.startswith(UNDO)


def withdraw(state: RunState, key: str) -> RunState:
    state = state.without_work(key)
    if key not in state.runnables:
        return state
    return _with_runnable(state, replace(state.runnables[key], status="withdrawn"))


def _with_runnable(state: RunState, runnable: Runnable) -> RunState:
    return replace(state, runnables=state.runnables.set(runnable.key, runnable))
