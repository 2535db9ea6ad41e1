"""Following many runs at once: where each stands, and what is new on all of them, in one question."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from holdfast.journal import Journal
from holdfast.journal.entries import RUN_PREFIX, fact_of, proved
from holdfast.moments import from_us
from holdfast.protocol import facts
from holdfast.protocol.events import view
from holdfast.protocol.facts import Fact
from holdfast.runtime.records import Event
from holdfast.store import Entry

BATCH = 500
PLACES_MAX = 100


class Standing(NamedTuple):
    """How far a run is. `ended_rev` is the seq of its `done`, None while it is not over."""

    run_id: str
    rev: int
    ended_rev: int | None
    created_at: int


class Happened(NamedTuple):
    """One entry of a run as a follower needs it: `event` is None where there is nothing to show."""

    run_id: str
    seq: int
    event: Event | None
    is_end: bool


async def standing(journal: Journal, run_id: str, user_id: str) -> Standing | None:
    """Where one user's run stands; None for a run that is not theirs, or gone."""
    sql = "SELECT run_id, rev, ended_rev, created_at FROM {s}runs WHERE run_id = $1 AND user_id = $2"
    rows = await journal.store.fetch_by_key(sql, run_id, user_id)
    return Standing._make(rows[0]) if rows else None


async def runs_of_session(journal: Journal, session_id: str, user_id: str, since_us: int) -> list[Standing]:
    """The runs of a session that were created after an instant, and those that are not over, the oldest first."""
    sql = """
        SELECT run_id, rev, ended_rev, created_at
        FROM {s}runs
        WHERE session_id = $1 AND user_id = $2 AND (created_at > $3 OR ended_rev IS NULL)
        ORDER BY created_at, run_id
    """
    return [Standing._make(row) for row in await journal.store.fetch(sql, session_id, user_id, since_us)]


async def runs_among(journal: Journal, session_id: str, user_id: str, run_ids: Sequence[str]) -> list[Standing]:
    """Those of these runs that belong to this session of this user."""
    found: list[Standing] = []
    for start in range(0, len(run_ids), PLACES_MAX):
        some = run_ids[start : start + PLACES_MAX]
        places = ", ".join(f"${place}" for place in range(3, len(some) + 3))
        sql = f"""
            SELECT run_id, rev, ended_rev, created_at
            FROM {{s}}runs
            WHERE session_id = $1 AND user_id = $2 AND run_id IN ({places})
            ORDER BY created_at, run_id
        """
        found += [Standing._make(row) for row in await journal.store.fetch(sql, session_id, user_id, *some)]
    return found


async def standings(journal: Journal, run_ids: Sequence[str]) -> dict[str, Standing]:
    """Where each of these runs stands; those that are gone are left out."""
    found: dict[str, Standing] = {}
    for start in range(0, len(run_ids), PLACES_MAX):
        some = run_ids[start : start + PLACES_MAX]
        places = ", ".join(f"${place}" for place in range(1, len(some) + 1))
        sql = f"SELECT run_id, rev, ended_rev, created_at FROM {{s}}runs WHERE run_id IN ({places})"
        found |= {row[0]: Standing._make(row) for row in await journal.store.fetch_by_key(sql, *some)}
    return found


async def happened(journal: Journal, cursors: Mapping[str, int], limit: int = BATCH) -> list[Happened]:
    """What is new on these runs, each after its own seq: in order for each of them, every entry proved."""
    entries = await journal.store.tail({RUN_PREFIX + run_id: after for run_id, after in cursors.items()}, limit)
    by_thread: dict[str, list[Entry]] = {}
    for entry in entries:
        by_thread.setdefault(entry.thread, []).append(entry)
    for thread, told in by_thread.items():
        list(proved(told, after=cursors[thread.removeprefix(RUN_PREFIX)]))
    pairs = [(entry, fact_of(entry)) for entry in entries]
    ends = await _ends(journal, pairs)
    return [_happened(entry, fact, ends) for entry, fact in pairs]


async def _ends(journal: Journal, pairs: Sequence[tuple[Entry, Fact]]) -> set[tuple[str, int]]:
    """The ends that their runs took. One that was written by hand may have been refused."""
    told = {entry.thread.removeprefix(RUN_PREFIX) for entry, fact in pairs if isinstance(fact, facts.RunTerminal)}
    if not told:
        return set()
    found = await standings(journal, sorted(told))
    # Of a run that is gone by now nobody knows better than its entry.
    kept = {(run_id, each.ended_rev) for run_id, each in found.items() if each.ended_rev is not None}
    return kept | {
        (entry.thread.removeprefix(RUN_PREFIX), entry.rev)
        for entry, fact in pairs
        if isinstance(fact, facts.RunTerminal) and entry.thread.removeprefix(RUN_PREFIX) not in found
    }


def _happened(entry: Entry, fact: Fact, ends: set[tuple[str, int]]) -> Happened:
    run_id = entry.thread.removeprefix(RUN_PREFIX)
    is_end = isinstance(fact, facts.RunTerminal) and (run_id, entry.rev) in ends
    shown = None if isinstance(fact, facts.RunTerminal) and not is_end else view(fact)
    event = None if shown is None else Event(seq=entry.rev, at=from_us(entry.at), **shown._asdict())
    return Happened(run_id, entry.rev, event, is_end)
