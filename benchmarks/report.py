"""The page: medians with their spread, ratios, what a unit costs, latencies, growth, goals, and what is missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from benchmarks.goals import Medians, judged
from benchmarks.growth import EMPTY, cpu_us, shares
from benchmarks.measuring import Measured, quantiles
from benchmarks.scenarios import SCENARIOS
from benchmarks.sides import HOLDFAST, SIDES

COSTS = {
    "side_cpu_us": "its CPU, µs",
    "server_cpu_us": "server CPU, µs",
    "transactions": "write tx",
    "wal_bytes": "WAL, bytes",
    "round_trips": "round trips",
}
GROWN = ("E-100k", "E-1m", "E-old")
PLOTS = {
    "throughput.svg": "Throughput of all sides, on a logarithmic scale",
    "latency.svg": "Latency on an idle system",
    "growth.svg": "The rate and the CPU of a run as finished runs gather",
}


def page(header: Mapping[str, Any], results: Sequence[Measured], plots: Sequence[str]) -> str:
    """Everything, as Markdown."""
    seen = medians(results)
    versions = ", ".join(f"{name} {version}" for name, version in header["versions"].items())
    server = ", ".join(f"{name} = {value}" for name, value in header["postgres"].items())
    parts = [
        "# Benchmarks",
        f"Measured on {header['date']} at {header['commit']} with `{header['command']}` ({header['slices']} for each "
        f"side): {header['cores']} cores with a load of {header['load']} before it began, Python {header['python']}; "
        f"Postgres with {server}. {versions}.",
        "All sides worked one after the other on the same Postgres, slice by slice; what is counted was durable in "
        "their own tables. Absolute rates on a shared machine mean little, ratios of neighbouring slices more. How "
        "many times as much CPU a unit takes (*by CPU*) hardly depends on what else the machine does. Costs are per "
        "unit; round trips were counted in a slice of their own, through a relay.",
        "## Throughput",
        *(f"![{PLOTS[name]}]({name})" for name in plots if name == "throughput.svg"),
        "\n".join(throughput(results)),
        "## A second worker",
        "How many times as much two workers do as one, on two databases of one server by turns of less than a second.",
        "\n".join(second(results)),
        "## Latency",
        *(f"![{PLOTS[name]}]({name})" for name in plots if name == "latency.svg"),
        "\n".join(latency(results)),
        "## Growth",
        *(f"![{PLOTS[name]}]({name})" for name in plots if name == "growth.svg"),
        "\n".join(growth(seen)),
        "## Goals",
        "\n".join(judged(seen)),
        "What stands between us and those that are missed: [bounds](bounds.md). Two goals are shown elsewhere: that "
        "the last 500 steps of 5,000 cost what the first 500 do, by [costs](costs.md#along-a-long-flow); that nobody "
        "starves on a shared SQLite file, by `tests/contract/test_two_processes.py`.",
        "## Not measured",
        "\n".join(missing(results)) or "Nothing was left out.",
    ]
    return "\n\n".join(parts) + "\n"


def medians(results: Sequence[Measured]) -> Medians:
    """The median of every value, over the repeats of one side in one scenario; quantiles are of all their samples.

    What grew is compared with what was empty in the same round: the medians of `shares` are here too.
    """
    empty = {(each.side, each.repeat): each.values for each in results if each.scenario == EMPTY}
    found: dict[tuple[str, str], dict[str, list[float]]] = {}
    samples: dict[tuple[str, str], dict[str, list[float]]] = {}
    for result in results:
        values = found.setdefault((result.scenario, result.side), {})
        for name, value in result.values.items():
            values.setdefault(name, []).append(value)
        before = empty.get((result.side, result.repeat))
        if result.scenario in GROWN and before:
            for name, share in shares(before, result.values).items():
                values.setdefault(name, []).append(share)
        for name, seen in result.samples.items():
            samples.setdefault((result.scenario, result.side), {}).setdefault(name, []).extend(seen)
    return {
        key: {name: median(many) for name, many in values.items()} | quantiles(samples.get(key, {}))
        for key, values in found.items()
        if values
    }


def throughput(results: Sequence[Measured]) -> list[str]:
    """Rates with their spread, how many times Holdfast's they are, and what a unit costs."""
    lines = [
        "| scenario | side | per second | spread | Holdfast is | by CPU | " + " | ".join(COSTS.values()) + " |",
        "|---|---|---:|---:|---:|---:|" + "---:|" * len(COSTS),
    ]
    seen = medians(results)
    for (scenario, side), values in seen.items():
        if "rate" not in values:
            continue
        rates = [
            each.values["rate"]
            for each in results
            if (each.scenario, each.side) == (scenario, side) and not each.problem
        ]
        ours = seen.get((scenario, HOLDFAST.name), {})
        ratio, by_cpu = ("", "") if side == HOLDFAST.name else (_ratio(ours, values), _ratio_by_cpu(ours, values))
        costs = " | ".join(_short(values.get(cost)) for cost in COSTS)
        lines.append(
            f"| {scenario}: {SCENARIOS[scenario].title} | {SIDES[side].title} | {values['rate']:,.0f} "
            f"| {min(rates):,.0f}–{max(rates):,.0f} | {ratio} | {by_cpu} | {costs} |"
        )
    return lines


def _ratio(ours: Mapping[str, float], theirs: Mapping[str, float]) -> str:
    return f"{ours['rate'] / theirs['rate']:.2f}×" if ours.get("rate") and theirs["rate"] else ""


def _ratio_by_cpu(ours: Mapping[str, float], theirs: Mapping[str, float]) -> str:
    """How many times as much CPU, of side and server, a unit of theirs takes: what a busy machine does not distort."""
    return f"{cpu_us(theirs) / cpu_us(ours):.2f}×" if cpu_us(ours) and cpu_us(theirs) else ""


def second(results: Sequence[Measured]) -> list[str]:
    """What a second worker adds, with the spread of its gain."""
    lines = ["| scenario | side | one | two | gain | spread |", "|---|---|---:|---:|---:|---:|"]
    for (scenario, side), values in medians(results).items():
        if "gain" in values:
            gains = [
                each.values["gain"]
                for each in results
                if (each.scenario, each.side) == (scenario, side) and "gain" in each.values
            ]
            lines.append(
                f"| {scenario}: {SCENARIOS[scenario].title} | {SIDES[side].title} | {values['rate_of_one']:,.0f} "
                f"| {values['rate']:,.0f} | {values['gain']:.2f}× | {min(gains):.2f}–{max(gains):.2f} |"
            )
    return lines


def latency(results: Sequence[Measured]) -> list[str]:
    """What is not a rate: milliseconds, and what an idle worker costs."""
    lines = ["| scenario | side | seen |", "|---|---|---|"]
    for (scenario, side), values in medians(results).items():
        if "rate" not in values:
            told = ", ".join(f"{_words(name)} {value:,.1f}" for name, value in values.items())
            lines.append(f"| {scenario}: {SCENARIOS[scenario].title} | {SIDES[side].title} | {told} |")
    return lines


def growth(seen: Medians) -> list[str]:
    """Rates and CPU of a unit as shares of the same side's with nothing behind it, in turns of less than a second."""
    titles = [SCENARIOS[name].title for name in GROWN]
    header = [*(f"rate: {title}" for title in titles), *(f"CPU: {title}" for title in titles)]
    lines = ["| side | " + " | ".join(header) + " |", "|---|" + "---:|" * len(header)]
    for scenario, side in seen:
        if scenario == EMPTY and seen[scenario, side].get("rate"):
            found = [seen.get((grown, side), {}).get(share) for share in ("kept", "cpu_times") for grown in GROWN]
            told = " | ".join("" if share is None else f"{share:.2f}" for share in found)
            lines.append(f"| {SIDES[side].title} | {told} |")
    return lines


def missing(results: Sequence[Measured]) -> list[str]:
    """Every cell without a number, with the reason; nothing is dropped silently."""
    reasons = {(result.scenario, result.side): result.problem for result in results if result.problem}
    return [f"* {scenario}, {SIDES[side].title}: {problem}" for (scenario, side), problem in reasons.items()]


def _words(name: str) -> str:
    return (
        name.replace("_per_s", "/s")
        .replace("_ms", " (ms)")
        .replace("_us", " (µs)")
        .replace("_kb", " (kB)")
        .replace("_percent", " (%)")
        .replace("_", " ")
    )


def _short(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 10 else f"{value:.2f}"
