"""Every scenario by its id, in the order in which they are measured."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from benchmarks.bench import SLOW, SQLITE, Bench
from benchmarks.measuring import Measured
from benchmarks.peers.driving import STEPS, WAITS
from benchmarks.scenarios.fan_out import FanOut
from benchmarks.scenarios.loads import Load
from benchmarks.scenarios.streams import Streams
from benchmarks.scenarios.turns import Pair
from benchmarks.scenarios.waits import Idle, Wait
from benchmarks.sides import CREATED, EVENTS, Side


class Scenario(NamedTuple):
    """One question: its id, in words, what is counted (`latency` and `idle` count nothing), and how it is answered."""

    name: str
    title: str
    unit: str
    play: Callable[[Bench, Side, int], Awaitable[Measured]]


RUNS, LATENCY, IDLE = "runs/s", "latency", "idle"
IN_TURNS = ("C", "C-warm", "C-here", "C-here-warm")
"""Scenarios that are compared with each other take turns, as sides do."""
TURNS = 3
"""How many slices those have where others have one: a noisy minute falls on few of many."""
WORK = ("work",)
GROWTH = {
    load.name: load
    for load in (
        Load("E-0", WORK, share=1.2),
        Load("E-100k", WORK, share=1.2, history=100_000),
        Load("E-1m", WORK, share=1.2, history=1_000_000),
        Load("E-old", WORK, share=1.2, is_held=True),
    )
}
"""What is compared with each other so closely that its turns are fractions of a second (`side_by_side`)."""
SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario("A", "drain no-op runs, 1 worker", RUNS, Load("A", WORK, share=1.2, is_traced=True)),
        Scenario("A2", "drain no-op runs, 2 workers", RUNS, Pair(Load("A2", WORK * 2, share=1.5))),
        Scenario(
            "A2-held",
            "A2, a fifth of a core for each",
            RUNS,
            Pair(Load("A2-held", WORK * 2, share=0.5), core_share=0.2),
        ),
        Scenario("A-live", "enqueue and drain at once", RUNS, Load("A-live", ("work", "enqueue"), is_traced=True)),
        Scenario("B", "runs with 3 durable steps", RUNS, Load("B", WORK, kind=STEPS, share=0.7, is_traced=True)),
        Scenario("B2", "runs with 3 durable steps, 2 workers", RUNS, Pair(Load("B2", WORK * 2, STEPS, share=0.7))),
        Scenario("W2", "runs that wait 20 ms, 2 workers", RUNS, Pair(Load("W2", WORK * 2, WAITS, share=0.7))),
        Scenario(
            "enqueue", "enqueue, one by one", RUNS, Load("enqueue", ("enqueue",), counted=CREATED, is_traced=True)
        ),
        Scenario("batch", "enqueue, many in one call", RUNS, Load("batch", ("batch",), counted=CREATED)),
        Scenario("fan-out", "children of runs with 100 each", RUNS, FanOut("fan-out")),
        Scenario("C", "idle: from the call to start and end", LATENCY, Wait("C", "ask", WORK, turns=TURNS)),
        Scenario("C-warm", "C, asked without a pause", LATENCY, Wait("C-warm", "ask", WORK, TURNS, gap_s=0)),
        Scenario("C-here", "C, worker in the same process", LATENCY, Wait("C-here", "ask_here", turns=TURNS)),
        Scenario(
            "C-here-warm",
            "C-here, asked without a pause",
            LATENCY,
            Wait("C-here-warm", "ask_here", turns=TURNS, gap_s=0),
        ),
        Scenario("idle", "a worker with nothing to do", IDLE, Idle("idle")),
        Scenario("D", "200-byte events on one run", "events/s", Load("D", ("stream",), counted=EVENTS, is_traced=True)),
        Scenario("D-live", "age of an event in another process", LATENCY, Wait("D-live", "tail", WORK)),
        Scenario("E-0", "A with no finished runs", RUNS, GROWTH["E-0"]),
        Scenario("E-100k", "A with 10⁵ finished runs", RUNS, GROWTH["E-100k"]),
        Scenario("E-1m", "A with 10⁶ finished runs", RUNS, GROWTH["E-1m"]),
        Scenario("E-old", "A with an old snapshot held open", RUNS, GROWTH["E-old"]),
        Scenario("F-A", "SQLite FULL: drain no-op runs", RUNS, Load("F-A", WORK, share=1.2, database=SQLITE)),
        Scenario("F-B", "SQLite FULL: runs with 3 steps", RUNS, Load("F-B", WORK, STEPS, share=0.7, database=SQLITE)),
        Scenario(
            "slow",
            "B with 2 ms more for each fsync",
            RUNS,
            Load("slow", WORK, STEPS, share=0.2, database=SLOW, stretch=4),
        ),
        Scenario(
            "SSE-live",
            "64 live runs over SSE, one reader each",
            LATENCY,
            Streams("SSE-live", runs=64, readers=1, pace_s=0.025, stretch=2),
        ),
        Scenario(
            "SSE-1000",
            "1,000 SSE readers of one process",
            LATENCY,
            Streams("SSE-1000", runs=50, readers=20, pace_s=0.2, stretch=4),
        ),
    )
}
