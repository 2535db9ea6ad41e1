"""What we want to be true of a table of results, one line each, with what was seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from benchmarks.sides import HOLDFAST, SIDES

Medians = Mapping[tuple[str, str], Mapping[str, float]]
"""(scenario, side) → the median of each value."""


class Ratio(NamedTuple):
    """Holdfast's rate is at least this many times another side's."""

    scenario: str
    side: str
    least: float

    def __str__(self) -> str:
        return f"{self.scenario}: at least {self.least:g} of {SIDES[self.side].title}"

    def seen(self, medians: Medians) -> float | None:
        ours = medians.get((self.scenario, HOLDFAST.name), {}).get("rate")
        theirs = medians.get((self.scenario, self.side), {}).get("rate")
        return None if ours is None or not theirs else ours / theirs

    def is_met(self, seen: float) -> bool:
        return seen >= self.least


class Floor(NamedTuple):
    """A value of ours is at least this."""

    scenario: str
    value: str
    least: float

    def __str__(self) -> str:
        return f"{self.scenario}: {self.value} at least {self.least:,g}"

    def seen(self, medians: Medians) -> float | None:
        return medians.get((self.scenario, HOLDFAST.name), {}).get(self.value)

    def is_met(self, seen: float) -> bool:
        return seen >= self.least


class Ceiling(NamedTuple):
    """A value of ours is at most this."""

    scenario: str
    value: str
    most: float

    def __str__(self) -> str:
        return f"{self.scenario}: {self.value} at most {self.most:,g}"

    def seen(self, medians: Medians) -> float | None:
        return medians.get((self.scenario, HOLDFAST.name), {}).get(self.value)

    def is_met(self, seen: float) -> bool:
        return seen <= self.most


class Scaled(NamedTuple):
    """A goal in units of a machine, carried over to this one: what the raw limit took when it was set is known."""

    goal: Floor | Ceiling
    raw: float
    """The raw limit's value on the machine for which the goal was set."""
    scenario: str
    """Where the raw limit plays what is compared."""
    by: str = ""
    """Which of the raw limit's values is known, if not the same."""

    def __str__(self) -> str:
        known = f" for {self.by}" if self.by else ""
        return f"{self.goal}, where the raw limit has {self.raw:,g}{known}: as ratio {self._bound:.2f}"

    def seen(self, medians: Medians) -> float | None:
        ours = self.goal.seen(medians)
        raw = medians.get((self.scenario, "raw_group"), {}).get(self.by or self.goal.value)
        return None if ours is None or not raw else ours / raw

    def is_met(self, seen: float) -> bool:
        return seen >= self._bound if isinstance(self.goal, Floor) else seen <= self._bound

    @property
    def _bound(self) -> float:
        wanted = self.goal.least if isinstance(self.goal, Floor) else self.goal.most
        return wanted / self.raw


class Growth(NamedTuple):
    """What is left of our rate is at least this share of what is left of the raw limit's."""

    scenario: str
    least: float

    def __str__(self) -> str:
        return f"{self.scenario}: at least {self.least:g} of what the raw limit keeps"

    def seen(self, medians: Medians) -> float | None:
        kept = [medians.get((self.scenario, side), {}).get("kept") for side in (HOLDFAST.name, "raw_group")]
        return None if kept[0] is None or not kept[1] else kept[0] / kept[1]

    def is_met(self, seen: float) -> bool:
        return seen >= self.least


BATCH = Floor("batch", "rate", 20_000)
START, VISIBLE = Ceiling("C", "start_p50_ms", 4), Ceiling("C", "visible_p50_ms", 6)
SLOWEST = Ceiling("C", "visible_p99_ms", 20)
START_HERE = Ceiling("C-here", "start_p50_ms", 2)

GOALS: Sequence[Ratio | Floor | Ceiling | Scaled | Growth] = (
    Ratio("A", "restate", 5),
    Ratio("A", "absurd", 8),
    Ratio("A", "dbos", 12),
    Ratio("A", "raw_group", 0.35),
    Ratio("A", "pgqueuer", 1),
    Ratio("A-live", "raw_group", 0.35),
    Ratio("A-live", "pgqueuer", 5),
    Ratio("B", "restate", 5),
    Ratio("B", "absurd", 14),
    Ratio("B", "dbos", 36),
    Ratio("B", "raw_group", 0.2),
    Floor("A2", "gain", 1),
    Floor("A2-held", "gain", 1),
    Floor("B2", "gain", 1),
    Floor("W2", "gain", 1),
    BATCH,
    Scaled(BATCH, raw=107_000, scenario="batch"),
    START,
    Scaled(START, raw=1.9, scenario="C"),
    VISIBLE,
    Scaled(VISIBLE, raw=2.6, scenario="C"),
    SLOWEST,
    Scaled(SLOWEST, raw=2.6, scenario="C", by="visible_p50_ms"),
    START_HERE,
    Scaled(START_HERE, raw=1.9, scenario="C"),
    Ceiling("idle", "idle_cpu_percent", 1),
    Ceiling("idle", "idle_round_trips_per_s", 2),
    Floor("D", "rate", 20_000),
    Ceiling("D-live", "age_p50_ms", 5),
    Growth("E-100k", 0.9),
    Growth("E-1m", 0.9),
    Growth("E-old", 0.9),
    Ratio("F-A", "dbos", 20),
    Ratio("F-B", "dbos", 40),
    Ratio("slow", "dbos", 10),
    Ratio("slow", "absurd", 10),
    Ceiling("SSE-live", "age_p50_ms", 10),
    Ceiling("SSE-live", "age_p99_ms", 50),
    Ceiling("SSE-1000", "age_p99_ms", 250),
    Ceiling("SSE-1000", "api_cpu_us", 25),
    Ceiling("SSE-1000", "held_kb", 100),
    Ceiling("SSE-1000", "leave_ms", 2_000),
)


def judged(medians: Medians) -> list[str]:
    """A table of all goals: met, missed, or not measured."""
    lines = ["| goal | seen | |", "|---|---:|---|"]
    for goal in GOALS:
        seen = goal.seen(medians)
        verdict = "not measured" if seen is None else "met" if goal.is_met(seen) else "**missed**"
        lines.append(f"| {goal} | {'' if seen is None else f'{seen:,.2f}'} | {verdict} |")
    return lines
