"""The benchmarks run and say what they measured. How fast is not asked here."""

from __future__ import annotations

import tempfile
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import asyncpg
import pytest

from benchmarks import outbox_drain
from benchmarks.__main__ import chosen, installed, read, run
from benchmarks.bench import SIZES, Bench
from benchmarks.environments import Environments
from benchmarks.goals import GOALS, Ceiling, Ratio
from benchmarks.group_commit import WORKLOADS, table
from benchmarks.measuring import Measured, Reading, difference
from benchmarks.peers.growing import REAL
from benchmarks.places import Meters
from benchmarks.report import medians, page
from benchmarks.scenarios import SCENARIOS
from benchmarks.scenarios.waits import undisturbed
from benchmarks.sides import DBOS, HOLDFAST, SIDES
from benchmarks.stillness import Stillness
from benchmarks.wire import relayed

HEADER = {
    "date": "2026-01-01",
    "command": "python -m benchmarks",
    "commit": "abc1234",
    "load": "0.1",
    "slices": "1 × 0.3 s",
    "cores": 2,
    "python": "3.11",
    "postgres": {"fsync": "on"},
    "versions": {"dbos": "1"},
}


async def test_the_table_has_a_row_for_every_workload(tmp_path: Path) -> None:
    lines = await table({"SQLite": str(tmp_path / "bench.db")}, writers=4, seconds=0.05)

    assert [line.split(" | ")[0].removeprefix("| ") for line in lines[2:]] == list(WORKLOADS)
    assert all("×" in line for line in lines[2:])


async def test_the_outbox_is_drained_both_ways(tmp_path: Path) -> None:
    lines = await outbox_drain.table({"SQLite": str(tmp_path / "bench.db")}, rows=1_000)

    assert lines[2].startswith("| SQLite | ")
    assert float(lines[2].split(" | ")[3].removesuffix(" |")) > 0


async def test_holdfast_and_its_limits_are_measured_side_by_side(tmp_path: Path) -> None:
    done = await run("A,C,F-A,SSE-1000", "holdfast,raw_group,raw_sqlite_group", SIZES["smoke"], tmp_path)

    seen = medians(done.results)
    assert [result.problem for result in done.results if result.problem] == []
    assert {side for scenario, side in seen if scenario == "A" and seen[scenario, side]["units"] > 0} == {
        "holdfast",
        "raw_group",
    }
    assert seen["A", "holdfast"]["round_trips"] > 0
    assert seen["C", "holdfast"]["visible_p50_ms"] > seen["C", "holdfast"]["start_p50_ms"] > 0
    assert "disturbed_percent" in seen["C", "holdfast"]
    assert seen["F-A", "holdfast"]["rate"] > 0
    assert seen["SSE-1000", "holdfast"]["age_p99_ms"] >= seen["SSE-1000", "holdfast"]["age_p50_ms"] > 0
    assert seen["SSE-1000", "holdfast"]["leave_ms"] > 0
    assert done.header["postgres"]["fsync"] == "on"
    assert read(tmp_path / "results.jsonl") == done


async def test_a_place_can_have_a_history(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder, ExitStack() as stack:
        bench = Bench(Environments(tmp_path), SIZES["smoke"], Path(folder), stack)

        async with bench.place(HOLDFAST, history=3 * REAL) as place:
            runs = await place.count(HOLDFAST.question("done", "noop"))
            threads = await place.count("SELECT count(DISTINCT thread) FROM holdfast.journal")

    assert (runs, threads) == (3 * REAL, 3 * REAL)


async def test_a_relay_counts_round_trips(tmp_path: Path, postgres_url: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with relayed(postgres_url, Path(folder) / "wire") as wire:
            connection = await asyncpg.connect(wire.url)
            before = wire.trips
            for _ in range(5):
                await connection.execute("SELECT 1")
            await connection.close()

    assert 5 <= wire.trips - before <= 6


def test_every_scenario_of_a_side_exists_and_can_be_counted() -> None:
    for side in SIDES.values():
        assert side.scenarios <= set(SCENARIOS)
        assert "done" in side.counts


def test_every_goal_names_a_scenario_and_a_side_that_plays_it() -> None:
    for goal in GOALS:
        assert goal.scenario in SIDES["holdfast"].scenarios
        if isinstance(goal, Ratio):
            assert goal.scenario in SIDES[goal.side].scenarios


def test_a_peer_that_cannot_be_installed_is_reported(tmp_path: Path) -> None:
    broken = replace(DBOS, packages=("./no-such-package-here",))

    missing = installed(Environments(tmp_path), [broken])

    assert missing["dbos"].startswith("dbos: cannot be installed")


def test_what_was_not_measured_is_on_the_page_with_its_reason() -> None:
    results = [
        Measured("A", "holdfast", 0, {"rate": 10.0}),
        Measured("A", "dbos", 0, problem="no network"),
    ]

    text = page(HEADER, results, [])

    assert "* A, DBOS: no network" in text
    assert "at abc1234 with `python -m benchmarks`" in text
    assert "| A: drain no-op runs, 1 worker | Holdfast | 10 | 10–10 |" in text


def test_costs_are_per_unit_of_what_became_durable() -> None:
    first = Reading(at_s=1.0, units=100, meters=Meters(1.0, 1_000, 10), cpu_s=0.5)
    last = Reading(at_s=3.0, units=300, meters=Meters(1.2, 5_000, 20), cpu_s=0.9)

    values = difference(first, last)

    assert values["rate"] == 100
    assert values["wal_bytes"] == 20
    assert values["transactions"] == 0.05
    assert values["side_cpu_us"] == pytest.approx(2_000)
    assert values["server_cpu_us"] == pytest.approx(1_000)


def test_goals_compare_medians() -> None:
    results = [Measured("A", side, repeat, {"rate": rate}) for side, repeat, rate in [
        ("holdfast", 0, 100.0), ("holdfast", 1, 300.0), ("holdfast", 2, 200.0), ("dbos", 0, 10.0),
    ]]  # fmt: skip

    seen = medians(results)

    assert Ratio("A", "dbos", 12).seen(seen) == 20
    assert Ratio("A", "dbos", 12).is_met(20)
    assert Ceiling("C", "start_p50_ms", 4).seen(seen) is None


def test_an_ask_is_disturbed_when_cores_stood_still_during_it() -> None:
    stillness = Stillness()
    stillness.gaps += [(0.0, 11.0), (13.0, 17.0), (14.0, 30.0)]

    assert stillness.between(10.0, 20.0) == 1.0 + 4.0 + 6.0
    asked = {"began_at": [10.0, 30.0, 40.0], "visible_ms": [20.0, 2.0, 4.0]}
    assert undisturbed(asked, stillness) == {
        "disturbed_percent": pytest.approx(100 / 3),
        "undisturbed_p50_ms": 4.0,
        "undisturbed_p99_ms": 4.0,
    }


def test_a_sleeper_that_wakes_late_notes_when_it_was_due(monkeypatch: pytest.MonkeyPatch) -> None:
    sleep = time.sleep
    stillness = Stillness()
    monkeypatch.setattr("benchmarks.stillness.time.sleep", lambda nap_s: sleep(nap_s + 0.005))

    began = time.monotonic() * 1_000
    with stillness.watched():
        sleep(0.05)
    ended = time.monotonic() * 1_000

    assert stillness.gaps
    assert all(began < due < woken <= ended and woken - due >= 4 for due, woken in stillness.gaps)


def test_a_name_that_is_nobodys_stands_for_all_that_begin_with_it() -> None:
    assert chosen("raw", ["holdfast", "raw_each", "raw_group"]) == ["raw_each", "raw_group"]
    assert chosen("A,E", ["A", "A-live", "E-0", "E-old"]) == ["A", "E-0", "E-old"]
    with pytest.raises(SystemExit, match="not known: x; known are a, b"):
        chosen("x", ["a", "b"])
