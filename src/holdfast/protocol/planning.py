"""The planner of workflows: what a step's end makes ready, decided in the commit of that end.

Joins are judged by rows that the commit is fenced on, so of parents that end side by side exactly one finds its join
ready. What one step cannot know alone (the beginning, a failure, the end) is the business of the run's own tick,
which is scheduled whenever nothing else would go on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Literal

from msgspec.structs import replace

from holdfast.protocol import commands, facts
from holdfast.protocol.backoff import Backoff
from holdfast.protocol.decisions import Decision, capped, end, microseconds, sleep, unsay
from holdfast.protocol.facts import ROOT, Fact
from holdfast.protocol.graphs import CHANGED, UNDO, Graph, Node, item_key, map_of, step_of
from holdfast.protocol.outcomes import Continue, Done, Fail, Outcome, Retry, Wait
from holdfast.protocol.runnables import MAPPED
from holdfast.protocol.state import Runnable, RunState

OPEN_MAX = 100
"""How many work items a run may have open: a wide map must not crowd out its neighbours."""


def settle_step(state: RunState, command: commands.Settle, outcome: Outcome, result_digest: str) -> Decision:
    """The end of a step's tick, with everything that follows from it for the run."""
    fence: dict[str, Any] = {
        "runnable_key": command.runnable_key,
        "claim_id": command.claim_id,
        "claim_token_hash": command.claim_token_hash,
        "result_digest": result_digest,
    }
    outcome = _meant(state, command, outcome)
    if isinstance(outcome, Retry | Fail):
        return _failed(state, command, outcome, fence)
    if isinstance(outcome, Wait | Continue):
        rests = {"outcome": "wait", **sleep(outcome)} if isinstance(outcome, Wait) else {"outcome": "continue"}
        return Decision(facts=(facts.TickSettled(**fence, **rests),))
    if command.plan is not None and command.plan.items is not None:
        return Decision(facts=(facts.MapExpanded(**fence, items=command.plan.items), *_expanded(state, command)))
    completed = facts.AttemptCompleted(
        **fence,
        result=outcome.output if isinstance(outcome, Done) else None,
        skipped=command.plan is not None and command.plan.skipped,
        repaired=command.repaired,
    )
    return Decision(facts=(completed, *_after(state, command, result_digest)))


def _meant(state: RunState, command: commands.Settle, outcome: Outcome) -> Outcome:
    """A step cannot rest for ever, and while a workflow is being undone not at all."""
    if isinstance(outcome, Wait | Continue) and not _is_wanted(state, command.runnable_key):
        return Fail("the workflow is being undone, and this step was not done", kind="withdrawn")
    if isinstance(outcome, Wait) and outcome.until is None and outcome.seconds is None:
        return Retry("nothing wakes a step; say how long it waits, Wait(seconds=…)", kind="invalid_outcome")
    return outcome


def _is_wanted(state: RunState, key: str) -> bool:
    return not state.undoing or key.startswith(UNDO)


def _failed(state: RunState, command: commands.Settle, outcome: Retry | Fail, fence: dict[str, Any]) -> Decision:
    """Try again; or, for good: end the run if nothing is to be done about it, else let its own tick look."""
    key, plan, error = command.runnable_key, command.plan, capped(outcome.error)
    failed = facts.AttemptFailed(**fence, error=error, error_kind=outcome.kind, repaired=command.repaired)
    attempt = state.work[key].attempt + 1
    max_attempts, backoff = _policy(state, command)
    if isinstance(outcome, Retry) and attempt < max_attempts and _is_wanted(state, key):
        delay_us = backoff.delay_us(attempt) if outcome.after is None else microseconds(outcome.after)
        return Decision(facts=(replace(failed, retry_delay_us=delay_us), *unsay(state, command)))
    node = plan.graph.by_name.get(step_of(key)) if plan else None
    has_more = plan is None or plan.graph.has_undo or (node is not None and node.on_error is not None)
    if has_more and outcome.kind != CHANGED:
        return Decision(facts=(failed, *look_again(state)))
    terminal = facts.RunTerminal(status="failed", error=ended_by(step_of(key), error), error_kind=outcome.kind)
    return end(state, [failed], terminal)


def ended_by(step: str, error: str) -> str:
    return capped(f"step {step} failed: {error}")


def _policy(state: RunState, command: commands.Settle) -> tuple[int, Backoff]:
    """How often the step may be tried: its own policy if its workflow is known, else the run's."""
    node = command.plan and command.plan.graph.by_name.get(step_of(command.runnable_key))
    policy: Node | RunState = node or state
    return policy.max_attempts, Backoff(policy.backoff_us, policy.backoff_max_us)


def _after(state: RunState, command: commands.Settle, result_digest: str) -> Iterator[Fact]:
    """What a result makes ready. Without a plan the result waits for a planner that has one."""
    key, plan = command.runnable_key, command.plan
    if plan is None:
        if state.definition is not None:
            yield from look_again(state)
        return
    open_before = len(state.work) - 1
    group = state.runnables.get(map_of(key))
    if group is not None and group.step in plan.graph.by_name:
        following = list(_after_item(state, group, plan.graph, open_before))
    else:
        applied = facts.RunnableApplied(runnable_key=key, result_digest=result_digest)
        following = [applied, *_made_ready(state, plan.graph, key, open_before)]
    yield from following
    if not open_before and not any(isinstance(fact, facts.AttemptScheduled) for fact in following):
        yield from look_again(state)


def _after_item(state: RunState, group: Runnable, graph: Graph, open_before: int) -> Iterator[Fact]:
    if group.status != "mapping":
        return
    if group.remaining > 1:
        if not state.undoing:
            held = _open_items(state, group) - 1
            yield from _items(group, graph.by_name[group.step], held=held, room=OPEN_MAX - open_before)
        return
    yield facts.RunnableApplied(runnable_key=group.key, result_digest=MAPPED)
    yield from _made_ready(state, graph, group.key, open_before)


def _open_items(state: RunState, group: Runnable) -> int:
    return sum(1 for key in state.work if map_of(key) == group.key)


def _made_ready(state: RunState, graph: Graph, name: str, open_before: int) -> Iterator[Fact]:
    """The steps that waited for this one alone, and those that waited for room."""
    if state.undoing:
        return
    backlog = [item for item in state.runnables.values() if _is_unscheduled(item)]
    ready = [node for node in graph.successors(name) if _is_ready(state, node, besides=name)]
    yield from _scheduled(graph, backlog, ready, room=OPEN_MAX - open_before)


def _is_ready(state: RunState, node: Node, *, besides: str = "") -> bool:
    if node.name in state.runnables:
        return False
    return all(parent == besides or _is_applied(state, parent) for parent in node.after)


def _is_applied(state: RunState, name: str) -> bool:
    runnable = state.runnables.get(name)
    return runnable is not None and runnable.applied_rev is not None


def _is_unscheduled(item: Runnable) -> bool:
    return item.status == "planned" and item.scheduled_rev is None


def _scheduled(graph: Graph, backlog: Iterable[Runnable], ready: Iterable[Node], *, room: int) -> Iterator[Fact]:
    """Intents as far as there is room, the oldest plans first; what finds none stays planned."""
    waiting = sorted(backlog, key=lambda item: item.planned_rev or 0)
    nodes = [graph.by_name[item.step] for item in waiting if item.step in graph.by_name]
    for node in ready:
        yield facts.RunnablePlanned(runnable_key=node.name, step=node.name)
        nodes.append(node)
    for node in nodes[: max(room, 0)]:
        yield intent(node.name, node.name, delay_us=node.delay_us, waiting=node.kind == "wait")


def intent(key: str, step: str, **fields: Any) -> facts.AttemptScheduled:
    return facts.AttemptScheduled(runnable_key=key, step=step, idempotency_key=key, **fields)


def is_left_half_done(state: RunState) -> bool:
    """Is there something that only the planner would go on with? A step that waits for room is none of it."""
    steps = state.runnables.values()
    if not state.work or any(item.status == "completed" and item.applied_rev is None for item in steps):
        return True
    return len(state.work) < OPEN_MAX and any(_is_unscheduled(item) for item in steps)


def look_again(state: RunState) -> tuple[Fact, ...]:
    """Nothing else would go on: the run's own tick has to look. One that is due or looking sees this anyway."""
    return () if state.definition is None or ROOT in state.work else (intent(ROOT, ""),)


def _expanded(state: RunState, command: commands.Settle) -> Iterator[Fact]:
    assert command.plan is not None
    graph, items = command.plan.graph, command.plan.items or 0
    open_before = len(state.work) - 1
    group = replace(state.runnables[command.runnable_key], items=items, remaining=items)
    if items and not state.undoing:
        yield from _items(group, graph.by_name[group.step], held=0, room=OPEN_MAX - open_before)
        return
    ready: list[Fact] = []
    if not items:
        ready.append(facts.RunnableApplied(runnable_key=group.key, result_digest=MAPPED))
        ready += _made_ready(state, graph, group.key, open_before)
    yield from ready
    if not open_before and not any(isinstance(fact, facts.AttemptScheduled) for fact in ready):
        yield from look_again(state)


def _items(group: Runnable, node: Node, *, held: int, room: int) -> Iterator[Fact]:
    """The next items, so that as many are open as the map and the run may have."""
    # One at least, however little room there is: nobody else would give the map its next items.
    wanted = min((node.limit or OPEN_MAX) - held, max(room, 0 if held else 1))
    last = min(group.next_item + max(wanted, 0), group.items or 0)
    for index in range(group.next_item, last):
        yield intent(item_key(group.key, index), group.step, map_key=group.key)


def look(state: RunState, command: commands.Settle, result_digest: str) -> Decision:
    """The run's own tick: begin, repair what was left half done, undo what failed, and plan what is ready."""
    plan = command.plan
    assert plan is not None
    decided: list[Fact] = []
    if state.definition is None:
        decided.append(facts.WorkflowStarted(version=plan.version, fingerprint=plan.fingerprint, graph=plan.graph))
    failed = unhandled(plan.graph, state)
    others = any(key != ROOT for key in state.work)
    if state.undoing:
        decided += () if others else _next_undone(plan.graph, state)
    elif failed is not None:
        others = any(work.claim for key, work in state.work.items() if key != ROOT)
        decided.append(facts.CompensationBegun(step=failed.step))
        decided += () if others else _next_undone(plan.graph, state)
    else:
        decided += _repaired_and_ready(plan.graph, state)
    goes_on = others or any(isinstance(fact, facts.AttemptScheduled) for fact in decided)
    settled = facts.TickSettled(
        claim_id=command.claim_id,
        claim_token_hash=command.claim_token_hash,
        outcome="ok" if goes_on else "continue",
        result_digest=result_digest,
        flow=True,
    )
    return Decision(facts=(*decided, settled))


def _repaired_and_ready(graph: Graph, state: RunState) -> Iterator[Fact]:
    """Missing intents first, so that nothing planned is lost; then results, in the order in which they came."""
    room = OPEN_MAX - sum(1 for key in state.work if key != ROOT)
    backlog = [item for item in state.runnables.values() if _is_unscheduled(item)]
    yield from _scheduled(graph, backlog, [], room=room)
    for item in state.runnables.values():
        if item.status == "mapping" and item.step in graph.by_name and not _open_items(state, item):
            # Cut off between two commits of its own: nothing of it is open, and it has items left.
            yield from _items(item, graph.by_name[item.step], held=0, room=room)
    unapplied = [item for item in state.runnables.values() if item.status == "completed" and item.applied_rev is None]
    for item in sorted(unapplied, key=lambda item: item.result_rev or 0):
        yield facts.RunnableApplied(runnable_key=item.key, result_digest=item.result_digest or "")
        state = replace(state, runnables=state.runnables.set(item.key, replace(item, applied_rev=state.rev)))
    ready = [node for node in graph.nodes if _begins(graph, state, node)]
    yield from _scheduled(graph, [], ready, room=room - len(backlog))


def _begins(graph: Graph, state: RunState, node: Node) -> bool:
    if node.name in graph.routes:
        failed_into = (each for each in graph.nodes if each.on_error == node.name and _has_failed(state, each.name))
        return node.name not in state.runnables and any(failed_into)
    return _is_ready(state, node)


def _has_failed(state: RunState, name: str) -> bool:
    return name in state.runnables and state.runnables[name].status == "failed"


def unhandled(graph: Graph, state: RunState) -> Runnable | None:
    """The first step that failed for good and has no error route."""
    failed = [
        state.runnables[node.name] for node in graph.nodes if node.on_error is None and _has_failed(state, node.name)
    ]
    return min(failed, key=lambda item: item.result_rev or 0, default=None)


def verdict(graph: Graph, state: RunState) -> Literal["open", "done", "failed"]:
    """What the run's own tick has to say: that there is more to do, or how the run ends."""
    others = any(key != ROOT for key in state.work)
    if unhandled(graph, state) is not None:
        waits = others or not state.undoing or _undoable(graph, state)
        return "open" if waits and graph.has_undo else "failed"
    if state.definition is None or others or any(True for _ in _repaired_and_ready(graph, state)):
        return "open"
    return "done"


def _next_undone(graph: Graph, state: RunState) -> Iterator[Fact]:
    """One after the other: the step that was completed last is undone first."""
    latest = max(_undoable(graph, state), key=lambda item: item.result_rev or 0, default=None)
    if latest is not None:
        yield facts.RunnablePlanned(runnable_key=f"{UNDO}{latest.step}", step=latest.step)
        yield intent(f"{UNDO}{latest.step}", latest.step)


def _undoable(graph: Graph, state: RunState) -> list[Runnable]:
    """Steps that have a result and a compensation, and are not undone yet."""
    return [
        state.runnables[node.name]
        for node in graph.nodes
        if node.has_undo
        and _is_applied(state, node.name)
        and not state.runnables[node.name].skipped
        and f"{UNDO}{node.name}" not in state.runnables
    ]
