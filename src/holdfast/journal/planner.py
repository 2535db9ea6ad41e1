"""Commands as intentions: the one loop decide → commit → evolve, in the form the committer runs it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from holdfast.errors import Conflict, InvalidEntry
from holdfast.journal import rows
from holdfast.journal.entries import line_of
from holdfast.protocol import facts
from holdfast.protocol.beginning import created
from holdfast.protocol.commands import (
    CallEndpoint,
    ClaimCommand,
    Command,
    Create,
    FinishChild,
    RecordStep,
    Recover,
    Resolve,
    Settle,
    TakeSignal,
)
from holdfast.protocol.decide import decide
from holdfast.protocol.decisions import Decision
from holdfast.protocol.evolve import evolve
from holdfast.protocol.facts import ROOT, Fact
from holdfast.protocol.flows import RECEIVE
from holdfast.protocol.graphs import map_of
from holdfast.protocol.lanes import its_turn
from holdfast.protocol.ledger import audit_row
from holdfast.protocol.state import RunState
from holdfast.protocol.storage import SHARED, ClogWrites, is_accepted_write
from holdfast.protocol.tools import AnswerTool, RequestTool
from holdfast.store import Changes, Fence, Member, NewEntry, Plan, Row, Slice, SliceRequest, Statement

PlanFunction = Callable[[RunState, int, int], Plan[RunState]]


class Limits(msgspec.Struct, frozen=True):
    max_body_bytes: int = 8 << 20


class Executed(NamedTuple):
    """What became of a command: the decision, the run after it, and where its first fact stands."""

    decision: Decision
    state: RunState
    at: int | None
    first_rev: int


class RunPlanner:
    """How the committer sees runs: rows in, states between, rows out."""

    def open(self, run_id: str, seen: Slice) -> RunState:
        return rows.open_state(run_id, seen)

    def head(self, state: RunState) -> int:
        return state.rev

    def member(self, before: RunState, after: RunState, plans: Sequence[Plan[RunState]]) -> Member:
        return member(before, after, plans)

    def resolved(self, state: RunState, at: int) -> RunState:
        return state.resolved(at)


def member(before: RunState, after: RunState, plans: Sequence[Plan[RunState]]) -> Member:
    """The run's share of a commit: every plan's entries, and the rows that all of them together changed."""
    whole = plans[0] if len(plans) == 1 else _together(plans)
    is_still = before.exists and not after.deleted and rows.is_still(before, after)
    return Member(
        gone=after.deleted,
        plain=is_still or (before.exists and rows.is_plain(before, after)),
        run_id=after.run_id,
        expected_rev=before.rev,
        run=() if is_still else rows.moving_row(after),
        # Created and deleted in one commit: there never is a row.
        created=None if before.exists or after.deleted else rows.fixed_row(after),
        entries=whole.entries,
        changes=_with(rows.changes(before, after), whole.changes),
        fences=whole.fences,
        statements=whole.statements,
        guard=whole.guard,
    )


def _together(plans: Sequence[Plan[RunState]]) -> Plan[RunState]:
    changed = Changes(puts={}, drops={})
    for plan in plans:
        _with(changed, plan.changes)
    return Plan(
        after=plans[-1].after,
        entries=[entry for plan in plans for entry in plan.entries],
        fences=list(dict.fromkeys(fence for plan in plans for fence in plan.fences)),
        changes=changed,
        statements=[statement for plan in plans for statement in plan.statements],
        guard=next((plan.guard for plan in plans if plan.guard is not None), None),
    )


def _with(changed: Changes, more: Changes) -> Changes:
    for name, extra in more.puts.items():
        changed.puts.setdefault(name, []).extend(extra)
    for name, extra in more.drops.items():
        changed.drops.setdefault(name, []).extend(extra)
    return changed


def request_for(run_id: str, command: Command) -> SliceRequest:
    """The part of the run that this command is judged on."""
    # Most ticks end, most runs are created, and most steps recorded like this.
    if type(command) is Settle and _is_plain(command):
        return SliceRequest(run_id, command.claim_id)
    if type(command) is Create and command.key is None and command.fact.lane is None:
        return SliceRequest(run_id, session_id=command.fact.session_id)
    if type(command) is RecordStep and command.key is None and command.runnable_key == ROOT:
        return SliceRequest(run_id, command.claim_id, step=command.name, occurrence=str(command.occurrence))
    if type(command) is FinishChild:
        # A thousand children that end must not each be shown the others.
        return SliceRequest(run_id, only_child=command.child_run_id)
    scope = f"run:{run_id}"
    if isinstance(command, Create):
        scope = f"user:{command.fact.user_id}"
    created = command.fact if isinstance(command, Create) else None
    written = command.staged.storage if isinstance(command, Settle | CallEndpoint) else ()
    return SliceRequest(
        run_id=run_id,
        claim_id=getattr(command, "claim_id", "") or getattr(command, "tick_id", ""),
        runnable_key=getattr(command, "runnable_key", ""),
        child_run_id=getattr(command, "child_run_id", ""),
        scope=scope if command.key is not None else "",
        key=command.key or "",
        session_id=created.session_id if created else "",
        lane=(created.lane or "") if created else "",
        storage="versions" if written else "",
        shared=_shared_names(written),
        step=_step_name(command),
        occurrence=str(getattr(command, "occurrence", "")),
        awaited=_awaited(command),
        runnables=_runnables(command),
        planner="all" if isinstance(command, Settle) and command.plan and command.plan.looks else "",
        whole=isinstance(command, Recover),
    )


def _is_plain(command: Settle) -> bool:
    """The end of a tick that is judged by the claim alone, as most are."""
    others = command.runnable_key or command.staged.storage or command.awaits or command.plan or command.key
    return not others


def _step_name(command: Command) -> str:
    match command:
        case RecordStep(name=name):
            return name
        case TakeSignal(name=name):
            return f"{RECEIVE}{name or ''}"
        case RequestTool(slot=slot) | AnswerTool(slot=slot):
            return slot
        case _:
            return ""


def _awaited(command: Command) -> str:
    """The signals and children that decide whether a flow goes on, as a JSON list."""
    match command:
        case TakeSignal(name=name):
            return json.dumps([name or ""])
        case Settle(awaits=awaits) if awaits:
            return json.dumps([what.split(":", 1)[1] for what in awaits])
        case _:
            return ""


def _runnables(command: Command) -> str:
    """The workflow steps that a step's end is judged on, as a JSON list: its map, what follows, what that waits for."""
    key = getattr(command, "runnable_key", ROOT)
    plan = command.plan if isinstance(command, Settle) else None
    names = {map_of(key)} - {""}
    for node in plan.graph.successors(map_of(key) or key) if plan else ():
        names |= {node.name, *node.after}
    return json.dumps(sorted(names)) if names or plan else ""


def _shared_names(written: Sequence[ClogWrites]) -> str:
    """The rows that these writes share with other runs, as a JSON list; nothing if there are none."""
    names = {write.name for part in written for write in part.writes if write.scope in SHARED}
    return json.dumps(sorted(names)) if names else ""


def plan_command(
    command: Command,
    limits: Limits,
    *,
    closes: tuple[str, str] | None = None,
    guard: Statement | None = None,
) -> PlanFunction:
    """Decide, then remember. `closes` names the handoff (source, kind) that this command answers."""

    def plan(state: RunState, now: int, at: int) -> Plan[RunState]:
        decision = decide(state, command, now)
        after, entries = _remember(state, decision.facts, at, limits)
        if entries and after.ticket is not None:
            after, entered = _remember(after, its_turn(after), at, limits)
            entries += entered
        fenced = isinstance(command, ClaimCommand) and decision.refusal is None and decision.repeat_rev is None
        return Plan(
            after=after,
            entries=entries,
            fences=_fences(command) if fenced and _holds_already(state, command) else [],
            changes=_more_rows(state, decision, closes if entries else None, at),
            statements=_statements(command, decision) if fenced or isinstance(command, Resolve) else [],
            guard=guard,
            answer=decision,
        )

    return plan


def _statements(command: Command, decision: Decision) -> list[Statement]:
    """What commits with this command, if it is carried out at all."""
    if isinstance(command, RecordStep | Resolve) and decision.refusal is None and decision.facts:
        return list(command.statements)
    return []


def plan_facts(given: Sequence[tuple[Fact, NewEntry]], expected_rev: int | None) -> PlanFunction:
    """Low-level entries as their caller wrote them; a fact that cannot be accepted stays as an anomaly."""

    def plan(state: RunState, now: int, at: int) -> Plan[RunState]:
        if expected_rev is not None and expected_rev != state.rev:
            raise Conflict(
                f"run:{state.run_id} is at revision {state.rev}, not {expected_rev}; read it, then decide again"
            )
        if not state.exists and state.created_digest:
            raise Conflict(f"run {state.run_id} was deleted, and an id is never used again", code="id_reused")
        if not state.exists and not isinstance(given[0][0], facts.RunCreated):
            raise InvalidEntry(f"run:{state.run_id} does not exist; its first entry must be a run_created")
        after = state
        shared: dict[str, Row | None] = {}
        changed = Changes(puts={}, drops={})
        calls: list[Row] = []
        for fact, _ in given:
            before, after = after, evolve(after, fact, at)
            if is_accepted_write(fact, before, after):
                shared |= rows.shared_rows(after, fact, after.rev)
            elif isinstance(fact, facts.OutboxEnqueued) and not before.terminal:
                changed.puts.setdefault("outbox", []).append(rows.outbox_row(after, fact, at))
            calls += filter(None, [audit_row(before, fact, after, at)])
        if calls:
            changed.puts["tool_calls"] = calls
        _share(changed, shared)
        return Plan(after=after, entries=[entry for _, entry in given], changes=changed)

    return plan


def _remember(state: RunState, decided: Sequence[Fact], at: int, limits: Limits) -> tuple[RunState, list[NewEntry]]:
    entries: list[NewEntry] = []
    for fact in decided:
        entry = line_of(fact, max_bytes=limits.max_body_bytes)
        entries.append(entry)
        if type(fact) is facts.RunCreated and fact.lane is None and not state.exists:
            state = created(state, fact, at, entry.digest.hex())
        else:
            state = evolve(state, fact, at)
    return state, entries


def _fences(command: Any) -> list[Fence]:
    return [Fence(command.runnable_key, command.claim_id, command.claim_token_hash)]


def _holds_already(state: RunState, command: Any) -> bool:
    """A claim being taken over is not yet held, so there is nothing to fence with."""
    work = state.work.get(command.runnable_key)
    return work is not None and work.claim is not None and work.claim.claim_id == command.claim_id


_NO_ROWS = Changes(puts={}, drops={})
_WITH_ROWS = frozenset({facts.StorageWritten, facts.OutboxEnqueued, facts.ToolRequested, facts.ToolAnswered})


def _more_rows(state: RunState, decision: Decision, closes: tuple[str, str] | None, at: int) -> Changes:
    """Rows that belong to no run alone: handoffs, shared storage, the outbox."""
    if not (closes or decision.handoffs) and _WITH_ROWS.isdisjoint(map(type, decision.facts)):
        return _NO_ROWS
    changed = Changes(puts={}, drops={})
    shared: dict[str, Row | None] = {}
    for rev, fact in enumerate(decision.facts, start=state.rev + 1):
        if isinstance(fact, facts.StorageWritten):
            shared |= rows.shared_rows(state, fact, rev)
        elif isinstance(fact, facts.OutboxEnqueued):
            changed.puts.setdefault("outbox", []).append(rows.outbox_row(state, fact, at))
        elif isinstance(fact, facts.ToolRequested | facts.ToolAnswered):
            calls = filter(None, [audit_row(state, fact, evolve(state, fact, at), at)])
            changed.puts.setdefault("tool_calls", []).extend(calls)
    _share(changed, shared)
    if decision.handoffs:
        changed.puts["handoffs"] = [
            (handoff.target_run_id, state.run_id, handoff.kind, state.rev + handoff.fact + 1)
            for handoff in decision.handoffs
        ]
    if closes:
        changed.drops["handoffs"] = [(state.run_id, *closes)]
    return changed


def _share(changed: Changes, shared: Mapping[str, Row | None]) -> None:
    if cleared := [(name,) for name, row in shared.items() if row is None]:
        changed.drops["shared_storage"] = cleared
    if written := [row for row in shared.values() if row is not None]:
        changed.puts["shared_storage"] = written
