"""What a storm may leave behind: every run ended once, every effect once, and no write of a lost claim."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from holdfast import Event, Holdfast
from tests.worker.places import Place, stored


class Line(NamedTuple):
    """What one tick did outside the database."""

    what: str
    run_id: str
    number: str
    tick_id: str


def diary(place: Place) -> list[Line]:
    path = Path(place.diary)
    return [Line(*line.split(" ")) for line in path.read_text().splitlines()] if path.exists() else []


def kept(events: Sequence[Event]) -> list[Event]:
    """What readers show: the words of abandoned ticks are dropped, but for the ranges that are kept."""
    dropped = {event.data["tick_id"]: event.data for event in events if event.type == "tick_abandoned"}

    def stands(event: Event) -> bool:
        told = dropped.get(event.tick_id or "")
        if told is None or event.type == "run_started" or event.seq < told["from_seq"]:
            return True
        return any(first <= event.seq <= last for first, last in told.get("keep", []))

    return [event for event in events if stands(event)]


async def chores_are_done_once(holdfast: Holdfast, run_ids: Sequence[str], count: int) -> list[str]:
    """Every way in which these runs are not exactly `count` chores each."""
    sent = await holdfast._store.fetch("SELECT run_id, payload FROM {s}outbox")
    rows = Counter((run_id, msgspec.json.decode(payload)["number"]) for run_id, payload in sent)
    problems = [f"sent {times} times: {what}" for what, times in rows.items() if times != 1]
    problems += [f"not sent: {run_id} {n}" for run_id in run_ids for n in range(count) if not rows[run_id, n]]
    for run_id in run_ids:
        run = await holdfast.get_run(run_id)
        events = [event async for event in holdfast.events(run_id)]
        said = [event.data["number"] for event in kept(events) if event.type == "chore"]
        ends = [event for event in events if event.type == "done"]
        found = {
            "status": run and run.status,
            "output": run and run.output,
            "stored": await stored(holdfast, run_id),
            "said": said,
            "ends": len(ends),
            "last": events[-1].type,
        }
        wanted = {
            "status": "done",
            "output": {"count": count},
            "stored": [str(count)],
            "said": list(range(count)),
            "ends": 1,
            "last": "done",
        }
        problems += [f"{run_id}: {name} is {found[name]}" for name in wanted if found[name] != wanted[name]]
        problems += await writes_of_the_dead(holdfast, run_id)
    return problems + [str(problem) for problem in (await holdfast.fsck()).problems]


async def writes_of_the_dead(holdfast: Holdfast, run_id: str) -> list[str]:
    """Entries of ticks that were over by then. Only anomalies may speak of those."""
    over: set[str] = set()
    problems = []
    for entry in await holdfast.journal.read(f"run:{run_id}"):
        tick_id = entry.data.get("claim_id") or entry.data.get("tick_id") or ""
        if tick_id in over and entry.kind not in ("anomaly", "tick_abandoned"):
            problems.append(f"{run_id} {entry.rev}: {entry.kind} of tick {tick_id}, which was over")
        if entry.kind in ("tick_abandoned", "tick_settled", "run_terminal"):
            over.add(tick_id)
    return problems


async def anomalies(holdfast: Holdfast, run_ids: Sequence[str]) -> Counter[tuple[str, str]]:
    """How often each refusal is recorded, by (claim, reason)."""
    found: Counter[tuple[str, str]] = Counter()
    for run_id in run_ids:
        for entry in await holdfast.journal.read(f"run:{run_id}"):
            if entry.kind == "anomaly":
                found[entry.data.get("claim_id", ""), entry.data["reason"]] += 1
    return found


async def unrecorded(holdfast: Holdfast, run_ids: Sequence[str], lines: Sequence[Line]) -> list[str]:
    """Refusals that a worker was told of and the journal does not hold, or holds more than once."""
    recorded = await anomalies(holdfast, run_ids)
    refused = {(line.tick_id, line.number) for line in lines if line.what == "refused"}
    missing = [f"refused but not recorded: {each}" for each in refused if not recorded[each]]
    return missing + [f"recorded {times} times: {each}" for each, times in recorded.items() if times > 1]


class Tally(NamedTuple):
    """What happened in a storm, for people."""

    runs: int
    ticks: int
    begun: int
    repeated: int
    refused: int
    anomalies: int

    def __str__(self) -> str:
        return ", ".join(f"{name} {value}" for name, value in self._asdict().items())


async def tally(holdfast: Holdfast, run_ids: Sequence[str], lines: Sequence[Line], count: int) -> Tally:
    begun: Counter[Any] = Counter((line.run_id, line.number) for line in lines if line.what == "began")
    return Tally(
        runs=len(run_ids),
        ticks=len(run_ids) * count,
        begun=begun.total(),
        repeated=sum(times - 1 for times in begun.values()),
        refused=sum(line.what == "refused" for line in lines),
        anomalies=(await anomalies(holdfast, run_ids)).total(),
    )
