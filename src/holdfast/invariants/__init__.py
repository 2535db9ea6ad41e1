"""What must always be true. One function per law; tests, `fsck` and chaos runs all use these.

Each law looks at a consistent snapshot, or at callers' records, and answers the problems it found in words.
None of them writes.
"""

from __future__ import annotations

from holdfast.invariants.deliveries import (
    ASKED,
    asked_deliveries,
    asked_deliveries_are_there,
    deliveries_are_asked_for,
)
from holdfast.invariants.facts import call_rows, calls_are_recorded, check_facts
from holdfast.invariants.problems import Problem
from holdfast.invariants.runs import (
    RunSnapshot,
    catalog_is_complete,
    check_run,
    handoffs_are_open,
    journal_is_sound,
    rows_disagree,
    snapshot,
)
from holdfast.invariants.shared import (
    SharedWrite,
    lanes_have_one_head,
    last_writes,
    shared_rows_are_written,
    shared_writes,
    started_windows_have_runs,
    written_rows_are_there,
)
from holdfast.invariants.threads import check_thread

__all__ = [
    "ASKED",
    "Problem",
    "RunSnapshot",
    "SharedWrite",
    "call_rows",
    "calls_are_recorded",
    "asked_deliveries",
    "asked_deliveries_are_there",
    "catalog_is_complete",
    "check_facts",
    "check_run",
    "check_thread",
    "deliveries_are_asked_for",
    "handoffs_are_open",
    "journal_is_sound",
    "lanes_have_one_head",
    "last_writes",
    "rows_disagree",
    "shared_rows_are_written",
    "shared_writes",
    "snapshot",
    "started_windows_have_runs",
    "written_rows_are_there",
]
