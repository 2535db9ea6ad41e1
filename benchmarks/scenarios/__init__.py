"""What is measured. A scenario takes a bench and a side and answers one slice."""

from __future__ import annotations

from benchmarks.scenarios.catalogue import SCENARIOS, Scenario

__all__ = ["SCENARIOS", "Scenario"]
