"""What a unit costs as things grow: `.bench/costs.jsonl`, and a page with pictures.

make bench-costs                                # minutes, pages in docs/benchmarks
make bench-costs ARGS="--size full"             # with a million finished runs
python -m benchmarks.costs --only simulation    # a part of it, printed
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import sqlite3
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.costs import hints, memory, sizes
from benchmarks.costs.growth import FINISHED, Cost, Extent, Growth
from benchmarks.costs.memory import Connected, Held
from benchmarks.costs.report import Found, page, pictures
from benchmarks.costs.sizes import Sized
from benchmarks.costs.thousand_workers import Fleet, Prices, Seen, scenes, simulate
from benchmarks.costs.yardstick import Raw, RawPostgres, RawSqlite
from benchmarks.places import Place, Server, SqlitePlace, server
from benchmarks.processes import ROOT
from holdfast import Holdfast

HOME = ROOT / ".bench"
RESULTS = "costs.jsonl"
PAGE = "costs.md"
POSTGRES, SQLITE = "Postgres", "SQLite"
PARTS = ("growth", "sizes", "memory", "simulation")
TYPICAL = Prices(poll_s=100e-6, claim_s=60e-6, settle_s=200e-6)
"""For a simulation without a measurement before it: what storage statements cost on an idle machine, roughly."""
EMPTY = "empty"


@dataclass(frozen=True)
class Size:
    """How much of everything."""

    extent: Extent
    sized_runs: int
    memory_runs: int
    fleet: Fleet


_LENGTHS = (10, 1_000, 10_000)
SIZES = {
    "smoke": Size(
        Extent((0, 200), (10, 30), (150,), steps=40, blocks=2, units=10, listeners=(1, 3)),
        sized_runs=200,
        memory_runs=20,
        fleet=Fleet(workers=20, warm_s=1.0, seconds=1.0),
    ),
    "small": Size(
        Extent((0, 100_000), _LENGTHS, (1_000, 4_000), steps=5_000, blocks=13, units=20, listeners=(1, 20, 60)),
        sized_runs=100_000,
        memory_runs=9_500,
        fleet=Fleet(warm_s=3.0, seconds=4.0),
    ),
    "full": Size(
        Extent(
            (0, 100_000, 1_000_000), _LENGTHS, (1_000, 4_000), steps=5_000, blocks=13, units=20, listeners=(1, 20, 60)
        ),
        sized_runs=100_000,
        memory_runs=9_500,
        fleet=Fleet(warm_s=3.0, seconds=4.0),
    ),
}


KINDS = {"growth": ("cost",), "sizes": ("sized",), "memory": ("held", "connected"), "simulation": ("prices", "fleet")}


class Notes:
    """Results are on disk as they come. What other parts have left there stays."""

    def __init__(self, file: Path, parts: Sequence[str]) -> None:
        self._file = file
        anew = {"header", *(kind for part in parts for kind in KINDS[part])}
        kept = [line for line in _lines(file) if line["note"] not in anew] if file.exists() else []
        file.write_text("".join(json.dumps(line) + "\n" for line in kept))

    def add(self, kind: str, value: dict[str, Any]) -> None:
        with self._file.open("a") as file:
            file.write(json.dumps({"note": kind, **value}) + "\n")
        print(kind, value, file=sys.stderr, flush=True)


def _lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def read(file: Path) -> Found:
    """Everything that was noted."""
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for line in _lines(file):
        by_kind.setdefault(line.pop("note"), []).append(line)
    return Found(
        header=by_kind["header"][-1],
        costs=[Cost(**line) for line in by_kind.get("cost", [])],
        sizes=[Sized(**line) for line in by_kind.get("sized", [])],
        memory=[Held(**line) for line in by_kind.get("held", [])],
        connected=next((Connected(**line) for line in by_kind.get("connected", [])), None),
        prices=next((Prices(**line) for line in by_kind.get("prices", [])), TYPICAL),
        fleets=[Seen(**{**line, "fleet": Fleet(**line["fleet"])}) for line in by_kind.get("fleet", [])],
    )


async def measure(parts: Sequence[str], size: Size, file: Path, command: str) -> Found:
    """All parts that are named."""
    notes = Notes(file, parts)
    began = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="holdfast-costs-") as folder, server(Path(folder) / "data") as postgres:
        settings = await postgres.settings()
        await postgres.make(EMPTY)
        for database in (POSTGRES, SQLITE):
            if "growth" in parts:
                async for cost in growth(database, postgres, Path(folder), size.extent):
                    notes.add("cost", asdict(cost))
            if "sizes" in parts:
                async with place(database, postgres, Path(folder)) as fresh:
                    for sized in await sizes.measure(database, fresh, size.sized_runs):
                        notes.add("sized", asdict(sized))
            if "memory" in parts:
                async for kind, held in held_by(database, postgres, Path(folder), size.memory_runs):
                    notes.add(kind, asdict(held))
    notes.add("header", _header(settings, command, f"{began:.1f} to {os.getloadavg()[0]:.1f}"))
    if "simulation" in parts:
        prices = priced(read(file).costs)
        notes.add("prices", prices._asdict())
        for fleet in scenes(size.fleet):
            notes.add("fleet", asdict(simulate(fleet, prices)))
    return read(file)


async def growth(database: str, postgres: Server, folder: Path, extent: Extent) -> AsyncIterator[Cost]:
    async with place(database, postgres, folder) as fresh:
        raw: Raw = (
            await RawPostgres.open(fresh.url) if database == POSTGRES else RawSqlite(folder / f"raw-{os.getpid()}.db")
        )
        try:
            async with Holdfast(fresh.url) as hf:
                async for cost in Growth(database, fresh, hf, raw, extent).measure():
                    yield cost
            if database == POSTGRES:
                async for cost in hints.measure(database, fresh, raw, extent):
                    yield cost
        finally:
            await raw.close()


async def held_by(
    database: str, postgres: Server, folder: Path, runs: int
) -> AsyncIterator[tuple[str, Held | Connected]]:
    async with place(database, postgres, folder) as fresh:
        for held in await memory.measure(database, fresh.url, runs):
            yield "held", held
        if database == POSTGRES:
            yield "connected", await memory.connections(fresh.url)


@asynccontextmanager
async def place(database: str, postgres: Server, folder: Path) -> AsyncIterator[Place]:
    """A fresh database of this kind."""
    if database == POSTGRES:
        async with postgres.place(EMPTY) as made:
            yield made
        return
    with tempfile.TemporaryDirectory(dir=folder) as own:
        yield SqlitePlace(Path(own) / "costs.db")


def priced(costs: Sequence[Cost]) -> Prices:
    """What the simulated database charges: what the real one did, without history."""
    seen = {
        cost.operation: cost.server_cpu_us / 1e6
        for cost in reversed(costs)
        if (cost.database, cost.against) == (POSTGRES, FINISHED)
    }
    if not {"empty poll", "claim", "event"} <= seen.keys():
        return TYPICAL
    return Prices(seen["empty poll"], seen["claim"], seen["event"])


def _header(settings: dict[str, str], command: str, load: str) -> dict[str, Any]:
    return {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "command": command,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "postgres": settings,
        "load": load,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(PARTS), help=f"of {', '.join(PARTS)}")
    parser.add_argument("--size", default="small", choices=SIZES)
    parser.add_argument("--page", type=Path, help="a folder for the page and its pictures; else it is printed")
    parser.add_argument("--again", action="store_true", help="measure nothing: write the page from the last results")
    options = parser.parse_args()
    parts = [part.strip() for part in options.only.split(",")]
    if unknown := set(parts) - set(PARTS):
        raise SystemExit(f"not known: {', '.join(sorted(unknown))}; known are {', '.join(PARTS)}")
    HOME.mkdir(exist_ok=True)
    if not options.again:
        command = f'make bench-costs ARGS="--size {options.size}"'
        asyncio.run(measure(parts, SIZES[options.size], HOME / RESULTS, command))
    found = read(HOME / RESULTS)
    if options.page is None:
        print(page(found))
        return
    options.page.mkdir(parents=True, exist_ok=True)
    (options.page / PAGE).write_text(page(found))
    for name, picture in pictures(found).items():
        (options.page / name).write_text(picture)


if __name__ == "__main__":
    main()
