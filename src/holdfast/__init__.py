"""Holdfast: a durable runtime for AI-agent runs. One SQLite file out of the box, Postgres at scale."""

from __future__ import annotations

from holdfast.errors import (
    Conflict,
    DatabaseError,
    DeadLetter,
    DeliveryFailed,
    HoldfastError,
    InvalidEntry,
    InvalidValue,
    LeaseLost,
    NotFound,
    ProviderError,
    ReauthRequired,
    RunCancelled,
    RunFailed,
    SealError,
    StorageError,
    ToolFailed,
)
from holdfast.executor import TickResult
from holdfast.facade import AdvanceResult, Holdfast
from holdfast.flow import Decision, Flow, FlowContext, FlowMismatch, StepFailed, check_flow
from holdfast.fsck import FsckReport
from holdfast.handlers import Clog, Context
from holdfast.journal import JournalEntry
from holdfast.protocol.backoff import RetryPolicy
from holdfast.protocol.outcomes import Continue, Done, Fail, Ok, Retry, Wait
from holdfast.runtime import (
    Claim,
    Event,
    Explanation,
    GraphEdge,
    GraphNode,
    Inspection,
    ListedRun,
    OpenQuestion,
    Page,
    RunGraph,
    RunInfo,
    Schedule,
    SignalReceipt,
)
from holdfast.workflow import Workflow

__all__ = [
    "AdvanceResult",
    "Claim",
    "Clog",
    "Conflict",
    "Context",
    "Continue",
    "DatabaseError",
    "DeadLetter",
    "Decision",
    "DeliveryFailed",
    "Done",
    "Event",
    "Explanation",
    "Fail",
    "Flow",
    "FlowContext",
    "FlowMismatch",
    "FsckReport",
    "GraphEdge",
    "GraphNode",
    "Holdfast",
    "HoldfastError",
    "Inspection",
    "InvalidEntry",
    "InvalidValue",
    "JournalEntry",
    "LeaseLost",
    "ListedRun",
    "NotFound",
    "Ok",
    "OpenQuestion",
    "Page",
    "ProviderError",
    "ReauthRequired",
    "Retry",
    "RetryPolicy",
    "RunCancelled",
    "RunFailed",
    "RunGraph",
    "RunInfo",
    "Schedule",
    "SealError",
    "SignalReceipt",
    "StepFailed",
    "StorageError",
    "TickResult",
    "ToolFailed",
    "Wait",
    "Workflow",
    "check_flow",
]
