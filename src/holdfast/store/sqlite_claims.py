"""How SQLite gives out work: what is due is found by index, taken together, and heard of from again by heartbeats."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any, NamedTuple

from holdfast.store.sqlite_many import Many, answer, listed
from holdfast.store.sqlite_members import entry_row, insert, write_entries
from holdfast.store.types import Beat, Beaten, Claimed, ClaimRequest, Entry

LEVELS = """
    WITH RECURSIVE levels (priority) AS (
        SELECT max(priority) FROM work WHERE queue = :queue
        UNION ALL
        SELECT (SELECT max(priority) FROM work WHERE queue = :queue AND priority < levels.priority)
        FROM levels
        WHERE levels.priority IS NOT NULL
    )
    SELECT priority FROM levels WHERE priority IS NOT NULL
"""
DUE = """
    SELECT w.run_id, w.key, w.claim_id, w.attempt, r.rev, r.at
    FROM work w
    JOIN runs r ON r.run_id = w.run_id
    WHERE w.queue = :queue
      AND w.priority = :priority
      AND w.due_at <= :now
      AND r.status IN ('pending', 'waiting', 'active')
      {clogs}
      {passed}
      {sticky}
    ORDER BY w.due_at
    LIMIT :limit
"""
# Another's session is never taken, one's own in its pass, and what is nobody's in the second.
_STICKY = """
      AND coalesce(
          (
              SELECT k.owner_id = :owner AND (w.due_at <= :reach) = :own
              FROM sticky_sessions k
              WHERE k.session_id = r.session_id AND k.expires_at > :instant
          ),
          NOT :own
      )
"""
# Own sessions come first among the oldest thousand, so that a long queue is not searched to its end.
_REACH = "SELECT due_at FROM work WHERE queue = :queue AND priority = :priority ORDER BY due_at LIMIT 1 OFFSET 999"
_TAKE_WORK = Many(
    listed(["run_id", "key", "claim_id", "claim_token_hash", "lease_until"]),
    5,
    """)
    UPDATE work
    SET claim_id = n.claim_id, claim_token_hash = n.claim_token_hash, lease_until = n.lease_until, waiting = 0,
        deliveries = work.deliveries + 1, owner_id = ?
    FROM n
    WHERE work.run_id = n.run_id AND work.key = n.key
    """,
)
_TAKE_RUNS = Many(
    listed(["run_id", "rev", "at", "roots"]),
    4,
    """)
    UPDATE runs
    SET status = 'active', rev = n.rev, at = n.at, started_at = coalesce(runs.started_at, n.at),
        deliveries = runs.deliveries + n.roots, wake_at = CASE WHEN n.roots THEN NULL ELSE runs.wake_at END
    FROM n
    WHERE runs.run_id = n.run_id
    """,
)
_BEGIN_TICKS = insert("ticks", ("tick_id", "run_id", "key", "claimed_rev", "started_at"))
_FIRST_ENTRIES = Many(
    listed(["run_id"]),
    1,
    """)
    SELECT json_group_array(
        json_array(n.run_id, j.position, j.kind, j.data, j.at, hex(j.digest), j.commit_id)
    )
    FROM n
    CROSS JOIN journal j ON j.thread = 'run:' || n.run_id AND j.rev = 1
    """,
)
_FENCED = """
    SELECT 1 FROM work
    WHERE run_id = ? AND key = ? AND claim_id = ? AND claim_token_hash = ? AND lease_until > ?
"""


class _Due(NamedTuple):
    """An item that is due, and where its run stands."""

    run_id: str
    key: str
    claim_id: str | None
    attempt: int
    rev: int
    at: int


class _Taken(NamedTuple):
    """An item as it is taken: its claim, and the revision and instant of the entry that says so."""

    due: _Due
    claim_id: str
    claim_token_hash: str
    rev: int
    at: int


def claim(connection: sqlite3.Connection, request: ClaimRequest, now: int, commit_id: int) -> list[Claimed]:
    """Take what is due, highest priority first, oldest first within one; leases that ran out are only named."""
    due = _due(connection, request, now)
    taken = _numbered([item for item in due if item.claim_id is None], request, now)
    _write(connection, taken, request, commit_id)
    first = _first_entries(connection, [item.due.run_id for item in taken if item.rev == 2])
    claimed = iter(taken)
    return [
        Claimed(item.run_id, item.key, None, now) if item.claim_id is not None else _claimed(next(claimed), first)
        for item in due
    ]


def heartbeat(connection: sqlite3.Connection, beat: Beat, lease_us: int, now: int, commit_id: int) -> Beaten | None:
    """A lease begins anew, if it is still held."""
    head = connection.execute(
        "SELECT rev, at, status, cancel_requested_at FROM runs WHERE run_id = ?", (beat.run_id,)
    ).fetchone()
    if head is None:
        return None
    at, rev = max(now, head["at"]), head["rev"] + 1
    if not connection.execute(_FENCED, (*beat, at)).fetchone():
        return None
    lease_until = at + lease_us
    connection.execute(
        "UPDATE work SET lease_until = ? WHERE run_id = ? AND key = ?", (lease_until, beat.run_id, beat.key)
    )
    connection.execute("UPDATE runs SET rev = ?, at = ? WHERE run_id = ?", (rev, at, beat.run_id))
    write_entries(connection, [entry_row(f"run:{beat.run_id}", rev, beat.entry(lease_us), at, commit_id)])
    return Beaten(beat.claim_id, lease_until, rev, head["cancel_requested_at"])


def _due(connection: sqlite3.Connection, request: ClaimRequest, now: int) -> list[_Due]:
    levels = [
        (-row["priority"], place, queue)
        for queue in request.queues or ()
        for row in connection.execute(LEVELS, {"queue": queue})
        for place in range(2 if request.sticky else 1)
    ]
    clogs = request.clogs
    known = {f"clog{i}": clog for i, clog in enumerate(clogs or ())}
    condition = "" if clogs is None else f"AND w.clog_id IN ({', '.join(f':{name}' for name in known)})"
    passed = {f"passed{i}": run_id for i, run_id in enumerate(request.passed)}
    others = f"AND w.run_id NOT IN ({', '.join(f':{name}' for name in passed)})" if passed else ""
    sql = DUE.format(clogs=condition, passed=others, sticky=_STICKY if request.sticky else "")
    sql = f"SELECT json_group_array(json_array({', '.join(_Due._fields)})) FROM ({sql})"
    due_by = now if request.due_by is None else min(now, request.due_by)
    found: list[_Due] = []
    for negative, place, queue in sorted(levels):
        left = len(request.claim_ids) - len(found)
        if left <= 0:
            break
        params: dict[str, Any] = {
            "queue": queue,
            "priority": -negative,
            "now": due_by,
            "limit": left,
            **known,
            **passed,
        }
        if request.sticky:
            params |= _preferring(connection, params, own=place == 0, owner_id=request.owner_id, instant=now)
        found += [_Due(*item) for item in answer(connection, sql, params)]
    return found


def _preferring(
    connection: sqlite3.Connection, level: dict[str, Any], *, own: bool, owner_id: str, instant: int
) -> dict[str, Any]:
    """What one pass over a level is told, of a worker that keeps to its sessions: its own first, then nobody's."""
    reach = connection.execute(_REACH, {name: level[name] for name in ("queue", "priority")}).fetchone()
    told = {"own": own, "owner": owner_id, "instant": instant, "reach": reach["due_at"] if reach else (1 << 63) - 1}
    return {**told, "now": min(level["now"], told["reach"])} if own else told


def _numbered(due: Sequence[_Due], request: ClaimRequest, now: int) -> list[_Taken]:
    """Who gets which claim. Several items of one run take its next revisions, one after the other."""
    tickets = zip(request.claim_ids, request.claim_token_hashes, strict=True)
    heads: dict[str, int] = {}
    taken: list[_Taken] = []
    for item, (claim_id, claim_token_hash) in zip(due, tickets, strict=False):
        rev = heads[item.run_id] = heads.get(item.run_id, item.rev) + 1
        taken.append(_Taken(item, claim_id, claim_token_hash, rev, max(now, item.at)))
    return taken


def _write(connection: sqlite3.Connection, taken: Sequence[_Taken], request: ClaimRequest, commit_id: int) -> None:
    roots: dict[str, int] = {}
    for item in taken:
        roots[item.due.run_id] = roots.get(item.due.run_id, 0) + (item.due.key == "")
    # Of several items of one run the last has its revision.
    runs = {due.run_id: (due.run_id, rev, at, roots[due.run_id]) for due, _, _, rev, at in taken}
    _TAKE_WORK.run(
        connection,
        [(due.run_id, due.key, claim_id, hashed, at + request.lease_us) for due, claim_id, hashed, _, at in taken],
        request.owner_id,
    )
    _TAKE_RUNS.run(connection, list(runs.values()))
    _BEGIN_TICKS.run(connection, [(claim_id, due.run_id, due.key, rev, at) for due, claim_id, _, rev, at in taken])
    lines = (
        (item, request.entry(item.due.key, item.due.attempt, item.claim_id, item.claim_token_hash)) for item in taken
    )
    write_entries(
        connection, [entry_row(f"run:{item.due.run_id}", item.rev, entry, item.at, commit_id) for item, entry in lines]
    )


def _first_entries(connection: sqlite3.Connection, run_ids: Sequence[str]) -> dict[str, Entry]:
    """Of a run that has just begun, the one entry before its claim tells everything."""
    try:
        found = _FIRST_ENTRIES.read(connection, [(run_id,) for run_id in run_ids])
    except sqlite3.OperationalError as error:
        if "decode to UTF-8" not in str(error):
            raise
        # One of them is so damaged that it is no text. Whoever claimed reads them one by one.
        return {}
    return {
        run_id: Entry(position, f"run:{run_id}", 1, kind, data, at, bytes.fromhex(digest), commit_id)
        for run_id, position, kind, data, at, digest, commit_id in found
    }


def _claimed(taken: _Taken, first: dict[str, Entry]) -> Claimed:
    run_id = taken.due.run_id
    return Claimed(run_id, taken.due.key, taken.claim_id, taken.at, first.get(run_id) if taken.rev == 2 else None)
