"""All scenarios for all sides, side by side on one Postgres: `.bench/results.jsonl` and a page of ratios.

make bench                                                     # 40 to 45 minutes, pages in docs/benchmarks
python -m benchmarks --only A,B --peers dbos,raw --size small  # a part of it, printed
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import shlex
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import asyncpg

from benchmarks.bench import SIZES, Bench, Size
from benchmarks.environments import Environments
from benchmarks.measuring import Measured
from benchmarks.processes import ROOT, Broken
from benchmarks.report import PLOTS, page
from benchmarks.scenarios import GROWTH, IN_TURNS, SCENARIOS, TURNS, Scenario, side_by_side
from benchmarks.sides import DRAWING, SIDES, Side

HOME = ROOT / ".bench"
RESULTS = "results.jsonl"


class Run(NamedTuple):
    """What was measured, and what a reader must know to believe it."""

    header: dict[str, Any]
    results: list[Measured]


def chosen(names: str, known: Sequence[str]) -> list[str]:
    """Those named, or all; a name that is nobody's stands for all that begin with it."""
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    found = {each: [name for name in known if name == each] or _beginning(each, known) for each in wanted}
    unknown = [each for each in wanted if not found[each]]
    if unknown:
        raise SystemExit(f"not known: {', '.join(unknown)}; known are {', '.join(known)}")
    return [name for name in known if not wanted or any(name in names for names in found.values())]


def _beginning(prefix: str, known: Sequence[str]) -> list[str]:
    return [name for name in known if name.startswith((f"{prefix}_", f"{prefix}-"))]


def installed(environments: Environments, sides: Sequence[Side]) -> dict[str, str]:
    """Sides that cannot be had, with the reason."""
    missing: dict[str, str] = {}
    for side in sides:
        try:
            environments.install(side)
        except Broken as error:
            missing[side.name] = str(error)
    return missing


async def measure(
    bench: Bench, scenarios: Sequence[Scenario], sides: Sequence[Side], missing: dict[str, str]
) -> AsyncIterator[Measured]:
    """Side after side within each repeat, and kin beside kin, so that a noisy minute falls on all of them."""
    for family in families(scenarios):
        for repeat in range(bench.size.repeats * (TURNS if family[0].name in IN_TURNS else 1)):
            for group in [family] if family[0].name in GROWTH else [[scenario] for scenario in family]:
                for side in sides:
                    played = [scenario for scenario in group if scenario.name in side.scenarios]
                    for result in await _slice(bench, played, side, repeat, missing) if played else ():
                        yield result


def families(scenarios: Sequence[Scenario]) -> list[list[Scenario]]:
    """Those that are compared with each other, everybody else alone."""
    kin = {name: names for names in (IN_TURNS, tuple(GROWTH)) for name in names}
    return [list(family) for _, family in groupby(scenarios, lambda each: kin.get(each.name, (each.name,)))]


async def _slice(
    bench: Bench, scenarios: Sequence[Scenario], side: Side, repeat: int, missing: dict[str, str]
) -> list[Measured]:
    """One slice of one scenario, or the rounds of several that grow."""
    problem = missing.get(side.name)
    if problem is None:
        try:
            if scenarios[0].name in GROWTH:
                return await side_by_side(bench, [GROWTH[scenario.name] for scenario in scenarios], side, repeat)
            return [await scenario.play(bench, side, repeat) for scenario in scenarios]
        except Broken as error:
            problem = str(error)
        except (OSError, asyncpg.PostgresError) as error:
            # A database that a side broke is that side's problem; the next one gets another.
            problem = f"{type(error).__name__}: {error}"
    return [Measured(scenario.name, side.name, repeat, problem=problem) for scenario in scenarios]


def say(result: Measured) -> None:
    seen = result.problem or ", ".join(f"{name} {value:,.1f}" for name, value in result.values.items())
    print(f"{result.scenario:8} {result.side:18} {seen}", file=sys.stderr, flush=True)


async def run(only: str, peers: str, size: Size, home: Path) -> Run:
    """Measure, and answer what was seen; `results.jsonl` has it as it comes.

    Postgres must wait for its disk, or there is nothing to compare.
    """
    sides = [SIDES[name] for name in chosen(peers, list(SIDES))]
    scenarios = [SCENARIOS[name] for name in chosen(only, list(SCENARIOS))]
    environments = Environments(home)
    missing = installed(environments, sides)
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder, ExitStack() as stack:
        bench = Bench(environments, size, Path(folder), stack)
        settings = await bench.server().settings()
        if (settings["fsync"], settings["synchronous_commit"]) != ("on", "on"):
            raise SystemExit(f"Postgres does not wait for its disk: {settings}")
        done = Run(_header(size, sides, settings), [])
        (home / RESULTS).write_text(json.dumps(done.header) + "\n")
        async for result in measure(bench, scenarios, sides, missing):
            done.results.append(result)
            say(result)
            with (home / RESULTS).open("a") as file:
                file.write(json.dumps(asdict(result)) + "\n")
    return done


def _header(size: Size, sides: Sequence[Side], settings: dict[str, str]) -> dict[str, Any]:
    pinned = [package for side in sides for package in (*side.packages, *side.npm)]
    return {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "command": shlex.join(["python", "-m", "benchmarks", *sys.argv[1:]]),
        "commit": commit(),
        "load": f"{os.getloadavg()[0]:.1f}",
        "slices": f"{size.repeats} × {size.seconds:g} s",
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "postgres": settings,
        "versions": dict(package.replace("==", "@").rsplit("@", 1) for package in dict.fromkeys(pinned)),
    }


def commit() -> str:
    asked = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True)
    return asked.stdout.strip() or "unknown"


def draw(environments: Environments, source: Path, folder: Path) -> list[str]:
    """The plots, if what draws them can be had; they are extra, the table is not."""
    try:
        environments.install(DRAWING)
    except Broken as error:
        print(f"no plots: {error}", file=sys.stderr)
        return []
    python = environments.python(DRAWING)
    subprocess.run([str(python), "-m", DRAWING.module, str(source), str(folder)], check=True, cwd=ROOT)
    return list(PLOTS)


def read(source: Path) -> Run:
    header, *lines = (json.loads(line) for line in source.read_text().splitlines())
    return Run(header, [Measured(**line) for line in lines])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="scenarios, for example A,B; E stands for E-0, E-100k …")
    parser.add_argument("--peers", default="", help="sides, for example holdfast,raw,dbos")
    parser.add_argument("--size", default="small", choices=SIZES)
    parser.add_argument("--repeats", type=int, help="slices of each side, if not as many as the size has")
    parser.add_argument("--page", type=Path, help="a folder for the page and its plots; else it is printed")
    parser.add_argument("--again", action="store_true", help="measure nothing: write the page from the last results")
    options = parser.parse_args()
    HOME.mkdir(exist_ok=True)
    size = SIZES[options.size]
    if not options.again:
        repeats = options.repeats or size.repeats
        asyncio.run(run(options.only, options.peers, replace(size, repeats=repeats), HOME))
    done = read(HOME / RESULTS)
    if options.page is None:
        print(page(done.header, done.results, []))
        return
    options.page.mkdir(parents=True, exist_ok=True)
    plots = draw(Environments(HOME), HOME / RESULTS, options.page)
    (options.page / "README.md").write_text(page(done.header, done.results, plots))


if __name__ == "__main__":
    main()
