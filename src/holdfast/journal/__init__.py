"""Facts ⇄ entries, revisions, checkpoints, as-of: where protocol and store meet, and nowhere else."""

from __future__ import annotations

from holdfast.journal.entries import JournalEntry
from holdfast.journal.journal import Journal
from holdfast.journal.planner import Executed, Limits, RunPlanner

__all__ = ["Executed", "Journal", "JournalEntry", "Limits", "RunPlanner"]
