"""The texts of Postgres's hot statements. Each is one round trip and one implicit transaction for a whole batch.

Texts hold `{s}` before table names. Members of a batch are numbered from one (`m`), every array of rows carries the
number of its member, and the verdict on all members is a single row of arrays: looking up `v.at[m]` costs the same
for five members and for five hundred, whatever plan was cached, where a join of two lists would not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from holdfast.store import slices
from holdfast.store.tables import (
    ALL,
    BORN,
    INDEXES,
    PENDING,
    PLAIN,
    RUN_FIXED,
    RUN_MOVING,
    RUNS,
    UNBOUND,
    UNTOUCHED,
    Table,
)
from holdfast.store.types import Append, Beat, ClaimRequest, Member, NewEntry, SliceRequest

CLOCK = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
NOW = f"SELECT {CLOCK}"
LOCK_RUN = "SELECT 1 FROM {s}runs WHERE run_id = $1 FOR UPDATE"
# A row that is not there yet cannot be locked; its name can.
LOCK_SHARED = "SELECT pg_advisory_xact_lock(hashtextextended('{s}' || $1, 0))"
LANDED = """
    SELECT j.thread, j.rev, j.at
    FROM unnest($1::text[], $2::int[]) AS x (thread, rev)
    JOIN {s}journal j ON j.thread = ANY (ARRAY[x.thread]) AND j.rev = x.rev
    WHERE j.commit_id = $3
"""
_CLAIM_ARGUMENTS = "$1, $2, $3::text::text[], $4::text::text[], $5, $6, $7, $8, $9, $10"
CLAIM = f"SELECT * FROM {{s}}claim({_CLAIM_ARGUMENTS})"
CLAIM_STICKY = f"SELECT * FROM {{s}}claim_sticky({_CLAIM_ARGUMENTS})"


class Shape(NamedTuple):
    """What a batch contains, and so which text writes it. Small commits stay small statements."""

    creates: bool
    born: bool
    """Every new run is as creations leave it."""
    updates: bool
    plain: bool
    """Every other run that does not stand still changes in the plain part of its row only."""
    stills: bool
    """Of some runs only the revision and the instant move."""
    deletes: bool
    fences: bool
    puts: frozenset[str]
    drops: frozenset[str]
    tells: bool
    """News goes with it."""


_NUMBERS = ("int", "bigint")
_BODIES = frozenset({"data", "value", "payload", "arguments_json", "outcome_json"})
"""Texts that may be long, and are full of what would have to be quoted."""


def _is_spelled(name: str, kind: str) -> bool:
    """Does a list of this column travel as one text? The driver asks of every member of a list whether it is a list
    too, which takes longer than all the rest it does."""
    return kind in _NUMBERS or (kind == "text" and name not in _BODIES)


class _Places:
    """Hands out `$1`, `$2` … in the order in which the arguments are listed."""

    def __init__(self, taken: int) -> None:
        self._taken = taken

    def unnest(self, alias: str, columns: dict[str, str]) -> str:
        """One array per column, as rows."""
        arrays = []
        for name, kind in columns.items():
            self._taken += 1
            arrays.append(f"${self._taken}::{'text::' if _is_spelled(name, kind) else ''}{kind}[]")
        return f"unnest({', '.join(arrays)}) AS {alias} ({', '.join(columns)})"

    def notify(self) -> str:
        """The answer, and if the first member was accepted, the news on the channel of the last two arguments."""
        channel, news = f"${self._taken + 1}::text", f"${self._taken + 2}::text"
        return f"SELECT v.at, v.rev, CASE WHEN v.at[1] >= 0 THEN pg_notify({channel}, {news}) END FROM v"


# $1 now, $2 commit id, $3 ids, $4 expected revisions.
_VERDICT = """
    l AS MATERIALIZED (
        SELECT x.m, h.rev, h.at
        FROM unnest($3::text::text[]) WITH ORDINALITY AS x (id, m)
        JOIN {s}{table} h ON {same}
        ORDER BY x.id COLLATE "C"
        FOR UPDATE OF h
    ),
    t AS MATERIALIZED (
        -- Counting the locks makes the clock wait for the last of them.
        SELECT coalesce($1::bigint, {clock}) AS now FROM (SELECT count(*) FROM l) locked
    ),
    heads AS MATERIALIZED (
        SELECT x.m, max(x.rev) AS rev, max(x.expected) AS expected, greatest(max(x.at), (SELECT now FROM t)) AS at
        FROM (
            SELECT l.m, l.rev, l.at, 0 AS expected FROM l
            UNION ALL
            SELECT e.m, 0, 0, e.expected FROM unnest($4::text::int[]) WITH ORDINALITY AS e (expected, m)
        ) x
        GROUP BY x.m
    ),
    {fences}
    v AS MATERIALIZED (
        SELECT
            array_agg(CASE WHEN h.rev = h.expected {fenced} THEN h.at ELSE -1 END ORDER BY h.m) AS at,
            array_agg(h.rev ORDER BY h.m) AS rev
        FROM heads h
    )"""
_FENCES = """broken AS MATERIALIZED (
        SELECT coalesce(array_agg(f.m), '{{}}') AS m
        FROM {fences}
        CROSS JOIN (SELECT array_agg(h.at ORDER BY h.m) AS at FROM heads h) a
        WHERE coalesce(a.at[f.m] >= (
            SELECT w.lease_until
            FROM {{s}}work w
            WHERE w.run_id = f.run_id AND w.key = f.key
              AND w.claim_id = f.claim_id AND w.claim_token_hash = f.claim_token_hash
        ), true)
    ),"""
_FENCED = "AND h.m <> ALL ((SELECT m FROM broken)::int[])"
_FENCE_COLUMNS = {"m": "int", "run_id": "text", "key": "text", "claim_id": "text", "claim_token_hash": "text"}
_GONE_COLUMNS = {"m": "int", "run_id": "text"}
_STILL_COLUMNS = {"m": "int", "run_id": "text", "rev": "int"}
_ENTRY_COLUMNS = {"m": "int", "thread": "text", "rev": "int", "kind": "text", "data": "text", "digest": "bytea"}
_REQUEST_COLUMNS = tuple(name for name in SliceRequest._fields if name != "whole")
# A run may have thousands of ticks: these few are found by their ids, never among all ticks of the run.
_TICKS = """
        SELECT k.*
        FROM (
            SELECT :claim_id AS id UNION SELECT claim_id FROM {s}work WHERE run_id = :run_id AND claim_id IS NOT NULL
        ) c
        JOIN {s}ticks k ON k.tick_id = ANY (ARRAY[c.id])
        WHERE k.run_id || '' = :run_id
    """
_SHARED = """
        SELECT h.name, h.run_id, h.rev
        FROM json_array_elements_text(nullif(:shared, '')::json) AS n (name)
        JOIN {s}shared_storage h ON h.name = ANY (ARRAY[n.name])
    """
_ANSWER = "SELECT v.at, v.rev FROM v"


@lru_cache(maxsize=512)
def write_text(shape: Shape) -> str:
    """Accept the members whose revision and fences hold, write their rows and entries, answer for each."""
    places = _Places(4)
    parts = [_verdict("runs", "run_id", _fences(places) if shape.fences else "")]
    if shape.creates:
        parts += _creates(places, born=shape.born)
    if shape.updates:
        parts.append(_updates(places, plain=shape.plain))
    if shape.stills:
        parts.append(_touches(places))
    if shape.deletes:
        parts += _deletes(places)
    parts += [_put(INDEXES[name], places) for name in _in_order(shape.puts)]
    parts += [_drop(INDEXES[name], places) for name in _in_order(shape.drops)]
    parts.append(_entries(places))
    return f"WITH{','.join(parts)}\n    {places.notify() if shape.tells else _ANSWER}"


def write_shape(members: Sequence[Member], *, tells: bool = False) -> Shape:
    puts: set[str] = set()
    drops: set[str] = set()
    creates = updates = stills = deletes = fences = False
    born = plain = True
    for member in members:
        for name, rows in member.changes.puts.items():
            if rows:
                puts.add(name)
        for name, keys in member.changes.drops.items():
            if keys:
                drops.add(name)
        fences = fences or bool(member.fences)
        if member.created is not None:
            creates, born = True, born and member.run[BORN.stop :] == UNTOUCHED
        elif member.gone:
            deletes = True
        elif member.run:
            updates, plain = True, plain and member.plain
        else:
            stills = True
    return Shape(
        creates=creates,
        born=born,
        updates=updates,
        plain=plain,
        stills=stills,
        deletes=deletes,
        fences=fences,
        puts=frozenset(puts),
        drops=frozenset(drops),
        tells=tells,
    )


def write_arguments(shape: Shape, members: Sequence[Member], commit_id: int, now: int | None) -> list[Any]:
    """The arguments of `write_text`, in the order in which it takes its places."""
    numbered = list(enumerate(members, start=1))
    arguments: list[Any] = [
        now,
        commit_id,
        # A run that is to be created has no row to lock; if there is one after all, inserting it fails the batch.
        _texts([None if member.created is not None else member.run_id for member in members]),
        _numbers([member.expected_rev for member in members]),
    ]
    if shape.fences:
        fences = ((m, member.run_id, *fence) for m, member in numbered for fence in member.fences)
        arguments += _lists(_FENCE_COLUMNS, fences)
    if shape.creates:
        part = BORN if shape.born else ALL
        new = ((m, member.created, member.run) for m, member in numbered if member.created is not None)
        arguments += _lists(_creation_columns(shape.born), ((m, *created, *run[part]) for m, created, run in new))
    if shape.updates:
        moved = [(m, member) for m, member in numbered if member.created is None and not member.gone and member.run]
        part = PLAIN if shape.plain else ALL
        arguments += _lists(_move_columns(shape.plain), [(m, member.run_id, *member.run[part]) for m, member in moved])
    if shape.stills:
        still = [(m, member) for m, member in numbered if not member.run and not member.gone]
        arguments += _lists(_STILL_COLUMNS, [(m, member.run_id, member.last_rev) for m, member in still])
    if shape.deletes:
        arguments += _lists(_GONE_COLUMNS, ((m, member.run_id) for m, member in numbered if member.gone))
    for name in _in_order(shape.puts):
        rows = ((m, *row) for m, member in numbered for row in member.changes.puts.get(name, ()))
        arguments += _lists(_put_columns(name), rows)
    for name in _in_order(shape.drops):
        keys = ((m, *key) for m, member in numbered for key in member.changes.drops.get(name, ()))
        arguments += _lists(_drop_columns(name), keys)
    entries = (
        row for m, member in numbered for row in _entry_rows(m, member.thread, member.expected_rev, member.entries)
    )
    arguments += _lists(_ENTRY_COLUMNS, entries)
    return arguments


def claim_arguments(request: ClaimRequest, commit_id: int, now: int | None) -> list[Any]:
    """The arguments of `CLAIM` and `CLAIM_STICKY`."""
    return [
        request.queues or (),
        request.clogs,
        _texts(request.claim_ids),
        _texts(request.claim_token_hashes),
        request.owner_id,
        request.lease_us,
        commit_id,
        now,
        request.due_by,
        request.passed,
    ]


def append_arguments(appends: Sequence[Append], commit_id: int, now: int | None) -> list[Any]:
    """The arguments of `APPEND`."""
    numbered = list(enumerate(appends, start=1))
    return [
        now,
        commit_id,
        _texts([append.thread for append in appends]),
        _numbers([append.expected_rev for append in appends]),
        _numbers([len(append.entries) for append in appends]),
        *_lists(
            _ENTRY_COLUMNS,
            (row for m, each in numbered for row in _entry_rows(m, each.thread, each.expected_rev, each.entries)),
        ),
    ]


def slice_arguments(requests: Sequence[SliceRequest], now: int | None) -> list[Any]:
    """The arguments of `READ_SLICES` and `READ_WHOLE`."""
    return [now, *_columns(request[: len(_REQUEST_COLUMNS)] for request in requests)]


def beat_arguments(beats: Sequence[Beat], lease_us: int, commit_id: int, now: int | None) -> list[Any]:
    """The arguments of `HEARTBEAT` and `HEARTBEAT_ALONE`."""
    entries = [beat.entry(lease_us) for beat in beats]
    rows = ((*beat, entry.data, entry.digest) for beat, entry in zip(beats, entries, strict=True))
    return [now, commit_id, lease_us, *_columns(rows)]


def _entry_rows(m: int, thread: str, head: int, entries: list[NewEntry]) -> list[tuple[Any, ...]]:
    return [(m, thread, rev, entry.kind, entry.data, entry.digest) for rev, entry in enumerate(entries, start=head + 1)]


def _lists(columns: dict[str, str], rows: Iterable[Sequence[Any]]) -> list[Any]:
    """The arguments of an `unnest` of these columns."""
    given = zip(columns.items(), _columns(rows), strict=True)
    return [_spelled(kind, values) if _is_spelled(name, kind) else values for (name, kind), values in given]


def _spelled(kind: str, values: Sequence[Any]) -> str:
    return _texts(values) if kind == "text" else _numbers(values)


def _numbers(values: Sequence[int | None]) -> str:
    if _are_alike(values):
        return _repeated("NULL" if values[0] is None else str(values[0]), len(values))
    return f"{{{','.join(['NULL' if value is None else str(value) for value in values])}}}"


def _texts(values: Sequence[str | None]) -> str:
    """A list as Postgres writes it. Quoted, so that a text may be empty, or the word NULL."""
    if _are_alike(values):
        return _repeated("NULL" if values[0] is None else _quoted(values[0]), len(values))
    plain = [value for value in values if value is not None]
    whole = "".join(plain)
    if len(plain) == len(values) and '"' not in whole and "\\" not in whole:
        return '{"' + '","'.join(plain) + '"}'
    return f"{{{','.join(['NULL' if value is None else _quoted(value) for value in values])}}}"


def _are_alike(values: Sequence[Any]) -> bool:
    """Most columns of a batch say the same of every run, and counting them is quicker than spelling each."""
    return len(values) > 1 and values[0] == values[-1] and values.count(values[0]) == len(values)


def _repeated(spelled: str, times: int) -> str:
    return f"{{{f'{spelled},' * (times - 1)}{spelled}}}"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _columns(rows: Iterable[Sequence[Any]]) -> list[tuple[Any, ...]]:
    return list(zip(*rows, strict=True))


def _same(column: str, value: str) -> str:
    """A join that can only be a lookup by index. Written plainly, a plan that was made while the table was empty reads
    all of it in key order to meet the list, and goes on doing so when it is full."""
    return f"{column} = ANY (ARRAY[{value}])"


@lru_cache
def _creation_columns(born: bool) -> dict[str, str]:
    return {"m": "int", **RUN_FIXED, **dict(list(RUN_MOVING.items())[BORN if born else ALL])}


@lru_cache
def _move_columns(plain: bool) -> dict[str, str]:
    return {"m": "int", "run_id": "text", **dict(list(RUN_MOVING.items())[PLAIN if plain else ALL])}


@lru_cache
def _put_columns(name: str) -> dict[str, str]:
    return {"m": "int", **INDEXES[name].columns}


@lru_cache
def _drop_columns(name: str) -> dict[str, str]:
    table = INDEXES[name]
    return {"m": "int", **{column: table.columns[column] for column in table.key}}


def _in_order(names: frozenset[str]) -> list[str]:
    return [name for name in INDEXES if name in names]


def _verdict(table: str, key: str, fences: str) -> str:
    return _VERDICT.format(
        s="{s}",
        table=table,
        same=_same(f"h.{key}", "x.id"),
        clock=CLOCK,
        fences=fences,
        fenced=_FENCED if fences else "",
    )


def _fences(places: _Places) -> str:
    return _FENCES.format(fences=places.unnest("f", _FENCE_COLUMNS))


def _creates(places: _Places, *, born: bool) -> list[str]:
    """New runs are inserted plainly: an id that someone took meanwhile fails the batch. Sorted, so that two batches
    which share sessions or ids wait for each other instead of locking crosswise."""
    columns = _creation_columns(born)
    source = places.unnest("c", columns)
    given = [_resolved("c", name, RUNS, "c.instant") for name in columns if name != "m"]
    values = ", ".join([*given, *("NULL" if value is None else str(value) for value in UNTOUCHED if born)])
    return [
        f"""
    c AS MATERIALIZED (
        SELECT c.*, v.at[c.m] AS instant FROM {source} CROSS JOIN v WHERE v.at[c.m] >= 0
    )""",
        """
    owners AS (
        INSERT INTO {s}sessions (session_id, user_id, created_at)
        SELECT c.session_id, c.user_id, min(c.instant)
        FROM c
        GROUP BY c.session_id, c.user_id
        ORDER BY c.session_id, c.user_id
        ON CONFLICT DO NOTHING
    )""",
        f"""
    created AS (
        INSERT INTO {{s}}runs ({", ".join(RUNS.names)})
        SELECT {values} FROM c ORDER BY c.run_id
    )""",
    ]


def _updates(places: _Places, *, plain: bool) -> str:
    source = places.unnest("x", _move_columns(plain))
    names = tuple(RUN_MOVING)[PLAIN if plain else ALL]
    values = ", ".join(f"{name} = {_resolved('x', name, RUNS, 'v.at[x.m]')}" for name in names)
    return f"""
    moved AS (
        UPDATE {{s}}runs r SET {values}
        FROM {source} CROSS JOIN v
        WHERE {_same("r.run_id", "x.run_id")} AND v.at[x.m] >= 0
    )"""


def _touches(places: _Places) -> str:
    return f"""
    touched AS (
        UPDATE {{s}}runs r SET rev = x.rev, at = v.at[x.m]
        FROM {places.unnest("x", _STILL_COLUMNS)} CROSS JOIN v
        WHERE {_same("r.run_id", "x.run_id")} AND v.at[x.m] >= 0
    )"""


def _deletes(places: _Places) -> list[str]:
    """The run's row, and with it every row that refers to it; those that do so without a constraint go by name."""
    source = places.unnest("g", _GONE_COLUMNS)
    parts = [
        f"""
    g AS MATERIALIZED (
        SELECT g.run_id FROM {source} CROSS JOIN v WHERE v.at[g.m] >= 0
    )"""
    ]
    for name in (RUNS.name, *UNBOUND):
        same = _same("d.run_id", "g.run_id")
        parts.append(f"""
    removed_{name} AS (
        DELETE FROM {{s}}{name} d USING g WHERE {same}
    )""")
    return parts


def _put(table: Table, places: _Places) -> str:
    source = places.unnest("p", _put_columns(table.name))
    values = ", ".join(_resolved("p", name, table, "v.at[p.m]") for name in table.names)
    updates = ", ".join(f"{name} = excluded.{name}" for name in table.values)
    replace = "" if table.insert_only else f"ON CONFLICT ({', '.join(table.key)}) DO UPDATE SET {updates}"
    return f"""
    put_{table.name} AS (
        INSERT INTO {{s}}{table.name} ({", ".join(table.names)})
        SELECT {values} FROM {source} CROSS JOIN v WHERE v.at[p.m] >= 0
        {replace}
    )"""


def _drop(table: Table, places: _Places) -> str:
    source = places.unnest("p", _drop_columns(table.name))
    first, *others = table.key
    same = " AND ".join([_same(f"d.{first}", f"p.{first}"), *(f"d.{name} = p.{name}" for name in others)])
    return f"""
    drop_{table.name} AS (
        DELETE FROM {{s}}{table.name} d
        USING {source} CROSS JOIN v
        WHERE {same} AND v.at[p.m] >= 0
    )"""


def _entries(places: _Places) -> str:
    return f"""
    noted AS (
        INSERT INTO {{s}}journal (thread, rev, kind, data, at, digest, commit_id)
        SELECT e.thread, e.rev, e.kind, e.data, v.at[e.m], e.digest, $2::bigint
        FROM {places.unnest("e", _ENTRY_COLUMNS)} CROSS JOIN v
        WHERE v.at[e.m] >= 0
    )"""


def _resolved(row: str, name: str, table: Table, instant: str) -> str:
    """A column's value, counted from the commit's instant where it is a moment that had to wait for it."""
    value = f"{row}.{name}"
    if name not in table.moments:
        return value
    return f"CASE WHEN {value} < 0 THEN {value} + {-PENDING} + {instant} ELSE {value} END"


def _append_text() -> str:
    """Like a commit, for threads that belong to no run. $5 holds how many entries each append brings."""
    columns = "$3::text::text[], $4::text::int[], $5::text::int[]"
    row = f"unnest({columns}) WITH ORDINALITY AS x (thread, expected, length, m) CROSS JOIN v"
    return f"""WITH{_verdict("threads", "thread", "")},
    began AS (
        INSERT INTO {{s}}threads (thread, rev, at)
        SELECT x.thread, x.length, v.at[x.m]
        FROM {row}
        WHERE x.expected = 0 AND v.at[x.m] >= 0
        ORDER BY x.thread
    ),
    moved AS (
        UPDATE {{s}}threads h SET rev = x.expected + x.length, at = v.at[x.m]
        FROM {row}
        WHERE {_same("h.thread", "x.thread")} AND x.expected > 0 AND v.at[x.m] >= 0
    ),{_entries(_Places(5))}
    {_ANSWER}"""


def _slices_text(chosen: Mapping[str, str]) -> str:
    """One JSON text per request, in order, all of one snapshot."""
    parts = {"run": f"(SELECT to_json(p) FROM ({slices.RUN}) p)"}
    for name, part in chosen.items():
        parts[name] = f"coalesce((SELECT json_agg(p) FROM ({part}) p), '[]')"
    fields = ",\n        ".join(f"'{name}', {part}" for name, part in parts.items())
    fields = fields.replace("{awaited}", "(SELECT json_array_elements_text(nullif(:awaited, '')::json))")
    fields = fields.replace("{runnables}", "json_array_elements_text(nullif(:runnables, '')::json) AS j (key)")
    of_request = re.sub(r"(?<!:):([a-z_]+)", r"q.\1", fields)
    arrays = ", ".join(f"${place}::text[]" for place in range(2, len(_REQUEST_COLUMNS) + 2))
    return f"""
    WITH t AS MATERIALIZED (SELECT coalesce($1::bigint, {CLOCK}) AS now)
    SELECT json_build_object(
        'now', t.now,
        'first_digest', coalesce(
            (SELECT encode(j.digest, 'hex') FROM {{s}}journal j WHERE j.thread = 'run:' || q.run_id AND j.rev = 1),
            (SELECT 'gone' FROM {{s}}tombstones d WHERE d.run_id = q.run_id)
        ),
        {of_request}
    )::text
    FROM unnest({arrays}) WITH ORDINALITY AS q ({", ".join(_REQUEST_COLUMNS)}, m)
    CROSS JOIN t
    ORDER BY q.m"""


def _beat_text(locking: str) -> str:
    """Extend leases that still hold. The update of `work` is the fence: it sees the row as it stands after the lock."""
    return f"""
    WITH l AS MATERIALIZED (
        SELECT x.*, r.rev, r.at, r.cancel_requested_at
        FROM unnest($4::text[], $5::text[], $6::text[], $7::text[], $8::text[], $9::bytea[])
            WITH ORDINALITY AS x (run_id, key, claim_id, claim_token_hash, data, digest, m)
        JOIN {{s}}runs r ON {_same("r.run_id", "x.run_id")}
        ORDER BY x.run_id COLLATE "C"
        FOR UPDATE OF r {locking}
    ),
    t AS MATERIALIZED (
        SELECT coalesce($1::bigint, {CLOCK}) AS now FROM (SELECT count(*) FROM l) locked
    ),
    beaten AS (
        UPDATE {{s}}work w SET lease_until = greatest(t.now, l.at) + $3::bigint
        FROM l CROSS JOIN t
        WHERE {_same("w.run_id", "l.run_id")} AND w.key = l.key AND w.claim_id = l.claim_id
          AND w.claim_token_hash = l.claim_token_hash AND w.lease_until > greatest(t.now, l.at)
        RETURNING l.*, greatest(t.now, l.at) AS instant
    ),
    n AS MATERIALIZED (
        -- Siblings of one run share its row: each takes the next revision.
        SELECT b.*, b.rev + row_number() OVER (PARTITION BY b.run_id ORDER BY b.m) AS next FROM beaten b
    ),
    moved AS (
        UPDATE {{s}}runs r SET rev = h.rev, at = h.at
        FROM (SELECT n.run_id, max(n.next) AS rev, max(n.instant) AS at FROM n GROUP BY n.run_id) h
        WHERE {_same("r.run_id", "h.run_id")}
    ),
    noted AS (
        INSERT INTO {{s}}journal (thread, rev, kind, data, at, digest, commit_id)
        SELECT 'run:' || n.run_id, n.next, 'attempt_heartbeat', n.data, n.instant, n.digest, $2::bigint FROM n
    )
    SELECT n.claim_id, n.instant + $3::bigint, n.next, n.cancel_requested_at FROM n ORDER BY n.m"""


APPEND = _append_text()
READ_SLICES = _slices_text({**slices.PARTS, "ticks": _TICKS, "shared": _SHARED})
READ_WHOLE = _slices_text(slices.WHOLE)
HEARTBEAT = _beat_text("SKIP LOCKED")
HEARTBEAT_ALONE = _beat_text("")
