"""The state of one run: what `decide` judges and `evolve` remembers.

A `RunState` is either whole (folded from the first entry) or a slice (read from rows): the header, the work item
concerned and the heads of the collections. Both are the same type, and every rule works on both.

Times are microseconds since the epoch. A commit does not know its own instant before the database has its locks, so
a change may be evolved at `PENDING`; times counted from it are negative until `resolved` puts the instant in.

States, like facts and decisions, are values that never refer to themselves, so the cycle collector is spared them.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any, Literal

import msgspec
from immutables import Map
from msgspec.structs import replace

from holdfast.protocol.facts import ROOT

PENDING = -(1 << 62)
"""The instant of a commit in the making: before every lease's end, after no visibility."""

UNKNOWN = "?"
"""The head of a lane that nobody has looked at. No run has such an id."""

NEVER = 1 << 61
"""A work item that only a signal, a child or a person makes due."""

Status = Literal["idle", "pending", "active", "waiting", "paused", "done", "failed", "cancelled"]
TERMINAL: frozenset[str] = frozenset({"done", "failed", "cancelled"})

REASONS: frozenset[str] = frozenset(
    {
        "unknown_runnable_intent",
        "conflicting_runnable_intent",
        "attempt_not_visible",
        "active_claim",
        "stale_claim",
        "expired_claim",
        "terminal_attempt",
        "terminal_run",
        "conflicting_completion",
        "conflicting_failure",
        "result_not_completed",
        "malformed_entry",
        "active_manual_step",
        "stale_manual_resolution",
        "conflicting_child_run",
    }
)
"""Why a fact was not accepted. Stable: people and programs branch on these words."""


class Claim(msgspec.Struct, frozen=True, gc=False):
    """Someone's right to work on an item, until `lease_until`."""

    claim_id: str
    claim_token_hash: str
    owner_id: str
    lease_until: int

    def holds(self, at: int) -> bool:
        """A lease holds until just before its end; one that its own commit renews is counted from `at`."""
        return at < counted(self.lease_until, at)


class Work(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One claimable piece of a run: its next tick (`ROOT`) or a workflow step."""

    key: str = ROOT
    step: str = ""
    visible_at: int
    waiting: bool = False
    attempt: int = 0
    deliveries: int = 0
    input_rev: int | None = None
    claim: Claim | None = None
    awaits: tuple[str, ...] = ()
    """What makes it due before its time, while it waits."""
    blocked: bool = False
    """Its run waits for its lane; nobody may claim it before that."""
    handler: str = ""
    """What a worker must know to claim it, where that is more than the clog: a version of a flow."""


class Tick(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One handler call. `outcome` is None while it runs; `settled_rev` is the entry that ended it."""

    tick_id: str
    key: str = ROOT
    claimed_rev: int
    started_at: int
    outcome: str | None = None
    result_digest: str | None = None
    settled_rev: int | None = None
    kept: tuple[tuple[int, int], ...] = ()
    """Ranges of its events that stay, whatever becomes of the tick."""
    spent: tuple[str, ...] = ()
    """Which clogs have used their one read (`r:clog`) and their one write (`w:clog`)."""


class Step(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A step of a flow that has an answer, or failed attempts."""

    rev: int
    status: str
    attempt: int = 0


class Tool(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A place where a tool was asked for. `kept` survives the outcome of a tick."""

    slot: str
    tool_key: str
    name: str
    args_sha256: str
    vendor: str
    parent_id: str | None
    status: str
    rev: int
    asked_at: int
    tries: int = 0
    calls: int = 0
    kept: bool = False


class Stored(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A row of scoped storage. The revision that wrote it is its version."""

    rev: int
    at: int
    value: Any = None


class Ticket(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A run's place in its lane: the instant and the entry with which it came. The head holds the lane."""

    at: int
    rev: int
    held: bool = False


class Signal(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An input from outside. `tick_id` names the tick whose outcome consumed it."""

    seq: int
    signal_id: str
    name: str | None = None
    has_input: bool = False
    tick_id: str | None = None


class Boundary(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The open question to a person."""

    step: str
    kind: str
    rev: int
    expires_at: int | None = None
    occurrence: int = 0
    flow: bool = False
    """A flow asks: it hears any answer, a rejection too."""
    shown: str = ""
    """The fingerprint of what a person is shown."""
    proposal: str | None = None
    """The proposed edit that an approval is about."""


class Child(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A run that this run started. `status` is None until its end was recorded here.

    `on_cancel="abandon"` leaves it alone when this run is cancelled.
    """

    child_run_id: str
    clog_id: str
    child_key: str
    step: str
    started_rev: int
    status: str | None = None
    finished_rev: int | None = None
    on_cancel: str = "cancel"


class Runnable(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A workflow step's way: planned → scheduled → completed or failed → applied.

    A map goes from scheduled to `mapping`; its items have no results of their own beside it.
    """

    key: str
    step: str
    planned_rev: int | None = None
    scheduled_rev: int | None = None
    intent_digest: str | None = None
    status: str = "planned"
    result_digest: str | None = None
    result_rev: int | None = None
    applied_rev: int | None = None
    skipped: bool = False
    map_key: str = ""
    """Of an item: the map it belongs to."""
    items: int | None = None
    """Of a map: how many items it has, which one comes next, and how many have no result yet."""
    next_item: int = 0
    remaining: int = 0


class KeyUse(msgspec.Struct, frozen=True, gc=False):
    """A caller's idempotency key and the entry it made."""

    body_digest: str
    rev: int
    run_id: str = ""


class Refusal(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An anomaly: which fact was not accepted, and where it stands."""

    reason: str
    entry_kind: str
    rev: int
    runnable_key: str = ROOT
    claim_id: str = ""
    step: str = ""


class RunState(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One run at one revision."""

    run_id: str
    session_id: str = ""
    user_id: str = "local"
    clog_id: str = ""
    queue: str = "default"
    mode: str = "session"
    lane: str | None = None
    priority: int = 0
    max_attempts: int = 3
    backoff_us: int = 1_000_000
    backoff_max_us: int = 60_000_000
    max_deliveries: int = 5
    resumable: bool = True
    parent_run_id: str | None = None
    created_digest: str = ""
    created_key: tuple[str, str] | None = None

    status: Status = "idle"
    rev: int = 0
    at: int = 0
    attempt: int = 0
    deliveries: int = 0
    input_rev: int | None = None
    output_rev: int | None = None
    ended_rev: int | None = None
    wake_at: int | None = None
    last_error: str | None = None
    error_kind: str | None = None
    cancel_requested_at: int | None = None
    created_at: int | None = None
    started_at: int | None = None
    finished_at: int | None = None
    boundary: Boundary | None = None
    ticket: Ticket | None = None
    flow: bool = False
    definition: str | None = None
    """The fingerprint of the workflow that the run follows, and the entry that holds its graph."""
    definition_rev: int | None = None
    undoing: bool = False
    spoken: bool = False
    """It has said something in its session's conversation, or was spoken to."""
    deleted: bool = False

    work: Map[str, Work] = Map()
    mailbox: tuple[int, ...] = ()
    signals: Map[int, Signal] = Map()
    signal_ids: Map[str, int] = Map()
    ticks: Map[str, Tick] = Map()
    children: Map[str, Child] = Map()
    child_ids: Map[tuple[str, str, str], str] = Map()
    runnables: Map[str, Runnable] = Map()
    keys: Map[str, KeyUse] = Map()
    anomalies: Map[tuple[str, str], Refusal] = Map()
    steps: Map[tuple[str, int], Step] = Map()
    tools: Map[str, Tool] = Map()
    storage: Map[tuple[str, str, str], Stored] = Map()
    """Rows of run and tick scope, by (clog, tick, row); the tick is empty in run scope."""

    lane_head: str = ""
    """Known to a slice only: the run that stands first in this run's lane."""
    shared: Map[str, str] = Map()
    """Known to a slice only: versions of rows that several runs share, by their names."""

    @property
    def exists(self) -> bool:
        return self.created_at is not None

    @property
    def terminal(self) -> bool:
        return self.status in TERMINAL

    def open_children(self) -> tuple[Child, ...]:
        return tuple(child for child in self.children.values() if child.status is None)

    def live_claims(self, now: int) -> tuple[Claim, ...]:
        """The claims whose holders may still act."""
        return tuple(work.claim for work in self.work.values() if work.claim and work.claim.holds(now))

    def with_work(self, work: Work) -> RunState:
        """The item as it is now; the run's own counters mirror its own item."""
        state = replace(self, work=self.work.set(work.key, work))
        if work.key != ROOT:
            return state
        return replace(state, attempt=work.attempt, deliveries=work.deliveries, input_rev=work.input_rev)

    def without_work(self, key: str) -> RunState:
        return replace(self, work=self.work.delete(key))

    def refuse(self, refusal: Refusal) -> RunState:
        """Nothing changes but `anomalies`, where the first of each (reason, claim) stays."""
        where = (refusal.reason, refusal.claim_id)
        return self if where in self.anomalies else replace(self, anomalies=self.anomalies.set(where, refusal))

    def resolved(self, at: int) -> RunState:
        """The state once the instant of its commit is known."""
        return _resolve_state(self, at)


def counted(moment: int, at: int) -> int:
    """The time itself, or, if it was counted from `PENDING`, the same distance from `at`."""
    return moment if moment >= 0 else moment - PENDING + at


_MOMENTS = ("at", "wake_at", "cancel_requested_at", "created_at", "started_at", "finished_at")


_moments = attrgetter(*_MOMENTS)


def _resolve_state(state: RunState, at: int) -> RunState:
    changed: dict[str, object] = {}
    for name, moment in zip(_MOMENTS, _moments(state), strict=True):
        if moment is not None and moment < 0:
            changed[name] = counted(moment, at)
    if state.boundary and state.boundary.expires_at is not None:
        changed["boundary"] = replace(state.boundary, expires_at=counted(state.boundary.expires_at, at))
    for work in state.work.values():
        if work.visible_at < 0 or (work.claim and work.claim.lease_until < 0):
            state = replace(state, work=state.work.set(work.key, _resolve_work(work, at)))
    if state.ticket and state.ticket.at < 0:
        changed["ticket"] = replace(state.ticket, at=counted(state.ticket.at, at))
    for where, stored in state.storage.items() if state.storage else ():
        if stored.at < 0:
            state = replace(state, storage=state.storage.set(where, replace(stored, at=counted(stored.at, at))))
    for tool in state.tools.values() if state.tools else ():
        if tool.asked_at < 0:
            state = replace(state, tools=state.tools.set(tool.slot, replace(tool, asked_at=counted(tool.asked_at, at))))
    for tick in state.ticks.values():
        if tick.started_at < 0:
            state = replace(
                state, ticks=state.ticks.set(tick.tick_id, replace(tick, started_at=counted(tick.started_at, at)))
            )
    return replace(state, **changed)


def _resolve_work(work: Work, at: int) -> Work:
    claim = work.claim and replace(work.claim, lease_until=counted(work.claim.lease_until, at))
    return replace(work, visible_at=counted(work.visible_at, at), claim=claim)
