"""Commands and questions about runs."""

from __future__ import annotations

from holdfast.runtime.holdfast import Holdfast
from holdfast.runtime.records import Claim, Event, RunInfo, SignalReceipt

__all__ = ["Claim", "Event", "Holdfast", "RunInfo", "SignalReceipt"]
