"""The text of a commit that comes alone: the verdict and the rows of `postgres_sql.write_text`, with single values
where that one has lists. Taking lists of one row apart, joining and sorting them costs more than writing the rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from holdfast.store.postgres_sql import CLOCK
from holdfast.store.tables import ALL, BORN, INDEXES, PENDING, PLAIN, RUN_FIXED, RUN_MOVING, RUNS, UNTOUCHED, Table
from holdfast.store.types import Member

ENTRIES_MAX = 4


class Alone(NamedTuple):
    """What the one member contains, and so which text writes it."""

    creates: bool
    cut: bool
    """Of the run's moving columns only those are sent that such a commit mostly changes."""
    still: bool
    """None of them is, but the revision."""
    fenced: bool
    puts: tuple[str, ...]
    drops: tuple[str, ...]
    entries: int
    tells: bool


def alone(members: Sequence[Member], *, tells: bool) -> Alone | None:
    """None where there are several members, or the one is not small."""
    if len(members) != 1:
        return None
    (member,) = members
    puts, drops = member.changes.puts, member.changes.drops
    if member.gone or len(member.fences) > 1 or len(member.entries) > ENTRIES_MAX:
        return None
    if any(len(rows) > 1 for rows in puts.values()) or any(len(keys) > 1 for keys in drops.values()):
        return None
    creates = member.created is not None
    return Alone(
        creates=creates,
        cut=member.run[BORN.stop :] == UNTOUCHED if creates else member.plain,
        still=not member.run,
        fenced=bool(member.fences),
        puts=tuple(name for name in INDEXES if puts.get(name)),
        drops=tuple(name for name in INDEXES if drops.get(name)),
        entries=len(member.entries),
        tells=tells,
    )


def arguments(
    shape: Alone, member: Member, commit_id: int, now: int | None, channel: str = "", news: str = ""
) -> list[Any]:
    """The arguments of `text`, in the order in which it takes its places."""
    values: list[Any] = [now, commit_id]
    if member.created is not None:
        values += member.created
    else:
        values += (member.run_id, member.expected_rev)
    for fence in member.fences:
        values += fence
    values += (member.last_rev,) if shape.still else member.run[_part(shape.creates, shape.cut)]
    for name in shape.puts:
        values += member.changes.puts[name][0]
    for name in shape.drops:
        values += member.changes.drops[name][0]
    for rev, entry in enumerate(member.entries, start=member.expected_rev + 1):
        values += (member.thread, rev, entry.kind, entry.data, entry.digest)
    if shape.tells:
        values += (channel, news)
    return values


@lru_cache(maxsize=512)
def text(shape: Alone) -> str:
    """Accept the member if its revision and fence hold, write its rows and entries, answer as for many."""
    places = _Places()
    now, commit_id = places.take("bigint"), places.take("bigint")
    instant = f"coalesce({now}, {CLOCK})"
    if shape.creates:
        parts = [f"v AS MATERIALIZED (SELECT {instant} AS at)", *_created(places, cut=shape.cut)]
        answer = "SELECT ARRAY[v.at], ARRAY[0]{news} FROM v"
    else:
        run_id, expected = places.take("text"), places.take("int")
        fence = _fence(places, run_id) if shape.fenced else ""
        moved = _touched(places, run_id) if shape.still else _moved(places, run_id, cut=shape.cut)
        parts = [*_verdict(run_id, expected, instant, fence), moved]
        answer = "SELECT ARRAY[coalesce((SELECT at FROM v), -1)], ARRAY[coalesce((SELECT rev FROM head), 0)]{news}"
    parts += [_put(INDEXES[name], places) for name in shape.puts]
    parts += [_drop(INDEXES[name], places) for name in shape.drops]
    parts.append(_entries(shape.entries, commit_id, places))
    news = f", (SELECT pg_notify({places.take('text')}, {places.take('text')}) FROM v)" if shape.tells else ""
    return f"WITH {', '.join(parts)} {answer.format(news=news)}"


class _Places:
    """Hands out `$1`, `$2` … in the order in which the arguments are listed."""

    def __init__(self) -> None:
        self._taken = 0

    def take(self, kind: str) -> str:
        self._taken += 1
        return f"${self._taken}::{kind}"

    def values(self, table: Table, names: Sequence[str]) -> list[str]:
        """One for each column; moments that had to wait for the commit's instant are counted from it."""
        return [self._value(table, name) for name in names]

    def _value(self, table: Table, name: str) -> str:
        place = self.take(table.columns[name])
        if name not in table.moments:
            return place
        return f"CASE WHEN {place} < 0 THEN {place} + {-PENDING} + v.at ELSE {place} END"


def _verdict(run_id: str, expected: str, instant: str, fence: str) -> list[str]:
    """`v` has the commit's instant, or no row if it is refused."""
    return [
        f"head AS MATERIALIZED (SELECT rev, at FROM {{s}}runs WHERE run_id = {run_id} FOR UPDATE)",
        # Counting the lock makes the clock wait for it.
        f"t AS MATERIALIZED (SELECT {instant} AS now FROM (SELECT count(*) FROM head) locked)",
        "v AS MATERIALIZED (SELECT greatest(head.at, t.now) AS at "
        f"FROM head CROSS JOIN t WHERE head.rev = {expected}{fence})",
    ]


def _fence(places: _Places, run_id: str) -> str:
    key, claim_id, claim_token_hash = (places.take("text") for _ in range(3))
    return (
        f" AND EXISTS (SELECT 1 FROM {{s}}work w WHERE w.run_id = {run_id} AND w.key = {key}"
        f" AND w.claim_id = {claim_id} AND w.claim_token_hash = {claim_token_hash}"
        " AND w.lease_until > greatest(head.at, t.now))"
    )


def _part(creates: bool, cut: bool) -> slice:
    if not cut:
        return ALL
    return BORN if creates else PLAIN


def _created(places: _Places, *, cut: bool) -> list[str]:
    names = (*RUN_FIXED, *tuple(RUN_MOVING)[_part(True, cut)])
    values = places.values(RUNS, names)
    session_id, user_id = (values[names.index(name)] for name in ("session_id", "user_id"))
    rest = ["NULL" if value is None else str(value) for value in UNTOUCHED] if cut else []
    return [
        "owners AS (INSERT INTO {s}sessions (session_id, user_id, created_at) "
        f"SELECT {session_id}, {user_id}, v.at FROM v ON CONFLICT DO NOTHING)",
        f"created AS (INSERT INTO {{s}}runs ({', '.join(RUNS.names)}) SELECT {', '.join([*values, *rest])} FROM v)",
    ]


def _moved(places: _Places, run_id: str, *, cut: bool) -> str:
    names = tuple(RUN_MOVING)[_part(False, cut)]
    changes = ", ".join(f"{name} = {value}" for name, value in zip(names, places.values(RUNS, names), strict=True))
    return f"moved AS (UPDATE {{s}}runs r SET {changes} FROM v WHERE r.run_id = {run_id})"


def _touched(places: _Places, run_id: str) -> str:
    return f"moved AS (UPDATE {{s}}runs r SET rev = {places.take('int')}, at = v.at FROM v WHERE r.run_id = {run_id})"


def _put(table: Table, places: _Places) -> str:
    values = ", ".join(places.values(table, table.names))
    updates = ", ".join(f"{name} = excluded.{name}" for name in table.values)
    replace = "" if table.insert_only else f" ON CONFLICT ({', '.join(table.key)}) DO UPDATE SET {updates}"
    return (
        f"put_{table.name} AS (INSERT INTO {{s}}{table.name} ({', '.join(table.names)}) "
        f"SELECT {values} FROM v{replace})"
    )


def _drop(table: Table, places: _Places) -> str:
    same = " AND ".join(f"d.{name} = {places.take(table.columns[name])}" for name in table.key)
    return f"drop_{table.name} AS (DELETE FROM {{s}}{table.name} d USING v WHERE {same})"


def _entries(count: int, commit_id: str, places: _Places) -> str:
    """In one statement and in order: each takes the next position as it is written."""
    kinds = ("text", "int", "text", "text", "bytea")
    rows = ", ".join(f"({', '.join(places.take(kind) for kind in kinds)})" for _ in range(count))
    return (
        "noted AS (INSERT INTO {s}journal (thread, rev, kind, data, at, digest, commit_id) "
        f"SELECT e.thread, e.rev, e.kind, e.data, v.at, e.digest, {commit_id} "
        f"FROM v CROSS JOIN (VALUES {rows}) AS e (thread, rev, kind, data, digest))"
    )
