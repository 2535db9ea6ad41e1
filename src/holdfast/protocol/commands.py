"""What can be asked of a run. A command is an order that may be refused; a fact is what became of it.

Values inside commands were cleaned before; `repaired` says whether that changed them.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.protocol.facts import ROOT, RunCreated
from holdfast.protocol.outcomes import Outcome


class Command(msgspec.Struct, frozen=True, kw_only=True):
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


class Settle(ClaimCommand, frozen=True, kw_only=True):
    """End the tick with an outcome. `keep` names the events a retry must not drop."""

    outcome: Outcome
    keep: list[list[int]] = []
    repaired: bool = False


class Release(ClaimCommand, frozen=True, kw_only=True):
    """Give the claim back unused; nothing is counted against the run."""

    keep: list[list[int]] = []


class Emit(ClaimCommand, frozen=True, kw_only=True):
    events: tuple[tuple[str, Any], ...]
    repaired: bool = False


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
    """Close the open boundary. `step=None` means whichever is open."""

    action: str
    step: str | None = None
    actor: str | None = None
    comment: str | None = None
    edited: Any = None
    repaired: bool = False


class StartChild(ClaimCommand, frozen=True, kw_only=True):
    child_run_id: str
    clog_id: str
    child_key: str
    step: str = ""
    start: dict[str, Any] = {}
    metadata: dict[str, Any] = {}
    repaired: bool = False


class FinishChild(Command, frozen=True, kw_only=True):
    """A child's end reaches its parent."""

    child_run_id: str
    status: str
    output: Any = None
    error: str | None = None
