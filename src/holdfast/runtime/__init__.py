"""Commands and questions about runs, one small class on the other: core → runs → claims → questions → upkeep."""

from __future__ import annotations

from holdfast.runtime.explanation import Explanation
from holdfast.runtime.inbox import OpenQuestion
from holdfast.runtime.inspection import Inspection
from holdfast.runtime.listing import ListedRun, Page
from holdfast.runtime.records import Claim, Event, RunInfo, SignalReceipt, without_hashes
from holdfast.runtime.upkeep import Upkeep

__all__ = [
    "Claim",
    "Event",
    "Explanation",
    "Inspection",
    "ListedRun",
    "OpenQuestion",
    "Page",
    "RunInfo",
    "SignalReceipt",
    "Upkeep",
    "without_hashes",
]
