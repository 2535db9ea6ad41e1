"""kill -9 before, inside and after every commit of whole lives: whoever comes after ends each in the same way."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from holdfast import Holdfast
from tests.crash.lives import LIVES
from tests.schemas import drop
from tests.worker.nursery import Nursery

WHENS = ("before", "inside", "after")
SPREAD = 5
"""Of how many points the quick suite tries each program."""
BOOKKEEPING = frozenset({"run_started", "step_start", "run_waiting", "tick_abandoned", "run_retrying"})
"""Events that say how often somebody tried; what was tried must not depend on it."""


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery("tests.crash.failpoints") as mother:
        yield mother
        mother.end_all()


class Place(NamedTuple):
    """A database of a life's own."""

    url: str
    schema: str
    folder: Path


class Lives:
    """One program again and again, each time on a new database."""

    def __init__(self, nursery: Nursery, life: str, configuration: str, url: str, folder: Path) -> None:
        self._nursery = nursery
        self._life = life
        self._is_file = configuration == "file"
        self._url = url
        self._folder = folder
        self._count = 0
        self.deaths = 0

    async def once(self, point: int = 0, when: str = "after") -> tuple[int, Any]:
        """Die at this point if it is one, then live to the end: how many commits that took, and what it came to."""
        place = self._place()
        try:
            died = point > 0 and self._run(place, point=point, when=when, day=0) == -9
            self.deaths += died
            assert self._run(place, day=1) == 0, f"{self._life} cannot go on after {when} {point}"
            return int((place.folder / "told").read_text()), await self._judged(place, died)
        finally:
            if not self._is_file:
                await drop(place.url, place.schema)

    def _place(self) -> Place:
        self._count += 1
        folder = self._folder / f"{self._count}"
        folder.mkdir()
        name = f"t{os.getpid()}_{os.urandom(4).hex()}"
        return Place(str(folder / "holdfast.db") if self._is_file else self._url, name, folder)

    def _run(self, place: Place, *, day: int, point: int = 0, when: str = "") -> int:
        told = {"url": place.url, "schema": place.schema, "life": self._life, "point": point, "when": when, "day": day}
        files = {"diary": str(place.folder / "diary"), "told": str(place.folder / "told")}
        return self._nursery.wait(self._nursery.start("life", **told, **files))

    async def _judged(self, place: Place, died: bool) -> Any:
        life = LIVES[self._life]
        done = Counter((place.folder / "diary").read_text().splitlines())
        assert set(done) == set(life.effects)
        # What a step did when its process died before its record is done once more, and nothing else is.
        again = sum((done - Counter(life.effects)).values())
        assert again <= int(died), done
        async with Holdfast(place.url, schema=place.schema) as hf:
            report = await hf.fsck()
            assert report.ok, report.problems[:5]
            return await _shape(hf, life.runs, BOOKKEEPING | life.races)


async def _shape(hf: Holdfast, roots: Sequence[str], ignored: frozenset[str]) -> Any:
    """All that a reader keeps, whatever happened on the way."""
    found: dict[str, Any] = {}
    family = [(name, name) for name in roots]
    for name, run_id in family:
        run, seen = await hf.get_run(run_id), await hf.inspect(run_id)
        assert run is not None
        assert seen is not None
        family += [(f"{name}/{child.child_key}", child.run_id) for child in seen.child_runs]
        said, told = await _events(hf, run_id, ignored)
        names = {child_id: child for child, child_id in family}
        found[name] = (run.status, run.output, run.error_kind, names.get(run.parent_run_id or ""), said, told)
    sent = Counter(await hf.journal.store.fetch("SELECT target_space, payload FROM {s}outbox"))
    assert len((await hf.list_runs(limit=100)).items) == len(family)
    booked = await hf.journal.store.fetch("SELECT amount FROM {s}ledger")
    return found, sent, booked, await hf.journal.store.handoffs()


async def _events(hf: Holdfast, run_id: str, ignored: frozenset[str]) -> tuple[list[Any], Counter[str]]:
    """What the handler said, in order, and how often the library told what."""
    events = [event async for event in hf.events(run_id)]
    for dropped in [event.data for event in events if event.type == "tick_abandoned"]:
        events = [
            event
            for event in events
            if event.tick_id != dropped["tick_id"]
            or event.type != "note"
            or event.seq < dropped["from_seq"]
            or any(first <= event.seq <= last for first, last in dropped["keep"])
        ]
    said = [event.data for event in events if event.type == "note"]
    return said, Counter(event.type for event in events if event.type not in ignored)


def spread(commits: int) -> list[tuple[int, str]]:
    """Some of the points, so that every kind of place and every manner is among them."""
    step = max(1, commits // SPREAD)
    return [(point, WHENS[place % len(WHENS)]) for place, point in enumerate(range(1, commits + 1, step))]


def all_points(commits: int) -> list[tuple[int, str]]:
    return [(point, when) for point in range(1, commits + 1) for when in WHENS]


@pytest.fixture(params=["file", "postgres"])
def lives(request: pytest.FixtureRequest, nursery: Nursery, life: str, tmp_path: Path) -> Lives:
    url = str(request.getfixturevalue("postgres_url")) if request.param == "postgres" else ""
    return Lives(nursery, life, request.param, url, tmp_path)


@pytest.mark.clause("S-54", "S-57", "SB-15")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("life", LIVES)
@pytest.mark.parametrize("points", [spread, pytest.param(all_points, marks=pytest.mark.slow)], ids=["some", "all"])
async def test_a_life_ends_the_same_wherever_it_is_interrupted(lives: Lives, points: Any) -> None:
    commits, expected = await lives.once()

    chosen = points(commits)
    for point, when in chosen:
        _, found = await lives.once(point, when)
        assert found == expected, f"killed {when} commit {point}"
    # Commits that gather make the last points miss now and then.
    assert lives.deaths >= 0.9 * len(chosen) - 1
