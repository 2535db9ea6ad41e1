"""What must always be true. One function per law; tests, `fsck` and chaos runs all use these.

Each law looks at a consistent snapshot, or at callers' records, and answers the problems it found in words.
None of them writes.
"""

from __future__ import annotations

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
from holdfast.invariants.threads import check_thread

__all__ = [
    "Problem",
    "RunSnapshot",
    "catalog_is_complete",
    "check_run",
    "check_thread",
    "handoffs_are_open",
    "journal_is_sound",
    "rows_disagree",
    "snapshot",
]
