"""Postgres: one statement per batch, judged after its locks, and a few connections that never wait for each other."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import msgspec

from holdfast import ambient
from holdfast.errors import DatabaseError
from holdfast.redaction import logger
from holdfast.store import postgres_alone, recorder
from holdfast.store import postgres_sql as texts
from holdfast.store.database import LockedPlan, OnHint, RecordPlan
from holdfast.store.migrate import Migration, pending
from holdfast.store.postgres_hints import NOTIFY, Ear, payload, payloads
from holdfast.store.postgres_pool import BY_KEY, HINTS, SESSION, Address, Connections, connect, parse_url
from holdfast.store.timeouts import STATEMENT_TIMEOUT_MS
from holdfast.store.types import (
    Append,
    Beat,
    Beaten,
    Busy,
    Change,
    Claimed,
    ClaimRequest,
    Entry,
    FactKey,
    Mark,
    Member,
    OutcomeUnknown,
    Rejected,
    Row,
    Slice,
    SliceRequest,
    Statement,
    Written,
)

log = logger("holdfast.store")

OLDEST = 130_000
MIGRATION_TIMEOUT_S = 600.0
_SCHEMA = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,47}")
_SETTINGS = ("fsync", "full_page_writes", "synchronous_commit")
_decode_slice = msgspec.json.Decoder(Slice).decode


class _Lanes:
    """Connections by purpose: commits, claims and heartbeats must not queue behind each other or behind readers."""

    def __init__(self, url: str, statement_timeout_ms: int) -> None:
        address = _limited(parse_url(url), statement_timeout_ms)
        self.address = address
        self.commits = Connections(address, 3, BY_KEY)
        self.exact = Connections(address, 2, BY_KEY)
        self.claims = Connections(address, 2, BY_KEY)
        self.beats = Connections(address, 2, BY_KEY)
        self.outbox = Connections(address, 3, BY_KEY)
        self.reads = Connections(address, 4, SESSION)
        self.lookups = Connections(address, 4, BY_KEY)
        self.hints = Connections(address, 1, HINTS)

    async def close(self) -> None:
        writing = (self.commits, self.exact, self.claims, self.beats, self.outbox)
        await asyncio.gather(*(lane.close() for lane in (*writing, self.reads, self.lookups, self.hints)))


class Postgres:
    """A schema in a Postgres database, shared by any number of processes. Belongs to the event loop that opened it."""

    is_apart = True

    def __init__(
        self,
        url: str,
        clock: Callable[[], int] | None,
        *,
        schema: str,
        statement_timeout_ms: int = STATEMENT_TIMEOUT_MS,
    ) -> None:
        if not _SCHEMA.fullmatch(schema):
            raise DatabaseError(
                f"schema must be 1 to 48 letters, digits or _ and not begin with a digit; got {schema!r}",
                code="invalid_schema",
            )
        self.prefix = f'"{schema}".'
        self._schema = schema
        self._channel = f"holdfast:{schema}"
        self._url = url
        self._clock = clock
        self._statement_timeout_ms = statement_timeout_ms
        self._lanes: _Lanes | None = None
        self._ear: Ear | None = None
        self._name = f"{ambient.random_bits(62):x}"
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = 0

    def beside(self) -> Postgres:
        return Postgres(self._url, self._clock, schema=self._schema, statement_timeout_ms=self._statement_timeout_ms)

    async def open(self) -> None:
        self._loop, self._pid = asyncio.get_running_loop(), os.getpid()
        self._lanes = _Lanes(self._url, self._statement_timeout_ms)
        try:
            await self._check_server()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        ear, self._ear = self._ear, None
        lanes, self._lanes = self._lanes, None
        if ear is not None:
            await ear.stop()
        if lanes is not None:
            await lanes.close()

    async def migrate(self) -> None:
        # Looking needs no rights to create, and most openings find nothing to do.
        if await self._opened().reads.run(self._pending, lost=Busy):
            await self._opened().reads.run(self._migrate, lost=Busy)

    async def now(self) -> int:
        if self._clock is not None:
            return self._clock()
        rows = await self.fetch(texts.NOW)
        return int(rows[0][0])

    async def fetch(self, sql: str, *params: Any) -> list[Row]:
        return await self._opened().reads.run(lambda connection: _rows(connection, sql, params), lost=Busy)

    async def fetch_by_key(self, sql: str, *params: Any) -> list[Row]:
        return await self._opened().lookups.run(lambda connection: _rows(connection, sql, params), lost=Busy)

    async def fetch_snapshot(self, queries: Sequence[tuple[str, tuple[Any, ...]]]) -> list[list[Row]]:
        *short, (text, params) = queries

        async def job(connection: Any) -> list[list[Row]]:
            async with connection.transaction(isolation="repeatable_read", readonly=True):
                return [*await _rows_of_each(connection, short), await _rows(connection, text, params)]

        return await self._opened().lookups.run(job, lost=Busy)

    async def execute(self, statements: Sequence[tuple[str, tuple[Any, ...]]]) -> None:
        async def job(connection: Any) -> None:
            async with connection.transaction(isolation="read_committed"):
                for text, params in statements:
                    await connection.fetch(text, *params)

        await self._opened().reads.run(job, lost=OutcomeUnknown)

    async def change(self, change: Change, *params: Any) -> list[Row]:
        text = _stamped(change.postgres, self.prefix, len(params) + 1)
        arguments = (*params, self._given_now()) if "{now}" in change.postgres else params
        return await self._opened().outbox.run(
            lambda connection: _rows(connection, text, arguments), lost=OutcomeUnknown
        )

    async def read_slices(self, requests: Sequence[SliceRequest]) -> list[Slice]:
        if not requests:
            return []
        return await self._opened().commits.run(lambda connection: self._slices(connection, requests), lost=Busy)

    async def write(self, members: Sequence[Member], commit_id: int, news: Sequence[str] = ()) -> list[Written]:
        if not members:
            return []
        return await self._opened().commits.run(
            lambda connection: self._write(connection, members, commit_id, self._given_now(), news),
            lost=OutcomeUnknown,
        )

    async def write_locked(self, request: SliceRequest, plan: LockedPlan, commit_id: int) -> int | None:
        async def job(connection: Any) -> int | None:
            # Read committed: every statement sees what was committed before it, so the slice is read after the lock.
            async with connection.transaction(isolation="read_committed"):
                await connection.fetch(self._text(texts.LOCK_RUN), request.run_id)
                for name in sorted(json.loads(request.shared or "[]")):
                    await connection.fetch(self._text(texts.LOCK_SHARED), name)
                (seen,) = await self._slices(connection, [request])
                at = max(seen.now, seen.run["at"]) if seen.run else seen.now
                member = plan(seen, at)
                if member is None or not await self._is_let_in(connection, member.guard):
                    return None
                (written,) = await self._write(connection, [member], commit_id, at)
                if written.at is None:
                    # Decided under the lock, at this very instant: only a run that was not there to lock can differ.
                    raise Busy(f"run {request.run_id} was created meanwhile")
                await _run_statements(connection, member.statements)
                return written.at

        return await self._opened().exact.run(job, lost=OutcomeUnknown)

    async def _is_let_in(self, connection: Any, guard: Statement | None) -> bool:
        return guard is None or await connection.execute(self._text(guard[0]), *guard[1]) != "UPDATE 0"

    async def append(self, appends: Sequence[Append], commit_id: int) -> list[Written]:
        if not appends:
            return []
        arguments = texts.append_arguments(appends, commit_id, self._given_now())
        rows = await self._opened().commits.run(
            lambda connection: _rows(connection, self._text(texts.APPEND), arguments), lost=OutcomeUnknown
        )
        return _written(rows)

    async def record(self, keys: Sequence[FactKey], plan: RecordPlan, commit_id: int) -> None:
        async def job(connection: Any) -> None:
            # Read committed: what is read after the locks is what stands there.
            async with connection.transaction(isolation="read_committed"):
                for name in sorted(key.name for key in keys):
                    await connection.fetch(self._text(texts.LOCK_SHARED), name)
                seen = {}
                for key in keys:
                    text, params = recorder.latest(key, self.prefix)
                    seen[key] = recorder.split(await _rows(connection, text, params))
                given = self._given_now()
                now = given if given is not None else await connection.fetchval(texts.NOW)
                for text, params in recorder.changes(plan(seen, now), commit_id, self.prefix):
                    await connection.fetch(text, *params)

        await self._opened().exact.run(job, lost=OutcomeUnknown)

    def locking(self, key: FactKey) -> Sequence[Statement]:
        return [(self._text(texts.LOCK_SHARED), (key.name,))]

    async def landed(self, marks: Sequence[Mark], commit_id: int) -> dict[Mark, int]:
        arguments = ([mark.thread for mark in marks], [mark.rev for mark in marks], commit_id)
        rows = await self._opened().commits.run(
            lambda connection: _rows(connection, self._text(texts.LANDED), arguments), lost=Busy
        )
        return {Mark(thread, rev): at for thread, rev, at in rows}

    async def claim(self, request: ClaimRequest, commit_id: int) -> list[Claimed]:
        arguments = texts.claim_arguments(request, commit_id, self._given_now())
        text = self._text(texts.CLAIM_STICKY if request.sticky else texts.CLAIM)
        rows = await self._opened().claims.run(
            lambda connection: _rows(connection, text, arguments), lost=OutcomeUnknown
        )
        return [_claimed(*row) for row in rows]

    async def heartbeat(self, beats: Sequence[Beat], lease_us: int, commit_id: int) -> list[Beaten]:
        if not beats:
            return []
        # Among many, a run that is just being written is skipped; one that is asked for alone is waited for.
        alone = len({beat.run_id for beat in beats}) == 1
        text = self._text(texts.HEARTBEAT_ALONE if alone else texts.HEARTBEAT)
        arguments = texts.beat_arguments(beats, lease_us, commit_id, self._given_now())
        rows = await self._opened().beats.run(
            lambda connection: _rows(connection, text, arguments), lost=OutcomeUnknown
        )
        return [Beaten(*row) for row in rows]

    async def send_hint(self, topics: Sequence[str]) -> None:
        async def job(connection: Any) -> None:
            await connection.fetch(NOTIFY, self._channel, list(payloads(self._name, topics)))

        await self._opened().hints.run(job, lost=OutcomeUnknown)

    async def listen(self, on_hint: OnHint) -> None:
        address = self._opened().address
        if address.pooled:
            # A pooler hands every statement to another session, and none of them would listen.
            return
        self._ear = Ear(lambda: connect(address, SESSION), self._channel, on_hint, name=self._name)
        await self._ear.start()

    async def _slices(self, connection: Any, requests: Sequence[SliceRequest]) -> list[Slice]:
        text = self._text(texts.READ_WHOLE if requests[0].whole else texts.READ_SLICES)
        rows = await _rows(connection, text, texts.slice_arguments(requests, self._given_now()))
        return [_decode_slice(row[0]) for row in rows]

    async def _write(
        self, connection: Any, members: Sequence[Member], commit_id: int, now: int | None, news: Sequence[str] = ()
    ) -> list[Written]:
        told = (self._channel, payload(self._name, news)) if news else ()
        if (alone := postgres_alone.alone(members, tells=bool(told))) is not None:
            arguments = postgres_alone.arguments(alone, members[0], commit_id, now, *told)
            return _written(await _rows(connection, self._text(postgres_alone.text(alone)), arguments))
        shape = texts.write_shape(members, tells=bool(told))
        arguments = [*texts.write_arguments(shape, members, commit_id, now), *told]
        return _written(await _rows(connection, self._text(texts.write_text(shape)), arguments))

    async def _check_server(self) -> None:
        """Refuse, in words, a server that cannot keep what it confirms."""
        lanes = self._opened()
        settings = ", ".join(f"current_setting('{name}')" for name in _SETTINGS)
        text = f"SELECT current_setting('server_version_num')::int, pg_is_in_recovery(), {settings}"
        ((version, in_recovery, *values),) = await self.fetch(text)
        if version < OLDEST:
            raise DatabaseError(
                f"Postgres {version // 10_000} is too old; Holdfast needs 13 or newer", code="database_unusable"
            )
        if in_recovery:
            raise DatabaseError("this Postgres is a standby; connect to the primary", code="database_read_only")
        off = [name for name, value in zip(_SETTINGS, values, strict=True) if value == "off"]
        if off and not lanes.address.unsafe:
            raise DatabaseError(
                f"Postgres runs with {off[0]} = off and may lose what it confirmed; turn it on, or add unsafe=1 to "
                "the URL where that does not matter",
                code="unsafe_settings",
            )

    async def _pending(self, connection: Any) -> list[Migration]:
        ((exists,),) = await _rows(connection, "SELECT to_regclass($1) IS NOT NULL", (f"{self.prefix}migrations",))
        rows = await _rows(connection, f"SELECT version FROM {self.prefix}migrations", ()) if exists else []
        return list(pending("postgres", {row[0] for row in rows}))

    async def _migrate(self, connection: Any) -> None:
        """Run what is pending, all or nothing. Others who want the same wait, then find nothing to do."""
        async with connection.transaction(isolation="read_committed"):
            await connection.execute("SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = '3s'")
            await connection.fetch("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", self._channel)
            ((missing,),) = await _rows(connection, "SELECT to_regnamespace($1) IS NULL", (f'"{self._schema}"',))
            if missing:
                await connection.execute(f'CREATE SCHEMA "{self._schema}"')
            await connection.execute(
                f"""
                CREATE TABLE IF NOT EXISTS {self.prefix}migrations (
                    version integer PRIMARY KEY, name text NOT NULL, applied_at bigint NOT NULL
                )
                """
            )
            for migration in await self._pending(connection):
                await connection.execute(self._text(migration.sql), timeout=MIGRATION_TIMEOUT_S)
                await connection.fetch(
                    f"INSERT INTO {self.prefix}migrations SELECT $1, $2, {texts.CLOCK}",
                    migration.version,
                    migration.name,
                )

    def _text(self, text: str) -> str:
        return _qualified(text, self.prefix)

    def _given_now(self) -> int | None:
        """The injected clock, or None where the database's own decides."""
        return self._clock() if self._clock is not None else None

    def _opened(self) -> _Lanes:
        if self._lanes is None:
            raise DatabaseError("the database is not open; use `async with` or open() first", code="not_open")
        if os.getpid() != self._pid:
            raise DatabaseError(
                "this Holdfast was opened before a fork; open a new one inside the child process",
                code="forked_process",
            )
        if asyncio.get_running_loop() is not self._loop:
            raise DatabaseError(
                "this Holdfast belongs to another event loop; open one inside this loop", code="wrong_event_loop"
            )
        return self._lanes


def _limited(address: Address, statement_timeout_ms: int) -> Address:
    if not address.pooled:
        return address._replace(statement_timeout_ms=statement_timeout_ms)
    if statement_timeout_ms != STATEMENT_TIMEOUT_MS:
        log.warning(
            "no session lasts behind a transaction pooler, so the statement timeout is the role's own; say "
            "ALTER ROLE … SET statement_timeout = %d",
            statement_timeout_ms,
        )
    return address


@lru_cache(maxsize=1_024)
def _qualified(text: str, prefix: str) -> str:
    return text.replace("{s}", prefix)


@lru_cache(maxsize=256)
def _stamped(text: str, prefix: str, place: int) -> str:
    """The instant of a change is its last argument, or the server's clock."""
    return _qualified(text, prefix).replace("{now}", f"coalesce(CAST(${place} AS bigint), {texts.CLOCK})")


async def _rows(connection: Any, text: str, arguments: Sequence[Any]) -> list[Row]:
    return [tuple(record) for record in await connection.fetch(text, *arguments)]


async def _rows_of_each(connection: Any, queries: Sequence[Statement]) -> list[list[Row]]:
    """The rows of several queries from one statement: to ask one by one takes longer than to answer."""
    if not queries:
        return []
    record = await connection.fetchrow(
        _as_one(tuple((text, len(params)) for text, params in queries)),
        *(value for _, params in queries for value in params),
    )
    return [[tuple(row) for row in rows] for rows in record]


@lru_cache(maxsize=64)
def _as_one(queries: tuple[tuple[str, int], ...]) -> str:
    """A statement with a column for each query, the list of its rows, and with the parameters of all in a row."""
    columns, before = [], 0
    for text, count in queries:
        places = re.split(r"\$(\d+)", text)
        places[1::2] = [f"${int(place) + before}" for place in places[1::2]]
        columns.append(f"ARRAY(SELECT q FROM ({''.join(places)}) q)")
        before += count
    return f"SELECT {', '.join(columns)}"


async def _run_statements(connection: Any, statements: Sequence[Statement]) -> None:
    try:
        for text, params in statements:
            await connection.fetch(text, *params)
    except ValueError as error:
        # What the driver cannot send is no lost connection, though it says so in the same words.
        raise Rejected(f"a parameter does not fit its statement: {error}") from error


def _claimed(run_id: str, key: str, claim_id: str | None, at: int, position: int | None, *first: Any) -> Claimed:
    if position is None:
        return Claimed(run_id, key, claim_id, at)
    kind, data, first_at, digest, commit_id = first
    return Claimed(
        run_id, key, claim_id, at, Entry(position, f"run:{run_id}", 1, kind, data, first_at, digest, commit_id)
    )


def _written(rows: list[Row]) -> list[Written]:
    ((instants, revs, *_),) = rows
    return [Written(at if at >= 0 else None, rev) for at, rev in zip(instants, revs, strict=True)]
