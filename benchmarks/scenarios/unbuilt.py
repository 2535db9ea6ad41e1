"""Scenarios that have their place here, and no number until what they measure is there."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.bench import Bench
from benchmarks.measuring import Measured
from benchmarks.sides import Side


@dataclass(frozen=True)
class Unbuilt:
    """What is missing is said in the report, as for a side that could not be measured."""

    name: str
    needs: str

    async def __call__(self, bench: Bench, side: Side, repeat: int) -> Measured:
        return Measured(self.name, side.name, repeat, problem=f"needs {self.needs}")
