"""One store on two databases. SQL and drivers live here and nowhere else; what the rows mean is not known here."""

from __future__ import annotations

from holdfast.store.database import Database, LockedPlan, OnHint, RecordPlan
from holdfast.store.recorder import Recorded
from holdfast.store.store import RunRows, Store, Timers, connect
from holdfast.store.tables import FACTS, INDEXES, RUNS
from holdfast.store.types import (
    Addition,
    Append,
    Beat,
    Beaten,
    Changes,
    Claimed,
    ClaimRequest,
    Committed,
    Entry,
    FactKey,
    Fence,
    Intention,
    Mark,
    Member,
    NewEntry,
    Plan,
    Planner,
    Row,
    Slice,
    SliceRequest,
    Statement,
    Written,
)

__all__ = [
    "FACTS",
    "INDEXES",
    "RUNS",
    "Addition",
    "Append",
    "Beat",
    "Beaten",
    "Changes",
    "ClaimRequest",
    "Claimed",
    "Committed",
    "Database",
    "Entry",
    "FactKey",
    "Fence",
    "Intention",
    "LockedPlan",
    "Mark",
    "Member",
    "NewEntry",
    "OnHint",
    "Plan",
    "Planner",
    "RecordPlan",
    "Recorded",
    "Row",
    "RunRows",
    "Slice",
    "SliceRequest",
    "Statement",
    "Store",
    "Timers",
    "Written",
    "connect",
]
