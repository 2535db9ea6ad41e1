"""What is measured. A scenario takes a bench and a side and answers one slice."""

from __future__ import annotations

from benchmarks.scenarios.catalogue import IN_TURNS, SCENARIOS, TURNS, Scenario

__all__ = ["IN_TURNS", "SCENARIOS", "TURNS", "Scenario"]
