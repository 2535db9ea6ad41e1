"""Commands and questions about runs, one small class on the other: core → runs → claims → questions → upkeep."""

from __future__ import annotations

from holdfast.runtime.records import Claim, Event, RunInfo, SignalReceipt
from holdfast.runtime.upkeep import Upkeep

__all__ = ["Claim", "Event", "RunInfo", "SignalReceipt", "Upkeep"]
