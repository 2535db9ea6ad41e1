"""What goes over the wire: requests as they are checked, answers as described. Times are epoch milliseconds."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from fastapi import Path, Query
from pydantic import BaseModel, ConfigDict, Field, PlainValidator, WithJsonSchema

from holdfast.audit.instants import END, instant
from holdfast.moments import to_us
from holdfast.protocol.views import WEB
from holdfast.runtime import ListedRun, RunInfo

ID = r"^[A-Za-z0-9][A-Za-z0-9_.:@-]{0,127}$"
NAME_MAX = 256
MS_MAX = 10**14
"""From here on a number is one of microseconds."""

Id = Annotated[str, Field(pattern=ID)]
PathId = Annotated[str, Path(pattern=ID)]
QueryId = Annotated[str | None, Query(pattern=ID)]
Limit = Annotated[int, Query(ge=0, description="Clamped to 1…100.")]
Cursor = Annotated[str | None, Query(description="The `next` of the last page.", max_length=1_024)]
At = Annotated[str, Query(description="NOW, END, RFC 3339, or milliseconds since the epoch.", max_length=64)]
Ms = Annotated[int, Field(description="Milliseconds since the epoch.")]
Name = Annotated[str, Field(min_length=1, max_length=NAME_MAX)]


def _said(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("a message is a text of at least one character")
    return value


# Checked by hand: a model's text may hold half a surrogate pair, which is repaired when it is stored.
Said = Annotated[str, PlainValidator(_said), WithJsonSchema({"type": "string", "minLength": 1})]


class Closed(BaseModel):
    """A body with these fields and no others."""

    model_config = ConfigDict(extra="forbid")


class RunRequest(BaseModel):
    """A message for a session's clog, or any input; what else is said goes to the handler beside the message."""

    model_config = ConfigDict(
        extra="allow", json_schema_extra={"anyOf": [{"required": ["message"]}, {"required": ["input"]}]}
    )

    session_id: Id
    message: Said | None = None
    input: Any = None
    clog_id: Id = "chat"
    run_id: Id | None = None
    queue: Id | None = None
    priority: Annotated[int, Field(ge=-(1 << 15), le=(1 << 15) - 1)] = 0
    metadata: dict[str, Any] | None = None


class ChatRequest(BaseModel):
    """A message whose answer streams on the same connection."""

    model_config = ConfigDict(extra="allow")

    message: Said
    clog_id: Id = "chat"


class CancelRequest(Closed):
    """Why, and whether to end it at once."""

    reason: str | None = None
    actor: str | None = None
    force: bool = False


class SignalRequest(Closed):
    """An input for the run's mailbox; without one the run is only woken."""

    input: Any = None
    name: Name | None = None
    interrupt: bool = False


class AnswerRequest(Closed):
    """A person's answer. Whoever asks is the actor unless another is named."""

    actor: Name | None = None
    comment: str | None = None
    step: Name | None = None
    edited: Any = None
    seen_rev: Annotated[int, Field(ge=0, le=(1 << 31) - 1)] | None = None


class ResumeRequest(Closed):
    """Let a paused run go on."""

    actor: Name | None = None
    comment: str | None = None
    step: Name | None = None
    seen_rev: Annotated[int, Field(ge=0, le=(1 << 31) - 1)] | None = None


class ForkRequest(Closed):
    """Where to cut; everything unless told."""

    at_rev: Annotated[int, Field(ge=1, le=(1 << 31) - 1)] | None = None
    new_run_id: Id | None = None
    allow_irreversible: bool = False


class ReplayRequest(Closed):
    """A new run as this one was created."""

    new_run_id: Id | None = None
    allow_irreversible: bool = False


class AdvanceRequest(Closed):
    """How long to begin ticks, and how many."""

    budget_ms: Annotated[int, Field(ge=0, le=1 << 50)] | None = None
    max_runs: Annotated[int, Field(ge=0, le=1 << 50)] | None = None
    queues: list[Id] | None = None


class SessionRequest(Closed):
    """A session may be named."""

    session_id: Id | None = None
    title: Annotated[str, Field(max_length=200)] | None = None


class DecisionRequest(Closed):
    """Who decides about a proposal."""

    actor: Name | None = None


class AppliedRequest(Closed):
    """What applying a proposal came to."""

    results: Any = None
    commit_hash: Name | None = None


class Ok(BaseModel):
    ok: bool


class Started(BaseModel):
    """A run that was made."""

    run_id: str
    status: str


class SignalView(BaseModel):
    accepted: bool
    reason: str | None
    rev: int | None


WebStatus = Literal["queued", "running", "completed", "failed", "cancelled"]


class RunView(BaseModel):
    """A run. `status` is one of the web's five words, `state` the exact one; `resumable` rests and can go on."""

    run_id: str
    session_id: str
    clog_id: str
    input_text: str
    status: WebStatus
    state: str
    resumable: bool
    attempt: int
    max_attempts: int
    queue: str
    lane: str | None
    rev: int
    created_at: Ms
    updated_at: Ms
    started_at: Ms | None = None
    finished_at: Ms | None = None
    wake_at: Ms | None = None
    cancel_requested_at: Ms | None = None
    error_message: str | None = None
    error_kind: str | None = None
    owner_id: str | None = None
    lease_until: Ms | None = None
    deliveries: int | None = None
    parent_run_id: str | None = None
    output: Any = None


class RunList(BaseModel):
    runs: list[RunView]
    next: str | None


class Items(BaseModel):
    """Some of a list; `next` is the cursor of what follows."""

    items: list[dict[str, Any]]
    next: str | None = None


class SessionView(BaseModel):
    session_id: str
    title: str | None = None
    created_at: Ms
    updated_at: Ms
    message_count: int
    last_user_message: str | None = None
    run_id: str | None = None


class SessionState(BaseModel):
    """A session with everything that was said in it."""

    schema_version: int = 1
    session_id: str
    title: str | None = None
    created_at: Ms
    updated_at: Ms
    run_id: str | None = None
    messages: list[dict[str, Any]]


class Health(BaseModel):
    ok: bool
    run_role: str
    run_backend: str
    version: str


class Readiness(BaseModel):
    ready: bool
    checks: dict[str, str]


class Advanced(BaseModel):
    """What one pass did."""

    advanced: int
    results: list[dict[str, Any]]
    budget_exhausted: bool
    next_wake_at: Ms | None


def run_view(run: RunInfo | ListedRun, text: str) -> RunView:
    """A run for the web; lists show less of it."""
    lease: datetime | None = getattr(run, "lock_expires_at", None)
    return RunView(
        run_id=run.run_id,
        session_id=run.session_id,
        clog_id=run.clog_id,
        input_text=text,
        status=WEB[run.status],  # type: ignore[index, arg-type]
        state=run.status,
        resumable=run.status == "idle",
        attempt=run.attempt,
        max_attempts=run.max_attempts,
        queue=run.queue,
        lane=run.lane,
        rev=run.rev,
        created_at=ms(run.created_at or run.updated_at),
        updated_at=ms(run.updated_at),
        started_at=maybe_ms(run.started_at),
        finished_at=maybe_ms(run.finished_at),
        wake_at=maybe_ms(run.wake_at),
        cancel_requested_at=maybe_ms(run.cancel_requested_at),
        error_message=getattr(run, "last_error", None),
        error_kind=getattr(run, "error_kind", None),
        owner_id=getattr(run, "locked_by", None),
        lease_until=maybe_ms(lease),
        deliveries=getattr(run, "deliveries", None),
        parent_run_id=run.parent_run_id,
        output=getattr(run, "output", None),
    )


def ms(moment: datetime) -> int:
    return to_us(moment) // 1_000


def instant_of(text: str) -> int:
    """The microsecond that a query means: a word, RFC 3339, or a number as these answers have them.

    A number of milliseconds stands for all of that millisecond, so that an answer's own time finds what it told.
    """
    if text.isascii() and text.isdigit():
        number = min(int(text[:20]), END)
        return number if number >= MS_MAX else number * 1_000 + 999
    # Where a plus was not escaped it has become a space.
    return instant(text.strip().replace(" ", "+"))


def maybe_ms(moment: datetime | None) -> int | None:
    return None if moment is None else ms(moment)


def plain(value: Any) -> Any:
    """Records as JSON values, every instant in milliseconds."""
    return _with_ms(msgspec.to_builtins(value, builtin_types=(datetime,)))


def _with_ms(value: Any) -> Any:
    if isinstance(value, datetime):
        return ms(value)
    if isinstance(value, dict):
        return {name: _with_ms(item) for name, item in value.items()}
    return [_with_ms(item) for item in value] if isinstance(value, list | tuple) else value
