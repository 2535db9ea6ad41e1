"""What is measured. A scenario takes a bench and a side and answers one slice."""

from __future__ import annotations

from benchmarks.scenarios.catalogue import GROWTH, IN_TURNS, SCENARIOS, TURNS, Scenario
from benchmarks.scenarios.turns import ROUNDS, side_by_side

__all__ = ["GROWTH", "IN_TURNS", "ROUNDS", "SCENARIOS", "TURNS", "Scenario", "side_by_side"]
