"""A run's state as rows and back: the only place that knows both the protocol and the tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any, cast

import msgspec
from immutables import Map

from holdfast.protocol.facts import OutboxEnqueued, StorageWritten
from holdfast.protocol.state import (
    Boundary,
    Child,
    Claim,
    KeyUse,
    Refusal,
    Runnable,
    RunState,
    Signal,
    Step,
    Stored,
    Tick,
    Ticket,
    Tool,
    Work,
)
from holdfast.protocol.storage import SHARED, name_of
from holdfast.protocol.values import canonical
from holdfast.store import Changes, Row, Slice

_HEADER = (
    *("session_id", "user_id", "clog_id", "queue", "mode", "lane", "priority", "max_attempts", "backoff_us"),
    *("backoff_max_us", "max_deliveries", "parent_run_id", "created_at", "status", "rev", "at", "attempt"),
    *(
        "deliveries",
        "input_rev",
        "output_rev",
        "ended_rev",
        "wake_at",
        "last_error",
        "error_kind",
        "cancel_requested_at",
    ),
    *("started_at", "finished_at", "definition", "definition_rev"),
)


def open_state(run_id: str, seen: Slice) -> RunState:
    """The slice of the run that these rows show."""
    keys = Map({row["key"]: KeyUse(row["body_digest"], row["rev"], row["run_id"]) for row in seen.keys})
    if seen.run is None:
        return RunState(run_id=run_id, keys=keys, created_digest=seen.first_digest or "", lane_head=_lane_head(seen))
    run = seen.run
    signals = [_signal(row) for row in (*seen.signals, *seen.awaited)]
    children = [_child(row) for row in seen.children]
    return RunState(
        run_id=run_id,
        **{name: run[name] for name in _HEADER},
        resumable=bool(run["resumable"]),
        flow=bool(run["flow"]),
        undoing=bool(run["undoing"]),
        spoken=bool(run["spoken"]),
        tools=Map({row["slot"]: _tool(row) for row in seen.tools}),
        steps=Map({(row["name"], row["occurrence"]): _step(row) for row in seen.steps}),
        boundary=_boundary(run),
        created_digest=seen.first_digest or "",
        work=Map({row["key"]: _work(row, run["clog_id"]) for row in seen.work}),
        mailbox=tuple(sorted(signal.seq for signal in signals if signal.tick_id is None)),
        signals=Map({signal.seq: signal for signal in signals}),
        signal_ids=Map({signal.signal_id: signal.seq for signal in signals}),
        ticks=Map({row["tick_id"]: _tick(row) for row in seen.ticks}),
        children=Map({child.child_run_id: child for child in children}),
        child_ids=Map({(child.step, child.clog_id, child.child_key): child.child_run_id for child in children}),
        runnables=Map({row["key"]: _runnable(row) for row in seen.runnables}),
        keys=keys,
        anomalies=Map({(row["reason"], row["claim_id"]): _refusal(row) for row in seen.anomalies}),
        storage=Map(
            {
                (row["clog_id"], row["tick_id"], row["row_id"]): Stored(rev=row["rev"], at=row["at"])
                for row in seen.storage
            }
        ),
        ticket=next((Ticket(at=row["at"], rev=row["rev"], held=bool(row["held"])) for row in seen.tickets), None),
        lane_head=_lane_head(seen),
        shared=Map({row["name"]: f"{row['run_id']}:{row['rev']}" for row in seen.shared}),
    )


def _lane_head(seen: Slice) -> str:
    return next((row["run_id"] for row in seen.lane), "")


def fixed_row(state: RunState) -> Row:
    """The part of the run's row that its creation fixes."""
    return (
        state.run_id,
        state.session_id,
        state.user_id,
        state.clog_id,
        state.queue,
        state.mode,
        state.lane,
        state.priority,
        state.max_attempts,
        state.backoff_us,
        state.backoff_max_us,
        state.max_deliveries,
        int(state.resumable),
        state.parent_run_id,
        state.created_at,
    )


def moving_row(state: RunState) -> Row:
    """The part of the run's row that every commit rewrites."""
    boundary = state.boundary
    return (
        int(state.spoken),
        state.status,
        state.rev,
        state.at,
        state.input_rev,
        state.wake_at,
        state.attempt,
        state.deliveries,
        state.output_rev,
        state.ended_rev,
        state.last_error,
        state.error_kind,
        state.cancel_requested_at,
        state.started_at,
        state.finished_at,
        boundary.step if boundary else None,
        boundary.kind if boundary else None,
        boundary.rev if boundary else None,
        boundary.expires_at if boundary else None,
        boundary.occurrence if boundary else None,
        int(boundary.flow) if boundary else None,
        boundary.shown if boundary else None,
        boundary.proposal if boundary else None,
        int(state.flow),
        state.definition,
        state.definition_rev,
        int(state.undoing),
    )


_resting = attrgetter(
    *("spoken", "status", "input_rev", "wake_at", "attempt", "deliveries", "output_rev", "ended_rev", "last_error"),
    *("error_kind", "cancel_requested_at", "started_at", "finished_at", "boundary", "flow", "definition"),
    *("definition_rev", "undoing"),
)


def is_still(before: RunState, after: RunState) -> bool:
    """Does nothing of the row differ but its revision and instant? Steps and events of a run leave it so."""
    return before.status == after.status and _resting(before) == _resting(after)


def is_plain(before: RunState, after: RunState) -> bool:
    """Does the row differ only in what most commits change? Those that end a plain tick are the most."""
    return (
        before.boundary == after.boundary
        and before.flow == after.flow
        and before.definition == after.definition
        and before.definition_rev == after.definition_rev
        and before.undoing == after.undoing
        and before.spoken == after.spoken
    )


def all_rows(state: RunState) -> dict[str, list[Row]]:
    """Every row that a whole state implies, by table: what a rebuild writes and what fsck compares."""
    if state.deleted:
        return {"runs": [], **{name: [] for name in _TABLES}, "tombstones": [_tombstone_row(state)]}
    tables = {name: [make(state, item) for item in items(state)] for name, (items, make) in _TABLES.items()}
    return {"runs": [(*fixed_row(state), *moving_row(state))], **tables, "tombstones": []}


def changes(before: RunState, after: RunState) -> Changes:
    """The rows that differ between two states of one slice. What neither shows stays untouched."""
    found = Changes(puts={}, drops={})
    if after.deleted:
        # The run's row goes, and everything that hangs on it.
        return Changes(puts={"tombstones": [_tombstone_row(after)]}, drops={})
    for name, old, new in zip(_COLLECTIONS, _collections(before), _collections(after), strict=True):
        if old is new:
            continue
        _, make = _TABLES[name]
        puts = []
        for key, item in new.items():
            known = old.get(key)
            if known is not item and known != item:
                puts.append(make(after, item))
        drops = [key for key in old if key not in new] if old else ()
        if puts:
            found.puts[name] = puts
        if drops:
            # A tick's id is its whole key.
            found.drops[name] = [(key,) if name == "ticks" else (after.run_id, key) for key in drops]
    _change_storage(before, after, found)
    _change_steps(before, after, found)
    _change_ticket(before, after, found)
    _change_keys(before, after, found)
    return found


def _change_keys(before: RunState, after: RunState, found: Changes) -> None:
    is_new = after.created_key is not None and not before.exists
    if before.keys is after.keys and not is_new:
        return
    keys = [_key_row(after, item) for item in after.keys.items() if item[0] not in before.keys]
    if is_new:
        keys.append(_created_key_row(after))
    if keys:
        found.puts["keys"] = keys


def _change_storage(before: RunState, after: RunState, found: Changes) -> None:
    if before.storage is after.storage:
        return
    puts = [_stored_row(after, item) for item in after.storage.items() if before.storage.get(item[0]) != item[1]]
    drops = [(after.run_id, *where) for where in before.storage if where not in after.storage]
    if puts:
        found.puts["run_storage"] = puts
    if drops:
        found.drops["run_storage"] = drops


def _change_ticket(before: RunState, after: RunState, found: Changes) -> None:
    if after.ticket is not None and after.ticket != before.ticket:
        found.puts["lane_tickets"] = [_ticket_row(after, after.ticket)]
    elif after.ticket is None and before.ticket is not None:
        found.drops["lane_tickets"] = [(after.run_id,)]


def _change_steps(before: RunState, after: RunState, found: Changes) -> None:
    if before.steps is not after.steps:
        puts = [_step_row(after, item) for item in after.steps.items() if before.steps.get(item[0]) != item[1]]
        found.puts.update({"steps": puts} if puts else {})


def _step_row(state: RunState, item: tuple[tuple[str, int], Step]) -> Row:
    where, step = item
    return (state.run_id, *where, step.rev, step.status, step.attempt)


def _tool_row(state: RunState, tool: Tool) -> Row:
    called = (tool.tool_key, tool.name, tool.args_sha256, tool.vendor, tool.parent_id)
    stands = (tool.status, tool.rev, tool.asked_at, tool.tries, tool.calls, int(tool.kept))
    return (state.run_id, tool.slot, *called, *stands)


def _stored_row(state: RunState, item: tuple[tuple[str, str, str], Stored]) -> Row:
    where, stored = item
    return (state.run_id, *where, stored.rev, stored.at, canonical(stored.value))


def shared_rows(state: RunState, fact: StorageWritten, rev: int) -> dict[str, Row | None]:
    """The rows outside this run that the entry at `rev` changed, by their names; None for one that it cleared."""
    found: dict[str, Row | None] = {}
    for write in fact.writes:
        if write.scope in SHARED:
            name = name_of(state, write.scope, fact.clog_id)
            session_id = state.session_id if write.scope == "session" else None
            row = (name, session_id, state.run_id, rev, canonical(write.value))
            found[name] = None if write.cleared else row
    return found


def outbox_row(state: RunState, fact: OutboxEnqueued, at: int, *, refusal: str | None = None) -> Row:
    """What the outbox has to deliver; with a refusal, what it must not: a dead letter that says why."""
    sent = (fact.target_space, canonical(fact.payload), fact.payload_sha)
    told = ("pending", 0, at, at, None, None, 0) if refusal is None else ("dead", 0, at, at, at, refusal, 1)
    key = fact.idempotency_key if refusal is None else None
    return (fact.outbox_id, state.run_id, state.user_id, *sent, key, *told)


def _ticket_row(state: RunState, ticket: Ticket) -> Row:
    return (state.run_id, state.session_id, state.lane, ticket.at, ticket.rev, int(ticket.held))


def _tombstone_row(state: RunState) -> Row:
    return (state.run_id, state.session_id, state.user_id, state.rev, state.at)


def _work_row(state: RunState, work: Work) -> Row:
    claim = work.claim
    return (
        state.run_id,
        work.key,
        state.queue,
        work.handler or state.clog_id,
        state.priority,
        work.step,
        work.visible_at,
        int(work.waiting),
        work.attempt,
        work.deliveries,
        work.input_rev,
        claim.owner_id if claim else None,
        claim.claim_id if claim else None,
        claim.claim_token_hash if claim else None,
        claim.lease_until if claim else None,
        int(work.blocked),
        canonical(list(work.awaits)) if work.awaits else "",
    )


def _tick_row(state: RunState, tick: Tick) -> Row:
    return (
        tick.tick_id,
        state.run_id,
        tick.key,
        tick.claimed_rev,
        tick.started_at,
        tick.outcome,
        tick.result_digest,
        tick.settled_rev,
        " ".join(tick.spent),
        " ".join(f"{first}-{last}" for first, last in tick.kept),
    )


def _signal_row(state: RunState, signal: Signal) -> Row:
    return (state.run_id, signal.seq, signal.signal_id, signal.name, int(signal.has_input), signal.tick_id)


def _child_row(state: RunState, child: Child) -> Row:
    return (
        state.run_id,
        child.child_run_id,
        child.clog_id,
        child.child_key,
        child.step,
        child.started_rev,
        child.status,
        child.finished_rev,
        child.on_cancel,
    )


def _runnable_row(state: RunState, runnable: Runnable) -> Row:
    return (
        state.run_id,
        runnable.key,
        runnable.step,
        runnable.planned_rev,
        runnable.scheduled_rev,
        runnable.intent_digest,
        runnable.status,
        runnable.result_digest,
        runnable.result_rev,
        runnable.applied_rev,
        int(runnable.skipped),
        runnable.map_key,
        runnable.items,
        runnable.next_item,
        runnable.remaining,
    )


def _refusal_row(state: RunState, refusal: Refusal) -> Row:
    return (
        state.run_id,
        refusal.reason,
        refusal.claim_id,
        refusal.entry_kind,
        refusal.rev,
        refusal.runnable_key,
        refusal.step,
    )


def _key_row(state: RunState, item: tuple[str, KeyUse]) -> Row:
    key, use = item
    return (f"run:{state.run_id}", key, use.body_digest, state.run_id, use.rev)


def _created_key_row(state: RunState) -> Row:
    assert state.created_key is not None
    key, body_digest = state.created_key
    return (f"user:{state.user_id}", key, body_digest, state.run_id, 1)


def _all_keys(state: RunState) -> list[Row]:
    created = [_created_key_row(state)] if state.created_key else []
    return created + [_key_row(state, item) for item in state.keys.items()]


_Make = Callable[[RunState, Any], Row]
_TABLES: dict[str, tuple[Callable[[RunState], Iterable[Any]], _Make]] = {
    "work": (lambda state: state.work.values(), _work_row),
    "ticks": (lambda state: state.ticks.values(), _tick_row),
    "signals": (lambda state: state.signals.values(), _signal_row),
    "children": (lambda state: state.children.values(), _child_row),
    "runnables": (lambda state: state.runnables.values(), _runnable_row),
    "anomalies": (lambda state: state.anomalies.values(), _refusal_row),
    "keys": (_all_keys, lambda _, row: cast(Row, row)),
    "steps": (lambda state: state.steps.items(), _step_row),
    "tools": (lambda state: state.tools.values(), _tool_row),
    "run_storage": (lambda state: state.storage.items(), _stored_row),
    "lane_tickets": (lambda state: filter(None, [state.ticket]), _ticket_row),
}
_COLLECTIONS = ("work", "ticks", "signals", "children", "runnables", "anomalies", "tools")
_collections = attrgetter(*_COLLECTIONS)


def _work(row: dict[str, Any], clog_id: str) -> Work:
    claim = None
    if row["claim_id"] is not None:
        claim = Claim(row["claim_id"], row["claim_token_hash"], row["owner_id"], row["lease_until"])
    return Work(
        key=row["key"],
        step=row["step"],
        visible_at=row["visible_at"],
        waiting=bool(row["waiting"]),
        attempt=row["attempt"],
        deliveries=row["deliveries"],
        input_rev=row["input_rev"],
        claim=claim,
        blocked=bool(row["blocked"]),
        handler="" if row["clog_id"] == clog_id else row["clog_id"],
        awaits=tuple(msgspec.json.decode(row["awaits"])) if row["awaits"] else (),
    )


def _tick(row: dict[str, Any]) -> Tick:
    names = ("tick_id", "key", "claimed_rev", "started_at", "outcome", "result_digest", "settled_rev")
    return Tick(**{name: row[name] for name in names}, spent=tuple(row["spent"].split()), kept=_ranges(row["kept"]))


def _signal(row: dict[str, Any]) -> Signal:
    return Signal(
        seq=row["seq"],
        signal_id=row["signal_id"],
        name=row["name"],
        has_input=bool(row["has_input"]),
        tick_id=row["tick_id"],
    )


def _child(row: dict[str, Any]) -> Child:
    names = ("child_run_id", "clog_id", "child_key", "step", "started_rev", "status", "finished_rev", "on_cancel")
    return Child(**{name: row[name] for name in names})


def _runnable(row: dict[str, Any]) -> Runnable:
    names = ("key", "step", "planned_rev", "scheduled_rev", "intent_digest", "status")
    results = ("result_digest", "result_rev", "applied_rev", "map_key", "items", "next_item", "remaining")
    return Runnable(**{name: row[name] for name in (*names, *results)}, skipped=bool(row["skipped"]))


def _ranges(text: str) -> tuple[tuple[int, int], ...]:
    pairs = (part.split("-") for part in text.split())
    return tuple((int(first), int(last)) for first, last in pairs)


def _step(row: dict[str, Any]) -> Step:
    return Step(rev=row["rev"], status=row["status"], attempt=row["attempt"])


def _tool(row: dict[str, Any]) -> Tool:
    names = ("slot", "tool_key", "name", "args_sha256", "vendor", "parent_id", "status", "rev", "asked_at")
    return Tool(**{name: row[name] for name in (*names, "tries", "calls")}, kept=bool(row["kept"]))


def _refusal(row: dict[str, Any]) -> Refusal:
    return Refusal(**{name: row[name] for name in ("reason", "entry_kind", "rev", "runnable_key", "claim_id", "step")})


def _boundary(run: dict[str, Any]) -> Boundary | None:
    if run["boundary_step"] is None:
        return None
    return Boundary(
        step=run["boundary_step"],
        kind=run["boundary_kind"],
        rev=run["boundary_rev"],
        expires_at=run["boundary_expires_at"],
        occurrence=run["boundary_occurrence"],
        flow=bool(run["boundary_flow"]),
        shown=run["boundary_shown"],
        proposal=run["boundary_proposal"],
    )
