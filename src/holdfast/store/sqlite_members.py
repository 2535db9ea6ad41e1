"""How SQLite writes the members of a commit: judged first, all at once, then written table by table."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from holdfast.store.sqlite_many import Many, listed
from holdfast.store.tables import INDEXES, PLAIN, RUN_FIXED, RUN_MOVING, RUNS, Table, moment
from holdfast.store.types import Append, Member, NewEntry, Row, Written

ENTRY_COLUMNS = ("thread", "rev", "kind", "data", "at", "digest", "commit_id")


def insert(name: str, columns: Iterable[str], conflict: str = "") -> Many:
    columns = tuple(columns)
    return Many(f"INSERT INTO {name} ({', '.join(columns)}) VALUES ", len(columns), conflict)


def _upsert(table: Table) -> Many:
    if table.insert_only:
        return insert(table.name, table.names)
    updates = ", ".join(f"{name} = excluded.{name}" for name in table.values)
    return insert(table.name, table.names, f" ON CONFLICT ({', '.join(table.key)}) DO UPDATE SET {updates}")


def _delete(table: Table) -> Many:
    # By row: `(a, b) IN (VALUES …)` would read the whole table to meet the list.
    same = " AND ".join(f"t.{name} = n.{name}" for name in table.key)
    found = f") SELECT t.rowid FROM n CROSS JOIN {table.name} t ON {same})"
    return Many(f"DELETE FROM {table.name} WHERE rowid IN ({listed(table.key)}", len(table.key), found)


def _move(names: Sequence[str]) -> Many:
    columns = ("run_id", *names)
    changes = ", ".join(f"{name} = n.{name}" for name in names)
    return Many(listed(columns), len(columns), f") UPDATE runs SET {changes} FROM n WHERE runs.run_id = n.run_id")


def _resolver(names: Sequence[str], moments: frozenset[str]) -> Callable[[Row, int], Row]:
    places = frozenset(place for place, name in enumerate(names) if name in moments)

    def resolve(row: Row, at: int) -> Row:
        resolved = list(row)
        for place in places:
            resolved[place] = moment(row[place], at)
        return tuple(resolved)

    return resolve if places else lambda row, at: row


_HEADS = Many(
    listed(["run_id"]),
    1,
    ") SELECT json_group_array(json_array(r.run_id, r.rev, r.at)) FROM n CROSS JOIN runs r ON r.run_id = n.run_id",
)
_HELD = Many(
    listed(["run_id", "key", "claim_id", "claim_token_hash", "at"]),
    5,
    """)
    SELECT json_group_array(json_array(w.run_id, w.key, w.claim_id, w.claim_token_hash))
    FROM n
    CROSS JOIN work w ON w.run_id = n.run_id AND w.key = n.key
    WHERE w.claim_id = n.claim_id AND w.claim_token_hash = n.claim_token_hash AND w.lease_until > n.at
    """,
)
_SESSIONS = insert("sessions", ("session_id", "user_id", "created_at"), " ON CONFLICT DO NOTHING")
_CREATE = insert(RUNS.name, RUNS.names)
_MOVE = _move(tuple(RUN_MOVING))
_MOVE_PLAIN = _move(tuple(RUN_MOVING)[PLAIN])
_TOUCH = _move(("rev", "at"))
_GO = Many("DELETE FROM runs WHERE run_id IN (VALUES ", 1, ")")
_PUTS = {name: _upsert(table) for name, table in INDEXES.items()}
_DROPS = {name: _delete(table) for name, table in INDEXES.items()}
_ENTRIES = insert("journal", ENTRY_COLUMNS)
_HEAD_OF_THREAD = "SELECT rev, at FROM threads WHERE thread = ?"
_MOVE_THREAD = """
    INSERT INTO threads (thread, rev, at) VALUES (?, ?, ?)
    ON CONFLICT (thread) DO UPDATE SET rev = excluded.rev, at = excluded.at
"""
_RESOLVERS = {name: _resolver(table.names, table.moments) for name, table in INDEXES.items()}
_RESOLVE_FIXED = _resolver(tuple(RUN_FIXED), RUNS.moments)
_RESOLVE_MOVING = _resolver(tuple(RUN_MOVING), RUNS.moments)


def write_members(connection: sqlite3.Connection, members: Sequence[Member], now: int, commit_id: int) -> list[Written]:
    """Accept each member whole or refuse it whole: revisions and fences are judged here, under the one writer."""
    written = _judge(connection, members, now)
    accepted = [(member, at) for member, (at, _) in zip(members, written, strict=True) if at is not None]
    _write_runs(connection, accepted)
    _write_indexes(connection, accepted)
    entries = (row for member, at in accepted for row in _entry_rows(member, at, commit_id))
    _ENTRIES.run(connection, list(entries))
    return written


def append(connection: sqlite3.Connection, appends: Sequence[Append], now: int, commit_id: int) -> list[Written]:
    """The same for threads that are no run's."""
    return [_append(connection, each, now, commit_id) for each in appends]


def write_entries(connection: sqlite3.Connection, rows: Sequence[Row]) -> None:
    """Lines of the journal, in the order of `ENTRY_COLUMNS`."""
    _ENTRIES.run(connection, rows)


def entry_row(thread: str, rev: int, entry: NewEntry, at: int, commit_id: int) -> Row:
    return (thread, rev, entry.kind, entry.data, at, entry.digest, commit_id)


def _judge(connection: sqlite3.Connection, members: Sequence[Member], now: int) -> list[Written]:
    found = _HEADS.read(connection, [(member.run_id,) for member in members])
    heads = {run_id: (rev, at) for run_id, rev, at in found}
    verdicts = [_verdict(member, heads.get(member.run_id), now) for member in members]
    fences = [
        (member.run_id, *fence, at)
        for member, (at, _) in zip(members, verdicts, strict=True)
        if at is not None
        for fence in member.fences
    ]
    if not fences:
        return verdicts
    held = {tuple(fence) for fence in _HELD.read(connection, fences)}
    lost = {run_id for run_id, *fence, _ in fences if (run_id, *fence) not in held}
    return [
        Written(None, verdict.rev) if member.run_id in lost else verdict
        for member, verdict in zip(members, verdicts, strict=True)
    ]


def _verdict(member: Member, head: tuple[int, int] | None, now: int) -> Written:
    rev, at = head or (0, now)
    if rev == member.expected_rev:
        return Written(max(now, at), rev)
    if member.created is not None:
        # As where rows are inserted unseen: an id that someone took meanwhile fails the batch.
        raise sqlite3.IntegrityError(f"run {member.run_id} exists")
    return Written(None, rev)


def _write_runs(connection: sqlite3.Connection, accepted: Sequence[tuple[Member, int]]) -> None:
    sessions: dict[Row, Row] = {}
    created: list[Row] = []
    gone: list[Row] = []
    moved: list[Row] = []
    moved_plainly: list[Row] = []
    touched: list[Row] = []
    for member, at in accepted:
        if not member.run:
            touched.append((member.run_id, member.last_rev, at))
            continue
        moving = _RESOLVE_MOVING(member.run, at)
        if member.created is not None:
            fixed = _RESOLVE_FIXED(member.created, at)
            sessions.setdefault(fixed[1:3], (*fixed[1:3], at))
            created.append((*fixed, *moving))
        elif member.gone:
            gone.append((member.run_id,))
        elif member.plain:
            moved_plainly.append((member.run_id, *moving[PLAIN]))
        else:
            moved.append((member.run_id, *moving))
    _SESSIONS.run(connection, list(sessions.values()))
    _CREATE.run(connection, created)
    _TOUCH.run(connection, touched)
    _MOVE_PLAIN.run(connection, moved_plainly)
    _MOVE.run(connection, moved)
    _GO.run(connection, gone)


def _write_indexes(connection: sqlite3.Connection, accepted: Sequence[tuple[Member, int]]) -> None:
    drops: defaultdict[str, list[Row]] = defaultdict(list)
    puts: defaultdict[str, list[Row]] = defaultdict(list)
    for member, at in accepted:
        for name, keys in member.changes.drops.items():
            drops[name] += keys
        for name, rows in member.changes.puts.items():
            puts[name] += [_RESOLVERS[name](row, at) for row in rows]
    for name, keys in drops.items():
        _DROPS[name].run(connection, keys)
    for name, rows in puts.items():
        _PUTS[name].run(connection, rows)


def _entry_rows(member: Member, at: int, commit_id: int) -> Iterable[Row]:
    thread = member.thread
    for rev, entry in enumerate(member.entries, start=member.expected_rev + 1):
        yield entry_row(thread, rev, entry, at, commit_id)


def _append(connection: sqlite3.Connection, append: Append, now: int, commit_id: int) -> Written:
    head = connection.execute(_HEAD_OF_THREAD, (append.thread,)).fetchone()
    rev = head["rev"] if head else 0
    if append.expected_rev != rev:
        return Written(None, rev)
    at = max(now, head["at"]) if head else now
    connection.execute(_MOVE_THREAD, (append.thread, rev + len(append.entries), at))
    lines = enumerate(append.entries, start=rev + 1)
    write_entries(connection, [entry_row(append.thread, each, entry, at, commit_id) for each, entry in lines])
    return Written(at, rev)
