"""Holdfast: a durable runtime for AI-agent runs. One SQLite file out of the box, Postgres at scale."""

from __future__ import annotations

from holdfast.errors import (
    Conflict,
    DatabaseError,
    HoldfastError,
    InvalidEntry,
    InvalidValue,
    LeaseLost,
    NotFound,
    StorageError,
)
from holdfast.executor import TickResult
from holdfast.facade import AdvanceResult, Holdfast
from holdfast.fsck import FsckReport
from holdfast.handlers import Clog, Context
from holdfast.journal import JournalEntry
from holdfast.protocol.backoff import RetryPolicy
from holdfast.protocol.outcomes import Continue, Done, Fail, Ok, Retry, Wait
from holdfast.runtime import Claim, Event, Explanation, Inspection, ListedRun, Page, RunInfo, SignalReceipt

__all__ = [
    "AdvanceResult",
    "Claim",
    "Clog",
    "Conflict",
    "Context",
    "Continue",
    "DatabaseError",
    "Done",
    "Event",
    "Explanation",
    "Fail",
    "FsckReport",
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
    "Page",
    "Retry",
    "RetryPolicy",
    "RunInfo",
    "SignalReceipt",
    "StorageError",
    "TickResult",
    "Wait",
]
