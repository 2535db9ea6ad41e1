"""Commands and questions about runs, one small class on the other: core → runs → claims → questions → upkeep."""

from __future__ import annotations

from holdfast.runtime.explanation import Explanation
from holdfast.runtime.graphing import GraphEdge, GraphNode, RunGraph
from holdfast.runtime.inbox import OpenQuestion
from holdfast.runtime.inspection import Inspection
from holdfast.runtime.listing import ListedRun, Page
from holdfast.runtime.records import Claim, Event, RunInfo, SignalReceipt, without_hashes
from holdfast.runtime.run_queue import RunEventStore, RunQueue, StoredEvent, StoredRunEvents, StoredRunQueue
from holdfast.runtime.schedules import Schedule
from holdfast.runtime.upkeep import Upkeep

__all__ = [
    "Claim",
    "Event",
    "Explanation",
    "GraphEdge",
    "GraphNode",
    "Inspection",
    "ListedRun",
    "OpenQuestion",
    "Page",
    "RunEventStore",
    "RunGraph",
    "RunInfo",
    "RunQueue",
    "Schedule",
    "SignalReceipt",
    "StoredEvent",
    "StoredRunEvents",
    "StoredRunQueue",
    "Upkeep",
    "without_hashes",
]
