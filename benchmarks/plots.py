"""Pictures of a file of results: `python -m benchmarks.plots results.jsonl folder`, in an environment of its own.

Of ours it needs nothing that needs a package, because matplotlib lives elsewhere.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import median
from typing import Any

import matplotlib

matplotlib.use("svg")
matplotlib.rcParams["svg.hashsalt"] = "holdfast"

from matplotlib import pyplot as plt  # noqa: E402

from benchmarks.growth import EMPTY, shares  # noqa: E402

RATES = ("A", "A2", "A-live", "B", "enqueue", "batch", "fan-out", "D", "F-A", "F-B", "slow")
HISTORIES = {"E-0": 0, "E-100k": 100_000, "E-1m": 1_000_000}
OURS = "holdfast"

Results = list[dict[str, Any]]


def rate(results: Results, scenario: str, side: str) -> float | None:
    rates = [
        each["values"]["rate"]
        for each in results
        if each["scenario"] == scenario and each["side"] == side and "rate" in each["values"]
    ]
    return median(rates) if rates else None


def sides_of(results: Results, *scenarios: str) -> list[str]:
    return list(dict.fromkeys(each["side"] for each in results if each["scenario"] in scenarios and each["values"]))


def throughput(results: Results) -> Any:
    """A row of bars for each scenario; ours is dark."""
    shown = [name for name in RATES if any(rate(results, name, side) for side in sides_of(results, name))]
    figure, axes = plt.subplots(len(shown), 1, figsize=(8, 1.9 * len(shown)), squeeze=False)
    for axis, name in zip(axes[:, 0], shown, strict=True):
        found = [(side, rate(results, name, side)) for side in sides_of(results, name)]
        bars = sorted(((side, value) for side, value in found if value), key=lambda bar: bar[1])
        colours = ["#1f4e79" if side == OURS else "#b8c4d0" for side, _ in bars]
        axis.barh([side for side, _ in bars], [value for _, value in bars], color=colours)
        axis.set_xscale("log")
        axis.set_title(f"{name}, units a second", loc="left", fontsize=9)
        axis.tick_params(labelsize=7)
    return figure


def latency(results: Results) -> Any:
    """Which share of observations was how fast."""
    kinds = [("C", "start_ms"), ("C", "visible_ms"), ("C-here", "start_ms"), ("D-live", "age_ms")]
    figure, axes = plt.subplots(2, 2, figsize=(9, 6))
    for axis, (scenario, kind) in zip(axes.flat, kinds, strict=True):
        for side in sides_of(results, scenario):
            seen = sorted(
                value
                for each in results
                if each["scenario"] == scenario and each["side"] == side
                for value in each["samples"].get(kind, [])
            )
            shares = [(place + 1) / len(seen) for place in range(len(seen))]
            axis.step(seen, shares, label=side, linewidth=2 if side == OURS else 1)
        axis.set_xscale("log")
        axis.set_title(f"{scenario}: {kind.removesuffix('_ms')}, ms", loc="left", fontsize=9)
        axis.tick_params(labelsize=7)
        if axis.lines:
            axis.legend(fontsize=6)
    return figure


def shares_of(results: Results, scenario: str, side: str, share: str) -> list[float]:
    """How it compares with no history, round by round."""
    rounds = {(each["scenario"], each["repeat"]): each["values"] for each in results if each["side"] == side}
    compared = [
        shares(empty, rounds[scenario, repeat])
        for (name, repeat), empty in rounds.items()
        if name == EMPTY and (scenario, repeat) in rounds
    ]
    return [each[share] for each in compared if share in each]


def growth(results: Results) -> Any:
    """Rate and CPU of a run as shares of those without history: the median, and each single round."""
    kinds = {"kept": "share of the rate without them", "cpu_times": "CPU of a run, in that without them"}
    figure, axes = plt.subplots(1, 2, figsize=(11, 4))
    for axis, (kind, title) in zip(axes, kinds.items(), strict=True):
        for side in sides_of(results, *HISTORIES):
            known = [
                (many, found) for name, many in HISTORIES.items() if (found := shares_of(results, name, side, kind))
            ]
            (line,) = axis.plot(
                [many for many, _ in known], [median(found) for _, found in known], marker="o", label=side
            )
            singles = [(many, share) for many, found in known for share in found]
            axis.scatter([many for many, _ in singles], [share for _, share in singles], s=6, color=line.get_color())
        axis.set_xscale("symlog", linthresh=10_000)
        axis.set_ylim(bottom=0)
        axis.set_xlabel("finished runs in the database")
        axis.set_ylabel(title)
        if axis.lines:
            axis.legend(fontsize=7)
    return figure


def main(source: Path, folder: Path) -> None:
    results: Results = [json.loads(line) for line in source.read_text().splitlines()[1:]]
    for name, draw in (("throughput", throughput), ("latency", latency), ("growth", growth)):
        figure = draw(results)
        figure.tight_layout()
        figure.savefig(folder / f"{name}.svg", metadata={"Date": None})


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
