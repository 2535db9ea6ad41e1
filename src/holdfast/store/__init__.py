"""One store on two databases. SQL and drivers live here and nowhere else; what the rows mean is not known here."""

from __future__ import annotations

from holdfast.store.database import Database, LockedPlan, OnHint
from holdfast.store.store import RunRows, Store, Timers, connect
from holdfast.store.tables import INDEXES, RUNS
from holdfast.store.types import (
    Append,
    Beat,
    Beaten,
    Changes,
    Claimed,
    ClaimRequest,
    Committed,
    Entry,
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
    "INDEXES",
    "RUNS",
    "Append",
    "Beat",
    "Beaten",
    "Changes",
    "ClaimRequest",
    "Claimed",
    "Committed",
    "Database",
    "Entry",
    "Fence",
    "Intention",
    "LockedPlan",
    "Mark",
    "Member",
    "NewEntry",
    "OnHint",
    "Plan",
    "Planner",
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
