"""The measurements of cost run and say what they measured. How much is not asked here, except of the simulation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit
from xml.etree import ElementTree

import asyncpg
import pytest

from benchmarks.costs import memory
from benchmarks.costs.__main__ import PARTS, POSTGRES, SIZES, SQLITE, TYPICAL, Notes, measure, priced, read
from benchmarks.costs.drawing import lines
from benchmarks.costs.growth import FINISHED, LAST, LENGTH, WALK, Cost
from benchmarks.costs.history import copy_id, fill, sample
from benchmarks.costs.memory import IDLE, LIVE, Held
from benchmarks.costs.report import Found, page, pictures
from benchmarks.costs.sizes import FILE, Sized
from benchmarks.costs.thousand_workers import Fleet, Prices, idle_rates, scenes, simulate
from holdfast import Clog, Context, Done, Holdfast
from holdfast.worker import IDLE_MAX_S

SMOKE = SIZES["smoke"]
HEADER = {
    "date": "2026-01-01",
    "command": "python -m benchmarks.costs",
    "cores": 2,
    "python": "3.11",
    "sqlite": "3.40",
    "postgres": {"fsync": "on"},
    "load": "1.0 to 2.0",
}


@pytest.mark.timeout(300)
async def test_every_operation_is_measured_at_every_size_on_both_databases(tmp_path: Path) -> None:
    found = await measure(["growth", "sizes"], SMOKE, tmp_path / "costs.jsonl", "the command")

    for database in (SQLITE, POSTGRES):
        seen = {(cost.against, cost.operation, cost.size) for cost in found.costs if cost.database == database}
        for history in SMOKE.extent.histories:
            for operation in ("empty poll", "claim", "event", "step", "as-of query", "fsck entry"):
                assert (FINISHED, operation, history) in seen
        for length in SMOKE.extent.lengths:
            for operation in ("as-of entry", "fsck entry", "claim and release", "event"):
                assert (LENGTH, operation, length) in seen
        assert {size for against, _, size in seen if against == LAST} == {4, 40}
        assert {size for against, _, size in seen if against == WALK} == set(SMOKE.extent.walks)
    assert all(
        min(cost.ours_us, cost.raw_us, cost.ratio, cost.ours_cpu_us, cost.raw_cpu_us) > 0 for cost in found.costs
    )
    assert all(cost.server_cpu_us > 0 for cost in found.costs if cost.database == POSTGRES)
    assert priced(found.costs) != TYPICAL
    assert {sized.relation for sized in found.sizes} >= {"journal", "runs", "runs_pkey", FILE}
    assert read(tmp_path / "costs.jsonl") == found


@pytest.mark.parametrize("configuration", ["file", "postgres"])
async def test_copies_of_a_finished_run_are_runs_that_fsck_finds_sound(
    hf: Holdfast, database_url: str, schema: str
) -> None:
    noop = Clog("noop")

    @noop.on_advance
    async def nothing(input: object, ctx: Context) -> Done:
        return Done(input)

    hf.register(noop)
    run = await hf.create_run(session_id="s", clog_id="noop", input=1)
    await hf.advance()
    real = await sample(hf, run.run_id)

    await fill(database_url, real, range(1, 31), schema=schema)

    report = await hf.fsck()
    copied = await hf.as_of(copy_id(30, run.run_id))
    assert (report.problems, report.runs_checked) == ((), 31)
    assert copied is not None
    assert (copied.run.status, copied.run.rev) == ("done", 3)


@pytest.mark.timeout(300)
async def test_an_idle_run_takes_no_memory_and_a_live_one_little(tmp_path: Path) -> None:
    idle, live = await memory.measure(SQLITE, str(tmp_path / "memory.db"), 400)

    assert (idle.kind, live.kind) == (IDLE, LIVE)
    # Tables that grew for a moment keep their size; a record of each run would be more.
    assert abs(idle.traced) < 300
    assert 1_000 < live.traced < 50_000


async def test_the_connections_of_a_process_are_counted(postgres_url: str) -> None:
    connection = await asyncpg.connect(postgres_url)
    await connection.execute("DROP DATABASE IF EXISTS costs")
    await connection.execute("CREATE DATABASE costs")

    found = await memory.connections(urlunsplit(urlsplit(postgres_url)._replace(path="/costs")))

    await connection.execute("DROP DATABASE costs WITH (FORCE)")
    await connection.close()
    assert 0 < found.opened <= found.idle <= found.busy


def test_an_idle_fleet_asks_as_often_as_its_longest_pause_lets_it() -> None:
    seen = simulate(Fleet(workers=200, heeded=1.0, seconds=10.0), TYPICAL)

    assert seen.claims_per_s == pytest.approx(200 / (0.9 * IDLE_MAX_S), rel=0.05)
    assert seen.empty_share == 1
    assert idle_rates()["claim"] == pytest.approx(1 / (0.9 * IDLE_MAX_S))


def test_everything_that_arrives_is_taken_once() -> None:
    fleet = Fleet(workers=50, burst=1_000, seconds=4.0)

    for heeded in (0.0, 0.1, 1.0):
        seen = simulate(replace(fleet, heeded=heeded), TYPICAL)

        assert seen.untaken == 0
        assert seen.taken == 1_000


def test_a_hint_makes_one_worker_quick_and_a_thousand_busy() -> None:
    alone = Fleet(workers=1, arrivals_per_s=2.0, seconds=30.0)
    many = Fleet(workers=1_000, arrivals_per_s=10.0, warm_s=2.0, seconds=1.0)

    slow, quick = (simulate(replace(alone, heeded=heeded), TYPICAL) for heeded in (0.0, 1.0))
    calm, herd = (simulate(replace(many, heeded=heeded), TYPICAL) for heeded in (0.0, 1.0))

    assert quick.waits_ms[0] < 5 < slow.waits_ms[0]
    assert herd.claims_per_s > 4 * calm.claims_per_s


def test_a_line_before_the_database_is_waited_in() -> None:
    dear = Prices(poll_s=0.01, claim_s=0.01, settle_s=0.01)

    seen = simulate(Fleet(workers=20, cores=1, arrivals_per_s=200.0, tick_s=0.0), dear)

    assert seen.busy_share == pytest.approx(1, abs=0.1)
    assert seen.untaken > 100
    assert seen.line_ms > 10


def test_scenes_have_hints_and_none_and_smaller_fleets() -> None:
    fleets = list(scenes(Fleet()))

    assert {fleet.heeded for fleet in fleets if fleet.workers == 1_000} == {0.0, 0.01, 1.0}
    assert {fleet.workers for fleet in fleets} == {1, 10, 100, 1_000}


def test_the_page_has_growth_as_multiples_and_says_where_more_is() -> None:
    first = Cost(POSTGRES, "claim", FINISHED, 0, 100.0, 50.0, 2.0, 80.0, 40.0, 60.0)
    grown = replace(first, size=1_000, ratio=3.0, ours_cpu_us=100.0)
    held = [Held(SQLITE, IDLE, 100, traced=1.0)]
    sized = [Sized(POSTGRES, name, "table", 10, size) for name, size in (("journal", 700.0), ("runs", 300.0))]
    fleets = [simulate(Fleet(workers=5, arrivals_per_s=9.0), TYPICAL)]
    found = Found(HEADER, [first, grown], sized, held, None, TYPICAL, fleets)

    text = page(found)

    assert "| Postgres | claim | 1,000 | 100 | 50 | 3.0 | 100 | 40 | 1.50 | 1.25 |" in text
    assert "| Postgres | all |  | 1,000 |" in text
    assert "| SQLite | idle | 100 | 1 | 0 |" in text
    assert "[SSE-1000](README.md#latency)" in text
    assert set(pictures(found)) == {
        "costs-finished-postgres.svg",
        "costs-waits.svg",
        "costs-line.svg",
        "costs-busy.svg",
    }


def test_pictures_are_well_formed() -> None:
    text = lines("A title", "finished runs", {"claim": [(0, 1.0), (1_000, 20.0)], "step": [(0, 3.0)]}, up_is_log=True)

    drawn = ElementTree.fromstring(text)

    assert len(drawn.findall(".//{http://www.w3.org/2000/svg}polyline")) == 2


def test_parts_that_are_not_measured_again_keep_their_results(tmp_path: Path) -> None:
    file = tmp_path / "costs.jsonl"
    Notes(file, PARTS).add("held", {"database": SQLITE, "kind": IDLE, "runs": 3})
    Notes(file, ["growth"]).add("header", HEADER)

    assert [held.runs for held in read(file).memory] == [3]
