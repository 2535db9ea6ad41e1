"""The store: everything the floors above may ask of a database, the same on SQLite and on Postgres.

Only complete pieces of work cross this seam. Statements that differ live with their database; the rest is one
portable text, here, beside the method that runs it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, NamedTuple

from holdfast import ambient
from holdfast.errors import Conflict, DatabaseError
from holdfast.store import timeouts
from holdfast.store.appender import Appender
from holdfast.store.claimer import Claimer
from holdfast.store.committer import Committer, Patience, patiently
from holdfast.store.database import Database
from holdfast.store.gathering import Gathering
from holdfast.store.hints import Hints, Listener
from holdfast.store.news import topics
from holdfast.store.outbox_rows import OutboxRows
from holdfast.store.recorder import Judge, Recorded, Recorder, changes, latest
from holdfast.store.sqlite import SQLite
from holdfast.store.tables import (
    FACTS,
    HANDOFFS,
    INDEXES,
    OUTBOX,
    RUNS,
    SHARED_STORAGE,
    TOMBSTONES,
    TOOL_CALLS,
    UNBOUND,
)
from holdfast.store.types import (
    Addition,
    Beat,
    Beaten,
    Change,
    Claimed,
    ClaimRequest,
    Committed,
    Entry,
    FactKey,
    Intention,
    Mark,
    Member,
    NewEntry,
    OutcomeUnknown,
    Planner,
    Rejected,
    Row,
    S,
    Slice,
    SliceRequest,
    Statement,
)

PAGE = 1_000
PLACES_MAX = 100
_OF_NO_RUN = frozenset({HANDOFFS.name, SHARED_STORAGE.name, OUTBOX.name})
"""Tables whose rows outlive the run that wrote them."""
# What must still be delivered outlives its run, as a row of no run. It is let go first: what is settled meanwhile is
# either the run's and goes with it, or nobody's.
_LEAVE_PENDING = """
    UPDATE {s}outbox SET run_id = NULL
    WHERE run_id = $1 AND status = 'pending' AND NOT EXISTS (SELECT 1 FROM {s}runs WHERE run_id = $1)
"""
_SETTLED = "run_id = $1 AND status <> 'pending' AND NOT EXISTS (SELECT 1 FROM {s}runs WHERE run_id = $1)"
_DROP_SETTLED = f"DELETE FROM {{s}}outbox WHERE {_SETTLED}"
_DROP_AUDITS = f"DELETE FROM {{s}}outbox_audits WHERE outbox_id IN (SELECT outbox_id FROM {{s}}outbox WHERE {_SETTLED})"
_CANCELLED = "SELECT run_id FROM {s}runs WHERE run_id IN ({ids}) AND cancel_requested_at IS NOT NULL"
_GONE = "SELECT run_id FROM {s}tombstones WHERE run_id IN ({ids})"
_USED = f"SELECT run_id FROM {{s}}runs WHERE run_id IN ({{ids}}) UNION ALL {_GONE}"
Handoff = tuple[str, str, str]
"""The run that it is for, the run that it comes from, and what it asks for."""
NEVER = 1 << 61
"""From here on a due time means: not by itself."""


class RunRows(NamedTuple):
    """Every row that belongs to a run, by table, and its journal, all of one snapshot."""

    tables: dict[str, list[Row]]
    entries: list[Entry]


class Timers(NamedTuple):
    """What comes due by itself, apart from work: each the earliest of its kind, None if there is none."""

    question: int | None
    """The end of an open question to a person."""
    window: int | None
    """The next window of a schedule."""
    one_shot: int | None
    """The next window of a schedule that has only one. Cron never ends."""
    dead_letter: int | None
    """When a delivery was given up whose run was not told yet."""
    handoff: bool
    """Is a handoff open?"""
    free_lane: bool
    """Does somebody wait in a lane that nobody holds?"""


class Store(Generic[S]):
    """One database and the ways to read and write it. Open before use; safe for any number of tasks."""

    def __init__(
        self,
        database: Database,
        planner: Planner[S],
        *,
        grouped: bool = True,
    ) -> None:
        self._database = database
        self._planner = planner
        self.hints = Hints(database)
        self.committer: Committer[S] = Committer(database, planner, self._committed, self.hints.wanted, grouped=grouped)
        self.claimer = Claimer(database, self.fetch)
        self.appender = Appender(database, self.hints.publish, grouped=grouped)
        self.recorder = Recorder(database)
        self.outbox = OutboxRows(database, self.fetch, self.hints.publish)
        self._dropping: Gathering[Handoff, None] = Gathering(self._drop_handoffs, PLACES_MAX, about=tuple)

    def beside(self) -> Store[S]:
        """The same database for the event loop of another thread. Opened there, without migrating or listening."""
        return Store(self._database.beside(), self._planner)

    @property
    def is_apart(self) -> bool:
        """Does the database work while we do?"""
        return self._database.is_apart

    async def open(self, *, migrate: bool = True, listen: bool = True) -> None:
        """Connect, check that the database is fit, bring its schema up to date."""
        await patiently(self._database.open)
        try:
            if migrate:
                await self._again(self._database.migrate)
            if listen:
                await self.hints.start()
        except BaseException:
            await self._database.close()
            raise

    async def close(self) -> None:
        """Let what was accepted finish, then disconnect."""
        await self.committer.close()
        await self.appender.close()
        await self.outbox.close()
        await self._dropping.close()
        await self.hints.stop()
        await self._database.close()

    async def now(self) -> int:
        """The clock that judges leases."""
        return await patiently(self._database.now)

    async def commit(self, intention: Intention[S]) -> Committed[S]:
        """Carry out one intention on one run, together with whatever others want at the same time."""
        return await self.committer.commit(intention)

    def submit(self, intention: Intention[S]) -> asyncio.Future[Committed[S]]:
        """The same without waiting: it is taken now, in the order of the calls."""
        return self.committer.submit(intention)

    async def create_all(self, members: Sequence[Member]) -> int:
        """Create many runs in one commit, all or none. Raises `Conflict` when an id or key is taken."""
        commit_id = ambient.random_bits(62)
        patience = Patience()
        while True:
            try:
                written = await patiently(lambda: self._database.write(members, commit_id))
            except OutcomeUnknown as error:
                await patience.pause(error)
                continue
            except Rejected as error:
                return await self._created_before(members, commit_id, str(error))
            at = written[0].at
            if at is None or any(result.at is None for result in written):
                return await self._created_before(members, commit_id, "nothing was created")
            self._committed(members)
            return at

    async def _created_before(self, members: Sequence[Member], commit_id: int, refusal: str) -> int:
        """Refused, perhaps by ourselves: a commit whose answer was lost may have taken these very ids."""
        marks = [Mark(member.thread, 1) for member in members]
        landed = await patiently(lambda: self._database.landed(marks, commit_id))
        if len(landed) < len(marks):
            raise Conflict(f"a run id or key is already in use: {refusal}", code="id_reused")
        self._committed(members)
        return landed[marks[0]]

    async def slices(self, requests: Sequence[SliceRequest]) -> list[Slice]:
        return await patiently(lambda: self._database.read_slices(requests))

    async def append(self, thread: str, entries: list[NewEntry], expected_rev: int | None = None) -> int:
        """Add entries to a thread that is no run's; answer its new head, or raise `Conflict` with nothing written."""
        return await self.appender.append(thread, entries, expected_rev)

    async def record(self, keys: Sequence[FactKey], judge: Judge) -> Recorded:
        """Judge the latest facts of these keys and add what follows, in one commit."""
        return await self.recorder.record(keys, judge)

    async def put_facts(self, rows: Sequence[tuple[str, Row]]) -> None:
        """Write facts that the journal proves, in place of what stands there under the same keys."""
        statements: list[tuple[str, tuple[Any, ...]]] = []
        for name, row in rows:
            key = FACTS[name].key
            same = " AND ".join(f"{column} = ${place}" for place, column in enumerate(key, start=1))
            statements.append((f"DELETE FROM {{s}}{name} WHERE {same}", tuple(row[: len(key)])))
        statements += changes(Addition(tuple(rows)), 0, "{s}")
        await self.execute(*statements)

    async def latest_facts(self, keys: Sequence[FactKey]) -> dict[FactKey, Row | None]:
        """The latest fact of each key, as it stands now."""
        found: dict[FactKey, Row | None] = {}
        for key in keys:
            text, params = latest(key, self._database.prefix)
            rows = await self.fetch(text, *params)
            found[key] = rows[0][:-1] if rows else None
        return found

    async def claim(self, request: ClaimRequest) -> list[Claimed]:
        """Take due work. After a lost connection the same claim ids are asked for, so nothing is taken twice."""
        return await self.claimer.claim(request)

    async def heartbeat(self, beats: Sequence[Beat], lease_us: int) -> list[Beaten]:
        """Extend the leases that can be extended at once. A claim without an answer must be asked for alone."""
        patience = Patience()
        while True:
            try:
                commit_id = ambient.random_bits(62)
                return await patiently(lambda: self._database.heartbeat(beats, lease_us, commit_id))  # noqa: B023
            except OutcomeUnknown as error:
                # Extending twice is extending once.
                await patience.pause(error)

    async def next_due(self, queues: Sequence[str] | None, clogs: Sequence[str] | None = None) -> int | None:
        """When the next item of these queues and clogs (of all) can be claimed; None if none waits for a time."""
        chosen = await self.claimer.queues() if queues is None else tuple(queues)
        if not chosen or clogs == ():
            return None
        # One probe for each queue and priority, however much work is open.
        values = ", ".join(f"(CAST(${place} AS text))" for place in range(1, len(chosen) + 1))
        known = ", ".join(f"${place}" for place, _ in enumerate(clogs or (), start=len(chosen) + 1))
        sql = f"""
            WITH RECURSIVE levels (queue, priority) AS (
                SELECT q.column1, (SELECT max(w.priority) FROM {{s}}work w WHERE w.queue = q.column1)
                FROM (VALUES {values}) AS q
                UNION ALL
                SELECT l.queue, (
                    SELECT max(w.priority) FROM {{s}}work w WHERE w.queue = l.queue AND w.priority < l.priority
                )
                FROM levels l
                WHERE l.priority IS NOT NULL
            )
            SELECT min((
                SELECT w.due_at
                FROM {{s}}work w
                JOIN {{s}}runs r ON r.run_id = w.run_id
                WHERE w.queue = l.queue
                  AND w.priority = l.priority
                  {f"AND w.clog_id IN ({known})" if known else ""}
                  AND r.status IN ('pending', 'waiting', 'active')
                ORDER BY w.due_at
                LIMIT 1
            ))
            FROM levels l
            WHERE l.priority IS NOT NULL
        """
        ((due_at,),) = await self.fetch(sql, *chosen, *(clogs or ()))
        return None if due_at is None or due_at >= NEVER else due_at

    async def next_timers(self) -> Timers:
        """When the next open question to a person is over, when a schedule has its next window, and what is left over.

        One question for all of it: an idle worker asks it every few seconds.
        """
        sql = """
            SELECT
                (SELECT min(boundary_expires_at) FROM {s}runs WHERE boundary_expires_at IS NOT NULL),
                (SELECT min(next_at) FROM {s}schedules WHERE next_at IS NOT NULL),
                (SELECT min(next_at) FROM {s}schedules WHERE next_at IS NOT NULL AND cron IS NULL),
                (SELECT min(settled_at) FROM {s}outbox WHERE status = 'dead' AND told = 0 AND run_id IS NOT NULL),
                EXISTS (SELECT 1 FROM {s}handoffs),
                EXISTS (
                    SELECT 1 FROM {s}lane_tickets t
                    WHERE t.held = 0 AND NOT EXISTS (
                        SELECT 1 FROM {s}lane_tickets h
                        WHERE h.session_id = t.session_id AND h.lane = t.lane AND h.held = 1
                    )
                )
        """
        found = Timers(*(await self.fetch(sql))[0])
        # SQLite has no truth of its own.
        return found._replace(handoff=bool(found.handoff), free_lane=bool(found.free_lane))

    async def cancelled_among(self, run_ids: Sequence[str]) -> list[str]:
        """Those of these runs that someone wants to stop."""
        return await self._ids_among(_CANCELLED, run_ids)

    async def read(
        self, thread: str, after: int = 0, limit: int | None = None, *, until_at: int | None = None
    ) -> list[Entry]:
        """Entries of one thread in order, those after a revision."""
        sql = """
            SELECT position, thread, rev, kind, data, at, digest, commit_id
            FROM {s}journal
            WHERE thread = $1 AND rev > $2 AND at <= $3
            ORDER BY rev
            LIMIT $4
        """
        far = (1 << 62) if until_at is None else until_at
        return [_entry(row) for row in await self.fetch_by_key(sql, thread, after, far, _limit(limit))]

    async def read_view(
        self, condition: str, value: str, kinds: Sequence[str] | None, after: int = 0, limit: int | None = None
    ) -> list[Entry]:
        """Entries of many runs ordered by position: a picture of one moment, never a way to follow along.

        Positions are given before commit, so an entry with a lower one may appear later; use `tail` to follow.
        """
        column = {"queue": "r.queue", "clog": "r.clog_id", "session": "r.session_id", "all": "''"}[condition]
        chosen = "" if kinds is None else f"AND j.kind IN ({', '.join(_quoted(kind) for kind in kinds)})"
        sql = f"""
            SELECT j.position, j.thread, j.rev, j.kind, j.data, j.at, j.digest, j.commit_id
            FROM {{s}}runs r
            JOIN {{s}}journal j ON j.thread = 'run:' || r.run_id
            WHERE {column} = $1 AND j.position > $2 {chosen}
              -- An end that the run did not take is no end, though its entry stays.
              AND (j.kind <> 'run_terminal' OR j.rev = r.ended_rev)
            ORDER BY j.position
            LIMIT $3
        """
        return await self._entries(sql, value, after, _limit(limit))

    async def tail(self, cursors: Mapping[str, int], limit: int = PAGE) -> list[Entry]:
        """What is new on several threads, each after its own revision, ordered by position.

        Inside a thread positions follow revisions, so wherever the limit cuts, no thread has a hole.
        """
        sql = """
            WITH cursors (thread, after) AS (VALUES {values})
            SELECT j.position, j.thread, j.rev, j.kind, j.data, j.at, j.digest, j.commit_id
            FROM cursors c
            JOIN {s}journal j ON j.thread = c.thread AND j.rev > c.after
            ORDER BY j.position
            LIMIT $1
        """
        return sorted(await self._entries_for(sql, list(cursors.items()), limit))[:limit]

    async def entries_at(self, places: Sequence[tuple[str, int]]) -> dict[tuple[str, int], Entry]:
        """The entries that stand at these revisions of these threads."""
        sql = """
            WITH places (thread, rev) AS (VALUES {values})
            SELECT j.position, j.thread, j.rev, j.kind, j.data, j.at, j.digest, j.commit_id
            FROM places p
            JOIN {s}journal j ON j.thread = p.thread AND j.rev = p.rev
            LIMIT $1
        """
        found = await self._entries_for(sql, places, len(places))
        return {(entry.thread, entry.rev): entry for entry in found}

    async def heads(self, threads: Sequence[str]) -> dict[str, int]:
        """The head of each thread that exists."""
        found: dict[str, int] = {}
        for thread in threads:
            rows = await self.fetch_by_key("SELECT max(rev) FROM {s}journal WHERE thread = $1", thread)
            if rows[0][0] is not None:
                found[thread] = rows[0][0]
        return found

    async def run_rows(self, run_id: str) -> RunRows:
        """Everything there is about one run alone, read in one snapshot."""
        names = [RUNS.name, *(name for name in INDEXES if name not in _OF_NO_RUN)]
        queries: list[tuple[str, tuple[Any, ...]]] = [
            (self._sql(f"SELECT {', '.join(_columns(name))} FROM {{s}}{name} WHERE run_id = $1"), (run_id,))
            for name in names
        ]
        journal = """
            SELECT position, thread, rev, kind, data, at, digest, commit_id
            FROM {s}journal
            WHERE thread = $1
            ORDER BY rev
        """
        queries.append((self._sql(journal), (f"run:{run_id}",)))
        *tables, entries = await patiently(lambda: self._database.fetch_snapshot(queries))
        return RunRows(dict(zip(names, tables, strict=True)), [_entry(row) for row in entries])

    async def run_ids(self, after: str = "", limit: int = PAGE) -> list[str]:
        """Ids of every run that has a row or a thread, or should have one, in order."""
        # Each part stops after a page of its own, so that a page costs the same wherever it begins.
        rows = " UNION ".join(
            f"""
            SELECT id FROM (
                SELECT DISTINCT run_id AS id FROM {{s}}{name} WHERE run_id > $1 {more} ORDER BY run_id LIMIT $3
            ) {name}
            """
            for name, more in ((RUNS.name, ""), (TOMBSTONES.name, "AND rev > 0"), *((name, "") for name in UNBOUND))
        )
        sql = f"""
            WITH RECURSIVE threads (thread) AS (
                SELECT (SELECT min(thread) FROM {{s}}journal WHERE thread > $2 AND thread < 'run;')
                UNION ALL
                SELECT (SELECT min(j.thread) FROM {{s}}journal j WHERE j.thread > t.thread AND j.thread < 'run;')
                FROM threads t
                WHERE t.thread IS NOT NULL
            )
            SELECT id FROM (
                {rows}
                UNION
                SELECT id FROM (SELECT substr(thread, 5) AS id FROM threads WHERE thread IS NOT NULL LIMIT $3) told
            ) ids
            ORDER BY id
            LIMIT $3
        """
        return [row[0] for row in await self.fetch(sql, after, f"run:{after}", limit)]

    async def replace_rows(self, run_id: str, tables: Mapping[str, Sequence[Row]]) -> None:
        """Put the rows of one run in place of those that stand there. The journal is not touched."""
        drops = [
            (self._sql(f"DELETE FROM {{s}}{name} WHERE run_id = $1"), (run_id,))
            for name in (*(name for name in tables if name != RUNS.name), RUNS.name)
        ]
        puts = self._puts(tables)
        await self._again(lambda: self._database.execute([*drops, *puts]))

    async def restore(self, entries: Sequence[Entry], tables: Mapping[str, Sequence[Row]]) -> bool:
        """Write a run that was made elsewhere: its entries with their own instants, and their rows, in one commit.

        Rows that several runs share are written where there are none. False: an id, a key, a session or a lane that
        it needs is another's, and nothing was written.
        """
        sql = """
            INSERT INTO {s}journal (thread, rev, kind, data, at, digest, commit_id)
            VALUES ($1, $2, $3, $4, $5, $6, $7)
        """
        lines = [(self._sql(sql), tuple(entry[1:])) for entry in entries]
        statements = [*self._puts(tables), *lines]
        patience = Patience()
        while True:
            try:
                await patiently(lambda: self._database.execute(statements))
                break
            except OutcomeUnknown as error:
                await patience.pause(error)
            except Rejected:
                # Perhaps by ourselves: a commit whose answer was lost.
                last = await self.entries_at([(entries[-1].thread, entries[-1].rev)])
                return [entry[1:] for entry in last.values()] == [entries[-1][1:]]
        self.hints.publish({entries[-1].thread, *(f"queue:{row[2]}" for row in tables["work"])})
        return True

    async def gone_among(self, run_ids: Sequence[str]) -> list[str]:
        """Those of these runs that were deleted."""
        return await self._ids_among(_GONE, run_ids)

    async def used_among(self, run_ids: Sequence[str]) -> list[str]:
        """Those of these ids that are a run's, or were."""
        return await self._ids_among(_USED, run_ids)

    async def remove_run(self, run: Row, *, finished_by: int = -1) -> None:
        """Remove a deleted run's entries, or everything of a run that was over by an instant; its tombstone stays.

        `run` is (id, session, owner, instant). The row goes first, and with it its lock: whoever wrote to the run
        before is seen by the statements that follow, whoever comes later finds no run.
        """
        run_id, thread = run[0], f"run:{run[0]}"
        gone = "NOT EXISTS (SELECT 1 FROM {s}runs WHERE run_id = $1)"
        unowned = "NOT EXISTS (SELECT 1 FROM {s}runs WHERE run_id = $2)"
        stone = """
            INSERT INTO {s}tombstones (run_id, session_id, user_id, rev, at)
            SELECT CAST($1 AS text), CAST($2 AS text), CAST($3 AS text), 0, CAST($4 AS bigint)
            WHERE NOT EXISTS (SELECT 1 FROM {s}runs WHERE run_id = $1)
            ON CONFLICT (run_id) DO UPDATE SET rev = 0
        """
        await self.execute(
            ("DELETE FROM {s}runs WHERE run_id = $1 AND finished_at <= $2", (run_id, finished_by)),
            (stone, tuple(run)),
            *((f"DELETE FROM {{s}}{name} WHERE run_id = $1 AND {gone}", (run_id,)) for name in UNBOUND),
            (f"DELETE FROM {{s}}journal WHERE thread = $1 AND {unowned}", (thread, run_id)),
            (f"DELETE FROM {{s}}checkpoints WHERE thread = $1 AND {unowned}", (thread, run_id)),
            (_LEAVE_PENDING, (run_id,)),
            (_DROP_AUDITS, (run_id,)),
            (_DROP_SETTLED, (run_id,)),
        )

    async def handoffs(self, limit: int = PAGE, *, of: str | None = None) -> list[Row]:
        """Open handoffs, all or those of one run: (target, source, kind, revision of the source's entry)."""
        sql = f"""
            SELECT target_run_id, source_run_id, kind, rev FROM {{s}}handoffs
            {"" if of is None else "WHERE target_run_id = $2 OR source_run_id = $2"}
            ORDER BY target_run_id, source_run_id, kind LIMIT $1
        """
        return await self.fetch(sql, limit, *([] if of is None else [of]))

    async def drop_handoff(self, target_run_id: str, source_run_id: str, kind: str) -> None:
        """Remove an open handoff, together with whatever others remove at the same time."""
        await self._dropping.ask((target_run_id, source_run_id, kind))

    async def _drop_handoffs(self, keys: Sequence[Handoff]) -> list[None]:
        places = ", ".join(f"(${3 * place + 1}, ${3 * place + 2}, ${3 * place + 3})" for place in range(len(keys)))
        sql = f"DELETE FROM {{s}}handoffs WHERE (target_run_id, source_run_id, kind) IN (VALUES {places})"
        params = tuple(part for key in keys for part in key)
        await self._again(lambda: self._database.execute([(self._sql(sql), params)]))
        return [None] * len(keys)

    async def save_checkpoint(self, thread: str, rev: int, state: str, digest: bytes) -> None:
        sql = """
            INSERT INTO {s}checkpoints (thread, rev, state, digest) VALUES ($1, $2, $3, $4)
            ON CONFLICT (thread) DO UPDATE SET rev = excluded.rev, state = excluded.state, digest = excluded.digest
        """
        await self._again(lambda: self._database.execute([(self._sql(sql), (thread, rev, state, digest))]))

    async def load_checkpoint(self, thread: str) -> tuple[int, str, bytes] | None:
        rows = await self.fetch_by_key("SELECT rev, state, digest FROM {s}checkpoints WHERE thread = $1", thread)
        return (rows[0][0], rows[0][1], bytes(rows[0][2])) if rows else None

    async def fetch(self, sql: str, *params: Any) -> list[Row]:
        """Read with a portable text: `{s}` before table names, `$1` for values."""
        return await patiently(lambda: self._database.fetch(self._sql(sql), *params))

    async def fetch_by_key(self, sql: str, *params: Any) -> list[Row]:
        """The same for a text that finds every row by its key, however large the tables are: its plan is kept."""
        return await patiently(lambda: self._database.fetch_by_key(self._sql(sql), *params))

    async def execute(self, *statements: tuple[str, tuple[Any, ...]]) -> None:
        """Write with portable texts, in one transaction. For tools that repair or damage on purpose."""
        texts = [(self._sql(sql), params) for sql, params in statements]
        await self._again(lambda: self._database.execute(texts))

    async def change(self, text: str, *params: Any) -> list[Row]:
        """Write with a portable text that answers rows (`{now}` is the commit's instant).

        After a lost answer it is asked again: whoever must know what became of the first time puts that into the text.
        """
        change = Change((text,), text)
        patience = Patience()
        while True:
            try:
                return await patiently(lambda: self._database.change(change, *params))
            except OutcomeUnknown as error:
                await patience.pause(error)
            except Rejected as error:
                raise DatabaseError(f"the database refused this write: {error}", code="write_rejected") from error

    async def threads(self) -> list[str]:
        """Every thread that is no run's, whether its head, its entries or both are there."""
        sql = """
            SELECT thread FROM {s}threads
            UNION
            SELECT thread FROM {s}journal WHERE NOT (thread >= 'run:' AND thread < 'run;')
            ORDER BY thread
        """
        return [row[0] for row in await self.fetch(sql)]

    async def thread(self, thread: str) -> tuple[int, list[Entry]]:
        """The recorded head of a thread that is no run's, and its entries, in one snapshot."""
        entries = """
            SELECT position, thread, rev, kind, data, at, digest, commit_id
            FROM {s}journal
            WHERE thread = $1
            ORDER BY rev
        """
        head = "SELECT rev FROM {s}threads WHERE thread = $1"
        queries = [(self._sql(head), (thread,)), (self._sql(entries), (thread,))]
        heads, rows = await patiently(lambda: self._database.fetch_snapshot(queries))
        return heads[0][0] if heads else 0, [_entry(row) for row in rows]

    async def replace_head(self, thread: str, rev: int, at: int) -> None:
        """Put the head of a thread that is no run's where its last entry says it is."""
        sql = """
            INSERT INTO {s}threads (thread, rev, at) VALUES ($1, $2, $3)
            ON CONFLICT (thread) DO UPDATE SET rev = excluded.rev, at = excluded.at
        """
        await self.execute((sql, (thread, rev, at)))

    def qualified(self, sql: str) -> str:
        """A portable text for a commit's own statements: `{s}` becomes what stands before a table's name here."""
        return self._sql(sql)

    def locking(self, key: FactKey) -> Sequence[Statement]:
        """Statements for a commit's own that make it wait until nobody else judges a fact of this key."""
        return self._database.locking(key)

    def listen(self, *topics: str) -> Listener:
        return self.hints.listen(topics)

    def _committed(self, members: Sequence[Member], told: Sequence[str] = ()) -> None:
        self.hints.publish(topics(members), told=told)
        self.hints.newborn.add(members)

    def _puts(self, tables: Mapping[str, Sequence[Row]]) -> list[tuple[str, tuple[Any, ...]]]:
        """The statements that insert these rows, each after those it refers to."""
        session = """
            INSERT INTO {s}sessions (session_id, user_id, created_at) VALUES ($1, $2, $3)
            ON CONFLICT (session_id) DO NOTHING
        """
        created = RUNS.names.index("created_at")
        puts: list[tuple[str, tuple[Any, ...]]] = [
            (self._sql(session), (row[1], row[2], row[created])) for row in tables[RUNS.name]
        ]
        for name in (RUNS.name, *(name for name in tables if name != RUNS.name)):
            columns = _columns(name)
            marks = ", ".join(f"${number}" for number in range(1, len(columns) + 1))
            known = "ON CONFLICT DO NOTHING" if name in (SHARED_STORAGE.name, TOOL_CALLS.name) else ""
            sql = self._sql(f"INSERT INTO {{s}}{name} ({', '.join(columns)}) VALUES ({marks}) {known}")
            puts += [(sql, tuple(row)) for row in tables[name]]
        return puts

    async def _ids_among(self, sql: str, run_ids: Sequence[str]) -> list[str]:
        """Ask about many ids (`{ids}`), a hundred at a time."""
        found: list[str] = []
        for start in range(0, len(run_ids), PLACES_MAX):
            some = run_ids[start : start + PLACES_MAX]
            places = ", ".join(f"${place}" for place in range(1, len(some) + 1))
            found += [row[0] for row in await self.fetch_by_key(sql.replace("{ids}", places), *some)]
        return found

    async def _entries(self, sql: str, *params: Any) -> list[Entry]:
        return [_entry(row) for row in await self.fetch(sql, *params)]

    async def _entries_for(self, sql: str, places: Sequence[tuple[str, int]], limit: int) -> list[Entry]:
        """Ask about many (thread, revision) pairs, a hundred at a time."""
        found: list[Entry] = []
        for start in range(0, len(places), PLACES_MAX):
            some = places[start : start + PLACES_MAX]
            values = ", ".join(f"(CAST(${2 * i + 2} AS text), CAST(${2 * i + 3} AS bigint))" for i in range(len(some)))
            # Not by key: a plan that was made on an empty journal would begin with the journal.
            found += await self._entries(
                sql.replace("{values}", values), limit, *(part for pair in some for part in pair)
            )
        return found

    async def _again(self, attempt: Callable[[], Any]) -> None:
        """For writes that may be repeated without harm."""
        patience = Patience()
        while True:
            try:
                await patiently(attempt)
                return
            except OutcomeUnknown as error:
                await patience.pause(error)

    def _sql(self, text: str) -> str:
        return text.replace("{s}", self._database.prefix)


def connect(
    url: str, clock: Callable[[], int] | None, *, schema: str = "holdfast", statement_timeout_ms: int | None = None
) -> Database:
    """The database a URL means: a path, `sqlite:///path`, `:memory:`, or `postgresql://…`."""
    limit_ms = timeouts.statement_timeout_ms(statement_timeout_ms)
    if url.startswith(("postgresql://", "postgres://")):
        try:
            from holdfast.store.postgres import Postgres  # noqa: PLC0415  # the driver is an extra
        except ModuleNotFoundError as error:
            text = "Postgres needs a driver: pip install 'holdfast[postgres]'"
            raise DatabaseError(text, code="driver_missing") from error
        return Postgres(url, clock, schema=schema, statement_timeout_ms=limit_ms)
    if "://" in url and not url.startswith("sqlite:///"):
        raise DatabaseError(
            f"{url.split('://')[0]}:// is no database Holdfast knows; use a path, sqlite:///path or postgresql://",
            code="unknown_database",
        )
    path = url.removeprefix("sqlite:///")
    if not path:
        raise DatabaseError(
            "the database has no name; use a path, or :memory: for one that does not last", code="unknown_database"
        )
    return SQLite(path, clock, statement_timeout_ms=limit_ms)


def _columns(name: str) -> tuple[str, ...]:
    return RUNS.names if name == RUNS.name else INDEXES[name].names


def _entry(row: Row) -> Entry:
    position, thread, rev, kind, data, at, digest, commit_id = row
    return Entry(position, thread, rev, kind, data, at, bytes(digest), commit_id)


def _limit(limit: int | None) -> int:
    return (1 << 31) if limit is None else limit


def _quoted(word: str) -> str:
    return "'" + word.replace("'", "''") + "'"


__all__ = ["NewEntry", "RunRows", "Store", "connect"]
