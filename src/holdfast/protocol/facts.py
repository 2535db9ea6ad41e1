"""Every fact that can stand in a run's journal.

A fact is what happened, never what to do. It holds durations, not instants: the store stamps each entry with one
instant, and everything is counted from there. Fields without a default are required; `required_fields` shows them
as a table. A fact's kind is the name in `KINDS`; its body carries its version as `v`.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import msgspec

from holdfast.errors import InvalidEntry
from holdfast.protocol.graphs import Count, Duration, Graph
from holdfast.protocol.values import canonical

Instant = Annotated[int, msgspec.Meta(ge=0, le=1 << 61)]
Priority = Annotated[int, msgspec.Meta(ge=-(1 << 15), le=(1 << 15) - 1)]

VERSION = 1
ROOT = ""
"""The key of a run's own work item. Workflow steps have keys of their own."""


def _version() -> int:
    return VERSION


class Fact(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Something that happened to a run."""

    kind: ClassVar[str] = ""
    v: int = msgspec.field(default_factory=_version)


class Fenced(Fact, frozen=True, kw_only=True):
    """A fact that only the holder of a claim may add, and only while its lease lasts."""

    runnable_key: str = ROOT
    claim_id: str
    claim_token_hash: str


class Settling(Fenced, frozen=True, kw_only=True):
    """The end of a tick of a run that goes on. `traceparent` names the tick's span, where somebody collects spans."""

    result_digest: str
    traceparent: str | None = None


class Parent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Where a child run comes from."""

    run_id: str
    child_key: str
    step: str = ""
    runnable_key: str = ROOT
    attempt: Count = 0


class RunCreated(Fact, frozen=True, kw_only=True):
    """The run exists. With an input its first tick is due at once; without one it rests."""

    kind: ClassVar[str] = "run_created"
    session_id: str
    clog_id: str
    user_id: str = "local"
    queue: str = "default"
    mode: str = "session"
    lane: str | None = None
    priority: Priority = 0
    max_attempts: Count = 3
    backoff_us: Duration = 1_000_000
    backoff_max_us: Duration = 60_000_000
    max_deliveries: Count = 5
    resumable: bool = True
    delay_us: Duration = 0
    has_input: bool = False
    input: Any = None
    parent: Parent | None = None
    replayed_from: str | None = None
    key: str | None = None
    key_digest: str | None = None
    metadata: dict[str, Any] = {}
    repaired: bool = False


class AttemptClaimed(Fenced, frozen=True, kw_only=True):
    """A worker may work on the item until its lease ends. The token itself never reaches the disk."""

    kind: ClassVar[str] = "attempt_claimed"
    owner_id: str
    lease_us: Duration
    attempt: Count = 0


class AttemptHeartbeat(Fenced, frozen=True, kw_only=True):
    """The holder is alive: the lease starts anew."""

    kind: ClassVar[str] = "attempt_heartbeat"
    lease_us: Duration


class TickSettled(Settling, frozen=True, kw_only=True):
    """A tick ended and the run goes on: `ok` rests, `continue` and `retry` run again, `wait` sleeps.

    `awaits` names what ends the sleep early: `signal:<name>`, `child:<run id>`, `approval:<step>`. The run of a flow
    is woken by nothing else. A workflow step may sleep or run again too; all else that it says is a result.
    """

    kind: ClassVar[str] = "tick_settled"
    outcome: str
    has_input: bool = False
    input: Any = None
    until_us: Instant | None = None
    delay_us: Duration | None = None
    error: str | None = None
    error_kind: str | None = None
    awaits: list[str] = []
    flow: bool = False
    repaired: bool = False


class TickAbandoned(Fact, frozen=True, kw_only=True):
    """A tick ended without an outcome (`expired`, `released`) or is tried again (`retry`).

    Readers drop the handler's events from `from_seq` on that carry this tick and lie in no kept range.
    """

    kind: ClassVar[str] = "tick_abandoned"
    tick_id: str
    from_seq: Count
    reason: str
    runnable_key: str = ROOT
    claim_token_hash: str | None = None
    keep: list[list[int]] = []


class RunTerminal(Fact, frozen=True, kw_only=True):
    """The run is over. Nothing that follows changes it. With a claim it is also the end of that tick."""

    kind: ClassVar[str] = "run_terminal"
    status: str
    outcome: str | None = None
    output: Any = None
    error: str | None = None
    error_kind: str | None = None
    runnable_key: str = ROOT
    claim_id: str | None = None
    claim_token_hash: str | None = None
    result_digest: str | None = None
    repaired: bool = False


class SignalReceived(Fact, frozen=True, kw_only=True):
    """Someone sent the run an input. It waits in the mailbox until a tick consumes it."""

    kind: ClassVar[str] = "signal_received"
    signal_id: str
    name: str | None = None
    has_input: bool = False
    input: Any = None
    key: str | None = None
    key_digest: str | None = None
    interrupt: bool = False
    repaired: bool = False


class CancelRequested(Fact, frozen=True, kw_only=True):
    """Someone wants the run to stop. The first request counts."""

    kind: ClassVar[str] = "cancel_requested"
    reason: str | None = None
    actor: str | None = None
    force: bool = False
    repaired: bool = False


class ManualStepPaused(Fact, frozen=True, kw_only=True):
    """The run needs a person: `pause` waits for resume, `approval` for approve or reject."""

    kind: ClassVar[str] = "manual_step_paused"
    step: str
    boundary: str = msgspec.field(name="kind")
    metadata: dict[str, Any] = {}
    expires_us: Duration | None = None
    occurrence: Count = 0
    flow: bool = False
    repaired: bool = False


class ManualStepResolved(Fact, frozen=True, kw_only=True):
    """A person closed the open boundary, or nobody did in time. `shown_sha` is what they were shown, as a hash."""

    kind: ClassVar[str] = "manual_step_resolved"
    step: str
    action: str
    actor: str | None = None
    comment: str | None = None
    edited: Any = None
    shown_sha: str | None = None
    key: str | None = None
    key_digest: str | None = None
    repaired: bool = False


class ChildRunStarted(Fact, frozen=True, kw_only=True):
    """The run asked for a child. `start` holds what the child is created from.

    `on_cancel` is what becomes of it when this run is cancelled: `cancel`, or `abandon`, which leaves it alone.
    """

    kind: ClassVar[str] = "child_run_started"
    child_run_id: str
    clog_id: str
    child_key: str
    step: str = ""
    runnable_key: str = ROOT
    attempt: Count = 0
    start: dict[str, Any] = {}
    metadata: dict[str, Any] = {}
    on_cancel: str = "cancel"
    repaired: bool = False


class ChildRunFinished(Fact, frozen=True, kw_only=True):
    """A child of this run is over."""

    kind: ClassVar[str] = "child_run_finished"
    child_run_id: str
    status: str
    output: Any = None
    error: str | None = None


class WorkflowStarted(Fact, frozen=True, kw_only=True):
    """The run follows this graph to its end, whatever becomes of the code that declared it."""

    kind: ClassVar[str] = "workflow_started"
    version: str
    fingerprint: str
    graph: Graph


class RunnablePlanned(Fact, frozen=True, kw_only=True):
    """A workflow step will run."""

    kind: ClassVar[str] = "runnable_planned"
    runnable_key: str
    step: str
    input: Any = None


class AttemptScheduled(Fact, frozen=True, kw_only=True):
    """A planned step, or its next attempt, may be claimed after the delay.

    `map_key` names the map that it is an item of. Of a workflow's own tick it says that its planner has to look.
    """

    kind: ClassVar[str] = "attempt_scheduled"
    runnable_key: str
    step: str
    idempotency_key: str
    attempt: Count = 0
    input: Any = None
    delay_us: Duration = 0
    map_key: str = ""
    waiting: bool = False


class AttemptCompleted(Settling, frozen=True, kw_only=True):
    """A step has a result; a `skipped` one was not wanted, and has none."""

    kind: ClassVar[str] = "attempt_completed"
    result: Any = None
    skipped: bool = False
    repaired: bool = False


class MapExpanded(Settling, frozen=True, kw_only=True):
    """A map knows its items: it has its result once each of them has one."""

    kind: ClassVar[str] = "map_expanded"
    items: Count


class AttemptFailed(Settling, frozen=True, kw_only=True):
    """A step's attempt failed; with `retry_delay_us` the next attempt is already due then."""

    kind: ClassVar[str] = "attempt_failed"
    error: str
    error_kind: str | None = None
    retry_delay_us: Duration | None = None
    repaired: bool = False


class RunnableApplied(Fact, frozen=True, kw_only=True):
    """A step's durable result became part of the run."""

    kind: ClassVar[str] = "runnable_applied"
    runnable_key: str
    result_digest: str


class CompensationBegun(Fact, frozen=True, kw_only=True):
    """The workflow failed at this step: what it did is undone, the latest first. What nobody holds is withdrawn."""

    kind: ClassVar[str] = "compensation_begun"
    step: str


class LiveWakeupEmitted(Fact, frozen=True, kw_only=True):
    """A notifier was told that work is due. A hint, never the truth."""

    kind: ClassVar[str] = "live_wakeup_emitted"
    runnable_key: str = ROOT


class Anomaly(Fact, frozen=True, kw_only=True):
    """A command was refused. The reason is one of `state.REASONS`; nothing else changed."""

    kind: ClassVar[str] = "anomaly"
    reason: str
    entry_kind: str
    runnable_key: str = ROOT
    claim_id: str = ""
    step: str = ""


class Event(Fact, frozen=True, kw_only=True):
    """Something a handler, or the library on its behalf, shows to whoever watches the run."""

    kind: ClassVar[str] = "event"
    type: str
    data: Any = None
    tick_id: str | None = None
    runnable_key: str = ROOT
    claim_token_hash: str | None = None
    attempt: Count = 0
    repaired: bool = False


class RunForked(Fact, frozen=True, kw_only=True):
    """This run begins as a copy of another's first entries. A claim that was open there is open no more.

    Ticks are the original's. Children that were not finished there are none of this run's; those that it needs are
    started after this fact.
    """

    kind: ClassVar[str] = "run_forked"
    source_run_id: str
    at_rev: Count


class StorageWrite(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One row as it is from now on. Without `row_id` in scope `tick`, `cleared` means all rows of the tick."""

    scope: str
    row_id: str = ""
    value: Any = None
    cleared: bool = False


class StorageWritten(Fact, frozen=True, kw_only=True):
    """A clog changed rows of its storage, with the outcome of a tick or the return of an endpoint."""

    kind: ClassVar[str] = "storage_written"
    tick_id: str
    clog_id: str
    writes: list[StorageWrite]
    runnable_key: str = ROOT
    repaired: bool = False


class OutboxEnqueued(Fact, frozen=True, kw_only=True):
    """Something must reach the outside; the outbox delivers it."""

    kind: ClassVar[str] = "outbox_enqueued"
    tick_id: str
    outbox_id: str
    target_space: str
    payload: Any = None
    payload_sha: str
    idempotency_key: str | None = None
    repaired: bool = False


class TickBegun(Fact, frozen=True, kw_only=True):
    """Someone calls endpoints directly: a tick beside the run's own, which moves no status."""

    kind: ClassVar[str] = "tick_begun"
    tick_id: str


class EndpointCalled(Fact, frozen=True, kw_only=True):
    """An endpoint was called in a begun tick. `spent` names the reads and writes that are used up, by clog."""

    kind: ClassVar[str] = "endpoint_called"
    tick_id: str
    clog_id: str
    method: str
    spent: list[str] = []
    error: str | None = None


class LaneEntered(Fact, frozen=True, kw_only=True):
    """The run is its lane's head now; until then its work is not due."""

    kind: ClassVar[str] = "lane_entered"


class StepRecorded(Fenced, frozen=True, kw_only=True):
    """A step of a flow has its answer: a body that runs again gets it instead of running the step again.

    `status` is `done`, `failed` for good, `retry`, or `begun` for one that is about to do something irreversible.
    `said` are the ranges of the events that belong to it.
    """

    kind: ClassVar[str] = "step_recorded"
    name: str
    occurrence: Count = 0
    status: str = "done"
    result: Any = None
    error: str | None = None
    error_kind: str | None = None
    attempt: Count = 0
    said: list[list[int]] = []
    irreversible: bool = False
    repaired: bool = False


class SignalTaken(Fenced, frozen=True, kw_only=True):
    """A flow received the signal that stands at `seq`."""

    kind: ClassVar[str] = "signal_taken"
    seq: Count
    step: str
    occurrence: Count = 0


class ToolRequested(Fenced, frozen=True, kw_only=True):
    """A tool is about to run. Until it is answered nobody can tell whether it did.

    `calls` numbers the calls of its slot, `tries` how often this one was begun again; `args` is what people see of the
    arguments, `arguments_json` what the audit keeps of them.
    """

    kind: ClassVar[str] = "tool_requested"
    slot: str
    tool_key: str
    call_id: str
    name: str
    args_sha256: str
    args: Any = None
    arguments_json: str | None = None
    vendor: str = "local"
    parent_id: str | None = None
    calls: Count = 0
    tries: Count = 0
    kept: bool = False


class ToolAnswered(Fenced, frozen=True, kw_only=True):
    """A tool has `completed` or `failed`. Work that is done again gets this answer; `said` stays said.

    `shown` is what people see of a result that holds secrets.
    """

    kind: ClassVar[str] = "tool_answered"
    slot: str
    call_id: str
    name: str
    args_sha256: str
    vendor: str = "local"
    parent_id: str | None = None
    status: str
    result: Any = None
    shown: Any = None
    outcome_sha256: str | None = None
    outcome_json: str | None = None
    error: str | None = None
    error_kind: str | None = None
    said: list[list[int]] = []
    repaired: bool = False


class RunDeleted(Fact, frozen=True, kw_only=True):
    """The run is hidden from everyone but the readers of this thread."""

    kind: ClassVar[str] = "run_deleted"
    actor: str | None = None


KINDS: dict[str, type[Fact]] = {
    cls.kind: cls
    for cls in (
        RunCreated,
        AttemptClaimed,
        AttemptHeartbeat,
        TickSettled,
        TickAbandoned,
        RunTerminal,
        SignalReceived,
        CancelRequested,
        ManualStepPaused,
        ManualStepResolved,
        ChildRunStarted,
        ChildRunFinished,
        WorkflowStarted,
        RunnablePlanned,
        AttemptScheduled,
        AttemptCompleted,
        MapExpanded,
        AttemptFailed,
        RunnableApplied,
        CompensationBegun,
        LiveWakeupEmitted,
        Anomaly,
        Event,
        RunForked,
        StorageWritten,
        OutboxEnqueued,
        TickBegun,
        EndpointCalled,
        LaneEntered,
        StepRecorded,
        SignalTaken,
        ToolRequested,
        ToolAnswered,
        RunDeleted,
    )
}

_REQUIRED: dict[str, tuple[str, ...]] = {
    kind: tuple(field.encode_name for field in msgspec.structs.fields(cls) if field.required)
    for kind, cls in KINDS.items()
}
_DECODERS: dict[str, msgspec.json.Decoder[Any]] = {kind: msgspec.json.Decoder(cls) for kind, cls in KINDS.items()}


def required_fields(kind: str) -> tuple[str, ...]:
    """The fields that an entry of this kind must carry, none of them null."""
    return _REQUIRED[kind]


def encode(fact: Fact) -> str:
    """The canonical body of a fact whose values were cleaned."""
    return canonical(fact)


def decode(kind: str, body: str) -> Fact:
    """The fact in a stored body. Unknown kinds, later versions, missing fields and wrong types raise `InvalidEntry`."""
    decoder = _DECODERS.get(kind)
    if decoder is None:
        raise InvalidEntry(f"unknown kind {kind!r}; it was written by a newer version, or is not a fact of a run")
    try:
        fact: Fact = decoder.decode(body)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise InvalidEntry(f"the body of this {kind} cannot be read: {error}") from error
    return _of_known_version(fact)


def from_value(kind: str, data: Any) -> Fact:
    """The fact in a caller's value, with an error that lists every missing field."""
    if kind not in KINDS:
        raise InvalidEntry(f"unknown kind {kind!r}; a run's thread takes {', '.join(sorted(KINDS))}")
    if not isinstance(data, dict):
        raise InvalidEntry(f"the data of a {kind} must be an object, got {type(data).__name__}")
    missing = [name for name in required_fields(kind) if data.get(name) is None]
    if missing:
        raise InvalidEntry(f"this {kind} lacks {', '.join(missing)}")
    try:
        fact: Fact = msgspec.convert(data, KINDS[kind])
    except msgspec.ValidationError as error:
        raise InvalidEntry(f"this {kind} does not fit: {error}") from error
    return _of_known_version(fact)


def _of_known_version(fact: Fact) -> Fact:
    if fact.v != VERSION:
        raise InvalidEntry(f"this {fact.kind} has version {fact.v}, known is {VERSION}; upgrade holdfast to read it")
    return fact
