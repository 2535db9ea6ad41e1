"""What can be asked of a run. A command is an order that may be refused; a fact is what became of it.

Values inside commands were cleaned before; `repaired` says whether that changed them.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.protocol.facts import ROOT, RunCreated
from holdfast.protocol.graphs import Graph
from holdfast.protocol.outcomes import Outcome
from holdfast.protocol.storage import ClogWrites


class Command(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An order to one run."""

    key: str | None = None
    key_digest: str | None = None


class ClaimCommand(Command, frozen=True, kw_only=True):
    """An order that only the holder of a claim may give."""

    runnable_key: str = ROOT
    claim_id: str
    claim_token_hash: str


class Create(Command, frozen=True, kw_only=True):
    fact: RunCreated


class Claim(ClaimCommand, frozen=True, kw_only=True):
    """Take a work item whose lease ran out, after closing what its last holder left open."""

    owner_id: str
    lease_us: int


class Heartbeat(ClaimCommand, frozen=True, kw_only=True):
    lease_us: int


class ChildStart(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A child that waits for its parent's commit."""

    child_run_id: str
    clog_id: str
    child_key: str
    step: str = ""
    start: dict[str, Any] = {}
    metadata: dict[str, Any] = {}
    on_cancel: str = "cancel"
    repaired: bool = False


class OutboxRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A delivery that waits for its tick's commit."""

    outbox_id: str
    target_space: str
    payload: Any = None
    payload_sha: str
    idempotency_key: str | None = None
    repaired: bool = False


class Staged(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a tick wants beside its outcome; it commits with the outcome or not at all."""

    storage: tuple[ClogWrites, ...] = ()
    outbox: tuple[OutboxRow, ...] = ()
    children: tuple[ChildStart, ...] = ()
    deletes: tuple[str, ...] = ()
    """`run` or `session`: what is to be deleted once the tick has ended."""


NOTHING_STAGED = Staged()


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What whoever settles a tick of a workflow knows about it.

    `items` is how many a map found, `skipped` that a step was not wanted. Of the run's own tick `looks` says that it
    ends by planning what is ready.
    """

    graph: Graph
    version: str = ""
    fingerprint: str = ""
    items: int | None = None
    skipped: bool = False
    looks: bool = False


class Settle(ClaimCommand, frozen=True, kw_only=True):
    """End the tick with an outcome. `keep` names the events a retry must not drop, `events` are the last ones.

    `repaired` is about the outcome; of several events, `repairs` names the places of those that were.
    """

    outcome: Outcome
    keep: list[list[int]] = []
    repaired: bool = False
    events: tuple[tuple[str, Any], ...] = ()
    repairs: tuple[int, ...] = ()
    staged: Staged = Staged()
    awaits: tuple[str, ...] = ()
    flow: bool = False
    plan: Plan | None = None
    traceparent: str | None = None


class Release(ClaimCommand, frozen=True, kw_only=True):
    """Give the claim back unused; nothing is counted against the run."""

    keep: list[list[int]] = []


class Emit(ClaimCommand, frozen=True, kw_only=True):
    """Show something. With `expected_rev` only if the run still stands there."""

    events: tuple[tuple[str, Any], ...]
    repaired: bool = False
    repairs: tuple[int, ...] = ()
    expected_rev: int | None = None


class Signal(Command, frozen=True, kw_only=True):
    signal_id: str
    name: str | None = None
    has_input: bool = False
    input: Any = None
    interrupt: bool = False
    repaired: bool = False


class Cancel(Command, frozen=True, kw_only=True):
    reason: str | None = None
    actor: str | None = None
    force: bool = False
    repaired: bool = False


class Pause(Command, frozen=True, kw_only=True):
    step: str
    boundary: str = "pause"
    metadata: dict[str, Any] = {}
    expires_us: int | None = None
    repaired: bool = False


class Resolve(Command, frozen=True, kw_only=True):
    """Close the open boundary. `step=None` means whichever is open, `seen_rev` how much of the run was seen.

    `statements` commit with it: what else the answer decides.
    """

    action: str
    step: str | None = None
    actor: str | None = None
    comment: str | None = None
    edited: Any = None
    seen_rev: int | None = None
    statements: tuple[tuple[str, tuple[Any, ...]], ...] = ()
    repaired: bool = False


class StartChild(ClaimCommand, frozen=True, kw_only=True):
    child_run_id: str
    clog_id: str
    child_key: str
    step: str = ""
    start: dict[str, Any] = {}
    metadata: dict[str, Any] = {}
    on_cancel: str = "cancel"
    repaired: bool = False


class RecordStep(ClaimCommand, frozen=True, kw_only=True):
    """A step of a flow has its answer. Events, outbox rows and children of the step commit with it.

    So do `statements`: SQL of the caller's own, with its parameters, on the same database.
    """

    name: str
    occurrence: int = 0
    status: str = "done"
    result: Any = None
    error: str | None = None
    error_kind: str | None = None
    attempt: int = 0
    said: tuple[tuple[int, int], ...] = ()
    events: tuple[tuple[str, Any], ...] = ()
    repairs: tuple[int, ...] = ()
    staged: Staged = Staged()
    statements: tuple[tuple[str, tuple[Any, ...]], ...] = ()
    irreversible: bool = False
    repaired: bool = False


class TakeSignal(ClaimCommand, frozen=True, kw_only=True):
    """Receive the oldest signal of this name, if there is one."""

    name: str | None = None
    occurrence: int = 0


class OpenBoundary(ClaimCommand, frozen=True, kw_only=True):
    """Ask a person, in the middle of a flow or workflow."""

    step: str
    boundary: str = "approval"
    occurrence: int = 0
    metadata: dict[str, Any] = {}
    expires_us: int | None = None
    repaired: bool = False


class ExpireBoundary(Command, frozen=True, kw_only=True):
    """Nobody answered in time."""


class BeginTick(Command, frozen=True, kw_only=True):
    """Open a tick for direct calls of endpoints."""

    tick_id: str


class Speak(Command, frozen=True, kw_only=True):
    """Events of an endpoint that was called directly, in a begun tick."""

    tick_id: str
    events: tuple[tuple[str, Any], ...]
    repaired: bool = False
    repairs: tuple[int, ...] = ()


class CallEndpoint(Command, frozen=True, kw_only=True):
    """An endpoint returned (or raised `error`): keep what it wrote and what it used up."""

    tick_id: str
    clog_id: str
    method: str
    spent: tuple[str, ...] = ()
    error: str | None = None
    staged: Staged = Staged()


class EnterLane(Command, frozen=True, kw_only=True):
    """Let the run into its lane if it is its turn."""


class NoteWakeup(Command, frozen=True, kw_only=True):
    """A notifier was told that this work is due."""

    runnable_key: str = ROOT


class NoteDeadLetter(Command, frozen=True, kw_only=True):
    """A delivery that this run asked for was given up."""

    outbox_id: str
    target_space: str
    error: str | None = None
    error_kind: str | None = None


class Delete(Command, frozen=True, kw_only=True):
    """Hide the run; one that is not over is cancelled first. While somebody works on it only with `force`."""

    actor: str | None = None
    force: bool = False


class Recover(Command, frozen=True, kw_only=True):
    """Schedule what was planned and never scheduled, then apply what was completed and never applied.

    `inputs` holds what each planned runnable was planned with; one that it does not name is left alone.
    """

    inputs: dict[str, Any] = {}


class FinishChild(Command, frozen=True, kw_only=True):
    """A child's end reaches its parent."""

    child_run_id: str
    status: str
    output: Any = None
    error: str | None = None
