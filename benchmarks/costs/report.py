"""The page of costs: what grows and what does not, what a process holds, and what the simulated fleet did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.costs.drawing import Point, lines
from benchmarks.costs.growth import FINISHED, LAST, LENGTH, WALK, Cost
from benchmarks.costs.hints import LISTENING
from benchmarks.costs.memory import Connected, Held
from benchmarks.costs.sizes import Sized
from benchmarks.costs.thousand_workers import Prices, Seen, idle_rates

TITLES = {
    FINISHED: "Against finished runs in the database",
    LENGTH: "Against the length of one run",
    LAST: "Along a long flow",
    WALK: "A check of everything",
    LISTENING: "A hint, against those who listen",
}
NOTES = {
    FINISHED: "Each should be flat: what is over must not be in the way.",
    LENGTH: "Claims and events should be flat. As-of and fsck read a run from its first entry, so they are per entry: "
    "what a call costs by itself is shared by all of them. The raw read has less of that, so they grow by its measure.",
    LAST: "The first tenth of the steps of one flow, and the last.",
    WALK: "`fsck()` over the whole database, per entry. It ran once at each size.",
    LISTENING: "Postgres wakes every session that listens. Units are hints; raw is a read of one row.",
}


@dataclass
class Found:
    """Everything that was measured, and what a reader must know to believe it."""

    header: dict[str, Any]
    costs: list[Cost]
    sizes: list[Sized]
    memory: list[Held]
    connected: Connected | None
    prices: Prices
    fleets: list[Seen]


def page(found: Found) -> str:
    """Everything, as Markdown."""
    header = found.header
    server = ", ".join(f"{name} = {value}" for name, value in header["postgres"].items())
    parts = [
        "# Costs: what grows, what a process holds, a thousand workers",
        f"Measured on {header['date']} with `{header['command']}`: {header['cores']} cores, Python {header['python']}, "
        f"SQLite {header['sqlite']}; Postgres with {server}. Load average while measuring: {header['load']}.",
        "Ours and a raw statement of the same shape took turns on the same database, block by block; the raw tables do "
        "not grow. Times are medians over blocks, one call after the other, each waiting for the disk; CPU is of this "
        "process and the server together. `×` is our time in raw's. *Growth* is that ratio as a multiple of the ratio "
        "at the first size; *growth, CPU* is the same for CPU. On a busy machine trust CPU: time is mostly waiting for "
        "others. What remains of the noise is some tens of per cent; what grows, grows at every size.",
        *_growth(found.costs),
        "## On disk",
        "What one finished no-op run leaves: a row, a tick and three entries. Indexes of open work keep nothing of it.",
        "\n".join(sizes(found.sizes)),
        "## Memory",
        "Bytes for each run in the process of a worker. *Traced* is all that Python allocated, *resident* what the "
        "process grew by, in processes of their own. What a reader of a live stream costs an API process stands beside "
        "its latency: [SSE-1000](README.md#latency).",
        "\n".join(memory(found.memory)),
        *connections(found.connected),
        "## A thousand workers, simulated",
        "\n".join(prices(found.prices)),
        "![From due to taken](costs-waits.svg)\n\n![The database's cores](costs-busy.svg)\n\n"
        "![How long a commit waits for a core](costs-line.svg)",
        "\n".join(fleets(found.fleets)),
        "An idle worker asks, in statements a second: "
        + ", ".join(f"{name} {rate:.2f}" for name, rate in idle_rates().items())
        + f"; {sum(idle_rates().values()):.2f} in all.",
    ]
    return "\n\n".join(parts) + "\n"


def _growth(costs: Sequence[Cost]) -> list[str]:
    parts = []
    for against, title in TITLES.items():
        some = [cost for cost in costs if cost.against == against]
        if some:
            parts += [f"## {title}", NOTES[against]]
            parts += [f"![{title}]({name})" for name in pictures_of(some)]
            parts.append("\n".join(table(some)))
    return parts


def table(costs: Sequence[Cost]) -> list[str]:
    """Operations in the order of their sizes."""
    lines = [
        "| database | operation | size | ours, µs | raw, µs | × | CPU, µs | raw CPU, µs | growth | growth, CPU |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for operation in dict.fromkeys((cost.database, cost.operation) for cost in costs):
        some = [cost for cost in costs if (cost.database, cost.operation) == operation]
        for cost in some:
            grown = "" if cost is some[0] else f"{cost.ratio / some[0].ratio:.2f}"
            grown_cpu = "" if cost is some[0] else f"{cpu_ratio(cost) / cpu_ratio(some[0]):.2f}"
            times = f"{_short(cost.ours_us)} | {_short(cost.raw_us)} | {cost.ratio:.1f}"
            cpu = f"{_short(cost.ours_cpu_us)} | {_short(cost.raw_cpu_us)}"
            head = f"{cost.database} | {cost.operation} | {cost.size:,}"
            lines.append(f"| {head} | {times} | {cpu} | {grown} | {grown_cpu} |")
    return lines


def cpu_ratio(cost: Cost) -> float:
    return cost.ours_cpu_us / cost.raw_cpu_us


def sizes(found: Sequence[Sized]) -> list[str]:
    """The largest first, and what they come to."""
    lines = ["| database | what | sort | bytes for each run |", "|---|---|---|---:|"]
    for database in dict.fromkeys(each.database for each in found):
        some = [each for each in found if each.database == database]
        lines += [f"| {database} | {each.relation} | {each.sort} | {each.bytes_each:,.0f} |" for each in some]
        if len(some) > 1:
            lines.append(f"| {database} | all |  | {sum(each.bytes_each for each in some):,.0f} |")
    return lines


def memory(held: Sequence[Held]) -> list[str]:
    lines = ["| database | a run that is | runs | traced, bytes | resident, bytes |", "|---|---|---:|---:|---:|"]
    for each in held:
        numbers = f"{each.runs:,} | {each.traced:,.0f} | {each.resident:,.0f}"
        lines.append(f"| {each.database} | {each.kind} | {numbers} |")
    return lines


def connections(connected: Connected | None) -> list[str]:
    if connected is None:
        return []
    return [
        f"Connections of one process to Postgres: {connected.opened} when it is opened, {connected.idle} with an idle "
        f"worker, {connected.busy} with a worker whose 64 slots were full."
    ]


def prices(given: Prices) -> list[str]:
    return [
        "CPU of the server for a statement, as measured above on Postgres without history: "
        f"{given.poll_s * 1e6:,.0f} µs for a claim that finds nothing, {given.claim_s * 1e6:,.0f} µs for each row of a "
        f"claim of ten, {given.settle_s * 1e6:,.0f} µs for the commit that ends a tick, for which that of one event "
        "stands, alone in its group.",
    ]


def fleets(seen: Sequence[Seen]) -> list[str]:
    lines = [
        "| workers | heed a hint | arrivals | claims/s | empty | cores busy | due to taken p50, ms | p99 | longest "
        "| a commit in line p99, ms |",
        "|---:|---|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for each in seen:
        arrivals = _arrivals(each)
        waits = " | ".join(f"{wait:,.1f}" for wait in (*each.waits_ms, each.line_ms))
        waits = " |  |  | " if arrivals == "none" else waits
        lines.append(
            f"| {each.fleet.workers:,} | {heeding(each)} | {arrivals} | {each.claims_per_s:,.0f} "
            f"| {each.empty_share:.1%} | {each.busy_share:.0%} of {each.fleet.cores} | {waits} |"
        )
    return lines


def heeding(seen: Seen) -> str:
    if not seen.fleet.heeded:
        return "no hints"
    few = round(seen.fleet.heeded * seen.fleet.workers)
    return "all" if seen.fleet.heeded >= 1 else f"about {few}"


def _arrivals(seen: Seen) -> str:
    if seen.fleet.burst:
        return f"{seen.fleet.burst:,} at once"
    return f"{seen.fleet.arrivals_per_s:,.0f}/s" if seen.fleet.arrivals_per_s else "none"


def pictures_of(costs: Sequence[Cost]) -> list[str]:
    """A picture for each database that has more than one size."""
    if costs[0].against not in (FINISHED, LENGTH):
        return []
    databases = dict.fromkeys(cost.database for cost in costs)
    return [_file(costs[0].against, database) for database in databases]


def pictures(found: Found) -> Mapping[str, str]:
    """All pictures, by the name of their file."""
    drawn: dict[str, str] = {}
    for against in (FINISHED, LENGTH):
        for database in dict.fromkeys(cost.database for cost in found.costs):
            some = [cost for cost in found.costs if (cost.against, cost.database) == (against, database)]
            series = {
                operation: [(float(cost.size), cost.ours_cpu_us) for cost in some if cost.operation == operation]
                for operation in dict.fromkeys(cost.operation for cost in some)
            }
            if series:
                title = f"{database}: CPU of a unit, µs"
                drawn[_file(against, database)] = lines(title, against, series, up_is_log=True)
    loads = [each for each in found.fleets if each.fleet.arrivals_per_s]
    waits = _by_heeding(loads, lambda each: each.waits_ms[1])
    in_line = _by_heeding(loads, lambda each: each.line_ms)
    busy = _by_heeding(loads, lambda each: each.busy_share * 100)
    drawn["costs-waits.svg"] = lines("From due to taken, p99, ms", "arrivals a second", waits, up_is_log=True)
    drawn["costs-line.svg"] = lines("A commit in line, p99, ms", "arrivals a second", in_line)
    drawn["costs-busy.svg"] = lines("Busy share of the database's cores, %", "arrivals a second", busy)
    return drawn


def _by_heeding(loads: Sequence[Seen], value: Any) -> dict[str, list[Point]]:
    most = max((each.fleet.workers for each in loads), default=0)
    series: dict[str, list[Point]] = {}
    for each in loads:
        if each.fleet.workers == most:
            series.setdefault(heeding(each), []).append((each.fleet.arrivals_per_s, value(each)))
    return series


def _file(against: str, database: str) -> str:
    return f"costs-{against.split()[0]}-{database.lower()}.svg"


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}"
