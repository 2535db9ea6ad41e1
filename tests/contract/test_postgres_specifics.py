"""What only Postgres has: connections that die, poolers, plans, sessions that listen, servers not fit for use."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import asyncpg
import pytest

from holdfast.errors import DatabaseError
from holdfast.identity import hash_token
from holdfast.store import (
    Append,
    Beat,
    Changes,
    ClaimRequest,
    Fence,
    Member,
    NewEntry,
    Row,
    SliceRequest,
    postgres,
    postgres_hints,
    postgres_pool,
    postgres_sql,
)
from holdfast.store.postgres import Postgres
from holdfast.store.postgres_hints import Ear, payload, payloads
from holdfast.store.postgres_pool import BY_KEY, SESSION, Address, connect, mapped, parse_url
from holdfast.store.tables import FACTS, INDEXES, PENDING, RUN_FIXED, RUN_MOVING
from holdfast.store.types import Busy, Mark, OutcomeUnknown, Rejected, Slice, Written, line_digest
from tests.schemas import drop, new_name

LEASE_US = 30_000_000


def line(kind: str) -> NewEntry:
    return NewEntry(kind, '{"v":1}', line_digest(kind, '{"v":1}'))


def moving(rev: int, status: str = "pending") -> Row:
    zeros = dict.fromkeys(("attempt", "deliveries", "flow", "undoing", "spoken"), 0)
    given = {**zeros, "status": status, "rev": rev, "at": PENDING}
    return tuple(given.get(name) for name in RUN_MOVING)


def work(run_id: str, key: str = "") -> Row:
    return (run_id, key, "q", "chat", 0, "", PENDING, 0, 0, 0, None, None, None, None, None, 0, "")


def created(run_id: str, **puts: list[Row]) -> Member:
    given = {"run_id": run_id, "session_id": "s", "user_id": "u", "clog_id": "chat", "queue": "q", "mode": "tick"}
    fixed = tuple(given.get(name, PENDING if name == "created_at" else 0) for name in RUN_FIXED)
    nulls = {"lane", "parent_run_id"}
    return Member(
        run_id=run_id,
        expected_rev=0,
        run=moving(1),
        created=tuple(None if name in nulls else value for name, value in zip(RUN_FIXED, fixed, strict=True)),
        entries=[line("run_created")],
        changes=Changes(puts={"work": [work(run_id)], **puts}, drops={}),
    )


def touched(run_id: str, rev: int, *fences: Fence) -> Member:
    return Member(
        run_id=run_id,
        expected_rev=rev,
        run=moving(rev + 1, "active"),
        entries=[line("touched")],
        changes=Changes(puts={}, drops={}),
        fences=list(fences),
    )


def request(*claim_ids: str, lease_us: int = LEASE_US) -> ClaimRequest:
    return ClaimRequest(("q",), None, claim_ids, tuple(hash_token(each) for each in claim_ids), "w1", lease_us)


def fence(claim_id: str) -> Fence:
    return Fence("", claim_id, hash_token(claim_id))


@pytest.fixture
async def schema(postgres_url: str) -> AsyncIterator[str]:
    """A name of this test's own, gone with all it holds when the test is."""
    name = new_name()
    yield name
    await drop(postgres_url, name)


@pytest.fixture
async def open_database(postgres_url: str, schema: str) -> AsyncIterator[Callable[..., Any]]:
    """Opens databases on the test's schema, with extra words in the URL; closes them all."""
    opened: list[Postgres] = []

    async def open_one(words: str = "", clock: Callable[[], int] | None = None) -> Postgres:
        database = Postgres(f"{postgres_url}{words and '&'}{words}", clock, schema=schema)
        opened.append(database)
        await database.open()
        await database.migrate()
        return database

    yield open_one
    for database in opened:
        await database.close()


@pytest.fixture
async def database(open_database: Callable[..., Any]) -> Postgres:
    found: Postgres = await open_database()
    return found


async def until(question: Callable[[], Any]) -> Any:
    """The answer, once there is one; `pytest-timeout` is the deadline."""
    while True:
        answer = question()
        answer = await answer if asyncio.iscoroutine(answer) else answer
        if answer:
            return answer
        await asyncio.sleep(0.01)


async def waiting_for_lock(stranger: Any) -> list[int]:
    # Not pg_stat_activity: inside a transaction it shows the same picture for ever.
    rows = await stranger.fetch("SELECT pid FROM pg_locks WHERE NOT granted")
    return [row["pid"] for row in rows]


class TestAddress:
    @pytest.mark.parametrize(
        ("words", "dsn_words", "pooled", "unsafe"),
        [
            ("", "", False, False),
            ("?pooler=transaction", "", True, False),
            ("?pooler=session&unsafe=1", "", False, True),
            (
                "?host=%2Ftmp%2Fa+b&pooler=transaction&sslmode=require",
                "?host=%2Ftmp%2Fa+b&sslmode=require",
                True,
                False,
            ),
        ],
    )
    def test_our_own_words_are_taken_out_of_the_url(
        self, words: str, dsn_words: str, pooled: bool, unsafe: bool
    ) -> None:
        found = parse_url(f"postgresql://me:pw@host:5432/db{words}")

        assert found == Address(f"postgresql://me:pw@host:5432/db{dsn_words}", pooled, unsafe)

    @pytest.mark.parametrize("words", ["pooler=statement", "unsafe=yes"])
    def test_an_unknown_word_is_refused(self, words: str) -> None:
        with pytest.raises(DatabaseError) as caught:
            parse_url(f"postgresql://host/db?{words}")

        assert caught.value.code == "invalid_url"

    @pytest.mark.parametrize("schema", ["", "1a", "a-b", 'a"b', "a" * 49])
    def test_a_schema_has_a_plain_name(self, schema: str) -> None:
        with pytest.raises(DatabaseError) as caught:
            Postgres("postgresql://host/db", None, schema=schema)

        assert caught.value.code == "invalid_schema"


class TestPooler:
    async def test_nothing_is_prepared_set_or_listened_to(self, open_database: Callable[..., Any]) -> None:
        database = await open_database("pooler=transaction")
        heard: list[Any] = []
        await database.listen(heard.append)

        (written,) = await database.write([created("r1")], 1)
        await database.send_hint(["run:r1"])

        assert written == Written(await at_of(database, "r1"), 0)
        assert await database.fetch("SELECT count(*) FROM pg_prepared_statements") == [(0,)]
        assert await database.fetch("SELECT current_setting('statement_timeout')") == [("0",)]
        assert heard == []

    async def test_without_one_statements_are_kept_and_time_is_limited(self, database: Postgres) -> None:
        names = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout", "jit")
        text = f"SELECT {', '.join(f'current_setting({name!r})' for name in names)}"

        assert await database.fetch(text) == [("15s", "3s", "15s", "off")]
        ((kept,),) = await database.fetch("SELECT count(*) FROM pg_prepared_statements")
        assert kept > 0


async def at_of(database: Postgres, run_id: str) -> int:
    rows = await database.fetch(f"SELECT at FROM {database.prefix}runs WHERE run_id = $1", run_id)
    return int(rows[0][0])


class TestFitness:
    async def test_a_server_that_may_lose_commits_is_refused(self, postgres_url: str, schema: str) -> None:
        database = Postgres(f"{postgres_url}&synchronous_commit=off", None, schema=schema)

        with pytest.raises(DatabaseError, match="synchronous_commit") as caught:
            await database.open()

        assert caught.value.code == "unsafe_settings"

    async def test_unless_that_does_not_matter(self, open_database: Callable[..., Any]) -> None:
        database = await open_database("synchronous_commit=off&unsafe=1")

        assert await database.fetch("SELECT current_setting('synchronous_commit')") == [("off",)]

    async def test_a_database_that_only_reads_says_so(
        self, database: Postgres, open_database: Callable[..., Any]
    ) -> None:
        reader = await open_database("default_transaction_read_only=on")

        with pytest.raises(DatabaseError, match="only reads") as caught:
            await reader.write([created("r1")], 1)

        assert caught.value.code == "database_read_only"

    async def test_a_schema_that_is_not_there_says_so(self, postgres_url: str, schema: str) -> None:
        database = Postgres(postgres_url, None, schema=schema)
        await database.open()

        with pytest.raises(DatabaseError, match="migrate") as caught:
            await database.write([created("r1")], 1)

        assert caught.value.code == "not_migrated"
        await database.close()


class TestMigrations:
    async def test_many_who_begin_at_once_migrate_once(self, postgres_url: str, schema: str) -> None:
        databases = [Postgres(postgres_url, None, schema=schema) for _ in range(5)]
        await asyncio.gather(*(each.open() for each in databases))

        await asyncio.gather(*(each.migrate() for each in databases))

        rows = await databases[0].fetch(f"SELECT version, count(*) FROM {databases[0].prefix}migrations GROUP BY 1")
        assert rows
        assert {count for _, count in rows} == {1}
        await asyncio.gather(*(each.close() for each in databases))

    async def test_a_role_that_may_not_create_opens_what_is_up_to_date(
        self, postgres_url: str, database: Postgres, schema: str, stranger: Any
    ) -> None:
        await stranger.execute(f"CREATE ROLE {schema} LOGIN; GRANT USAGE ON SCHEMA {schema} TO {schema}")
        await stranger.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA {schema} TO {schema}")
        try:
            plain = Postgres(postgres_url.replace("postgres:@", f"{schema}@"), None, schema=schema)
            await plain.open()

            await plain.migrate()

            assert await plain.fetch("SELECT current_user::text") == [(schema,)]
            await plain.close()
        finally:
            await stranger.execute(f"DROP OWNED BY {schema}; DROP ROLE {schema}")

    async def test_names_are_compared_byte_by_byte(self, database: Postgres, schema: str, stranger: Any) -> None:
        """A range such as `'run:' < thread < 'run;'` is empty in most human languages."""
        odd = await stranger.fetch(
            """
            SELECT c.relname, a.attname
            FROM pg_index i
            JOIN pg_class c ON c.oid = i.indrelid AND c.relnamespace = $1::text::regnamespace
            JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = ANY (i.indkey) AND a.attcollation <> 0
            JOIN pg_collation l ON l.oid = a.attcollation
            WHERE l.collname <> 'C'
            """,
            schema,
        )

        assert odd == []


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from nodes(child)


async def generic_plan(connection: Any, text: str) -> dict[str, Any]:
    """The plan that a kept statement runs by, whatever its values."""
    places = max(map(int, re.findall(r"\$(\d+)", text)))
    await connection.execute(f"SET plan_cache_mode = force_generic_plan; PREPARE it AS {text}")
    (row,) = await connection.fetch(f"EXPLAIN (FORMAT JSON) EXECUTE it ({', '.join(['NULL'] * places)})")
    await connection.execute("DEALLOCATE it")
    plan: dict[str, Any] = json.loads(row[0])[0]["Plan"]
    return plan


async def claim_body(connection: Any, schema: str, name: str = "claim") -> str:
    """The claim's own statement, with its settings made and its arguments as places."""
    body, settings, names, kinds = await connection.fetchrow(
        """
        SELECT prosrc, proconfig, proargnames, proargtypes::regtype[]::text[] FROM pg_proc
        WHERE proname = $2 AND pronamespace = $1::text::regnamespace
        """,
        schema,
        name,
    )
    await connection.execute("; ".join(f"SET {setting}" for setting in settings))
    for place, (name, kind) in enumerate(zip(names, kinds, strict=False), start=1):
        body = re.sub(rf"\b{name}\b", f"(${place}::{kind})", body)
    # The function is that one statement and nothing else.
    (statement,) = re.findall(r"BEGIN\s+RETURN QUERY(.*);\s+END", body, re.DOTALL)
    return str(statement)


DROPPED = frozenset(INDEXES.keys() - FACTS.keys())
"""Facts are added by commits and never taken away by one."""
OTHERS = ("signals_waiting", "lane_tickets_in_order", "runnables_unscheduled", "ticks_by_run")
"""Indexes that are used beside primary keys."""


AWKWARD_LISTS: list[list[str | None]] = [
    ["", ""],
    [None, None],
    ["NULL", "NULL"],
    ["a,b", "a,b"],
    ['{"}', '{"}'],
    ["\\", "\\"],
    [None, "", "NULL", '"', "\\", "a b", "é\U0001f600\n"],
    ["x", None, "x"],
    ["x"],
]


@pytest.mark.parametrize("values", AWKWARD_LISTS, ids=range(len(AWKWARD_LISTS)))
async def test_a_list_of_texts_that_is_spelled_is_read_as_it_was_meant(stranger: Any, values: list[str | None]) -> None:
    assert await stranger.fetchval("SELECT $1::text::text[]", postgres_sql._texts(values)) == values


@pytest.mark.parametrize("values", [[0, 0], [None, None], [-1, None, 1 << 62], [7], [7, 7, 7]])
async def test_a_list_of_numbers_that_is_spelled_is_read_as_it_was_meant(
    stranger: Any, values: list[int | None]
) -> None:
    assert await stranger.fetchval("SELECT $1::text::bigint[]", postgres_sql._numbers(values)) == values


class TestPlans:
    @pytest.mark.parametrize(
        "text",
        [
            postgres_sql.write_text(
                postgres_sql.Shape(True, False, True, False, True, True, True, frozenset(INDEXES), DROPPED, False)
            ),
            postgres_sql.APPEND,
            postgres_sql.READ_SLICES,
            postgres_sql.HEARTBEAT,
            postgres_sql.HEARTBEAT_ALONE,
            postgres_sql.LANDED,
            postgres_sql.LOCK_RUN,
        ],
        ids=["write", "append", "slices", "heartbeat", "heartbeat alone", "landed", "lock"],
    )
    async def test_a_plan_made_on_an_empty_database_finds_rows_by_their_keys(
        self, database: Postgres, stranger: Any, text: str
    ) -> None:
        await stranger.execute(f"{BY_KEY} ANALYZE")

        plan = await generic_plan(stranger, text.replace("{s}", database.prefix))

        scans = [node for node in nodes(plan) if "Relation Name" in node and node["Node Type"] != "ModifyTable"]
        assert scans
        for scan in scans:
            assert scan["Node Type"] in ("Index Scan", "Index Only Scan")
            assert scan["Index Name"] in (f"{scan['Relation Name']}_pkey", *OTHERS)
            assert "Index Cond" in scan

    @pytest.mark.parametrize(("name", "more"), [("claim", []), ("claim_sticky", ["sticky_sessions_pkey"])])
    async def test_a_claim_walks_the_queue_in_order_after_a_days_ebb_and_flow(
        self, database: Postgres, schema: str, stranger: Any, name: str, more: list[str]
    ) -> None:
        await stranger.execute(FILL.format(s=database.prefix, first=1, last=20_000) + "; ANALYZE")
        await stranger.execute(f"DELETE FROM {database.prefix}runs; DELETE FROM {database.prefix}work; ANALYZE")
        await stranger.execute(FILL.format(s=database.prefix, first=20_001, last=40_000))

        plan = await generic_plan(stranger, await claim_body(stranger, schema, name))
        claimed = await database.claim(request("c1", "c2", "c3")._replace(sticky=bool(more)), 1)

        (picked,) = (node for node in nodes(plan) if node.get("Subplan Name") == "CTE picked")
        walked = [node["Index Name"] for node in nodes(picked) if "Index Name" in node]
        assert walked == ["work_due", "runs_pkey", *more]
        assert not {node["Node Type"] for node in nodes(picked)} & {"Sort", "Incremental Sort", "Seq Scan", "Hash"}
        assert [each.run_id for each in claimed] == ["r20001", "r20002", "r20003"]

    @pytest.mark.parametrize("name", ["claim", "claim_sticky"])
    async def test_a_claim_is_never_compiled(self, database: Postgres, schema: str, stranger: Any, name: str) -> None:
        """Its forbidden sorts look so dear that a server with a compiler would spend seconds on every claim."""
        settings = await stranger.fetchval(
            "SELECT proconfig FROM pg_proc WHERE proname = $2 AND pronamespace = $1::text::regnamespace", schema, name
        )

        assert {"jit=off", "enable_sort=off"} <= set(settings)


FILL = """
    INSERT INTO {s}sessions (session_id, user_id) VALUES ('s', 'u') ON CONFLICT DO NOTHING;
    INSERT INTO {s}runs (run_id, session_id, user_id, clog_id, queue, mode, priority, max_attempts, backoff_us,
        backoff_max_us, max_deliveries, resumable, created_at, status, rev, at, attempt, deliveries)
    SELECT 'r' || i, 's', 'u', 'chat', 'q', 'tick', 0, 3, 1, 1, 5, 0, i, 'pending', 1, i, 0, 0
    FROM generate_series({first}, {last}) i;
    INSERT INTO {s}work (run_id, key, queue, clog_id, priority, step, visible_at, waiting, attempt, deliveries)
    SELECT 'r' || i, '', 'q', 'chat', 0, '', i, 0, 0, 0 FROM generate_series({first}, {last}) i
"""


class TestLines:
    async def test_the_database_composes_the_line_of_a_claim_as_we_would(self, database: Postgres) -> None:
        retried = (*work("r1", "step")[:8], 2, *work("r1")[9:])
        await database.write([created("r1", work=[work("r1"), retried])], 1)
        asked = request("c1", "c2")

        first, second = await database.claim(asked, 2)

        written = await database.fetch(
            f"SELECT kind, data, digest FROM {database.prefix}journal WHERE thread = 'run:r1' AND rev > 1 ORDER BY rev"
        )
        assert written == [
            asked.entry("", 0, "c1", hash_token("c1")),
            asked.entry("step", 2, "c2", hash_token("c2")),
        ]
        assert [(each.key, each.claim_id) for each in (first, second)] == [("", "c1"), ("step", "c2")]

    async def test_siblings_that_beat_together_leave_one_line_each(self, database: Postgres) -> None:
        await database.write([created("r1", work=[work("r1", "a"), work("r1", "b")]), created("r2")], 1)
        claimed = await database.claim(request("c1", "c2", "c3"), 2)
        beats = [Beat(each.run_id, each.key, str(each.claim_id), hash_token(str(each.claim_id))) for each in claimed]

        beaten = await database.heartbeat(beats, LEASE_US, 3)

        assert [(each.claim_id, each.rev) for each in beaten] == [("c1", 4), ("c2", 5), ("c3", 3)]
        written = await database.fetch(
            f"SELECT kind, data, digest FROM {database.prefix}journal WHERE commit_id = 3 ORDER BY thread, rev"
        )
        assert written == [beat.entry(LEASE_US) for beat in beats]


class TestLocks:
    async def test_a_lease_that_ends_while_the_commit_waits_is_over(self, database: Postgres, stranger: Any) -> None:
        await database.write([created("r1"), created("r2")], 1)
        await database.claim(request("c1", "c2", lease_us=400_000), 2)
        lease = f"SELECT max(lease_until) < {postgres_sql.CLOCK} FROM {database.prefix}work"

        async with stranger.transaction():
            await stranger.fetch(f"SELECT 1 FROM {database.prefix}runs WHERE run_id = 'r1' FOR UPDATE")
            writing = asyncio.create_task(database.write([touched("r1", 2, fence("c1")), touched("r2", 2)], 3))
            await until(lambda: waiting_for_lock(stranger))
            await until(lambda: stranger.fetchval(lease))

        refused, accepted = await writing
        assert refused == Written(None, 2)
        assert accepted.at is not None

    async def test_a_lease_that_ends_while_its_heartbeat_waits_is_over(self, database: Postgres, stranger: Any) -> None:
        await database.write([created("r1")], 1)
        await database.claim(request("c1", lease_us=400_000), 2)
        lease = f"SELECT max(lease_until) < {postgres_sql.CLOCK} FROM {database.prefix}work"

        async with stranger.transaction():
            await stranger.fetch(f"SELECT 1 FROM {database.prefix}runs FOR UPDATE")
            beating = asyncio.create_task(database.heartbeat([Beat("r1", *fence("c1"))], LEASE_US, 3))
            await until(lambda: waiting_for_lock(stranger))
            await until(lambda: stranger.fetchval(lease))

        assert await beating == []

    async def test_many_heartbeats_pass_by_a_locked_run_and_one_alone_waits(
        self, database: Postgres, stranger: Any
    ) -> None:
        await database.write([created("r1"), created("r2")], 1)
        await database.claim(request("c1", "c2"), 2)
        one, two = (Beat(f"r{i}", "", f"c{i}", hash_token(f"c{i}")) for i in (1, 2))

        async with stranger.transaction():
            await stranger.fetch(f"SELECT 1 FROM {database.prefix}runs WHERE run_id = 'r1' FOR UPDATE")
            passed = await database.heartbeat([one, two], LEASE_US, 3)
            alone = asyncio.create_task(database.heartbeat([one], LEASE_US, 4))
            await until(lambda: waiting_for_lock(stranger))

        assert [each.claim_id for each in passed] == ["c2"]
        assert [each.claim_id for each in await alone] == ["c1"]

    async def test_claimers_of_many_processes_never_share_an_item(self, open_database: Callable[..., Any]) -> None:
        databases = [await open_database() for _ in range(4)]
        for start in range(0, 600, 200):
            await databases[0].write([created(f"r{i:03}") for i in range(start, start + 200)], 1)

        async def claim_all(database: Postgres, name: str) -> list[str]:
            taken: list[str] = []
            while found := await database.claim(request(f"{name}-{len(taken)}"), 2):
                taken += [each.run_id for each in found]
            return taken

        shares = await asyncio.gather(*(claim_all(databases[i % 4], f"w{i}") for i in range(8)))
        taken = [run_id for share in shares for run_id in share]

        assert sorted(taken) == [f"r{i:03}" for i in range(600)]

    async def test_a_plan_under_the_lock_that_fails_leaves_nothing(self, database: Postgres) -> None:
        await database.write([created("r1")], 1)

        def fails(_: Slice, __: int) -> Member | None:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await database.write_locked(SliceRequest("r1"), fails, 2)

        at = await database.write_locked(SliceRequest("r1"), lambda seen, _: touched("r1", 1), 3)
        assert at == await at_of(database, "r1")
        assert await database.landed([Mark("run:r1", 2)], 3) == {Mark("run:r1", 2): at}


STATES: dict[type[Exception], list[type[Exception]]] = {
    Busy: [
        asyncpg.SerializationError,
        asyncpg.DeadlockDetectedError,
        asyncpg.LockNotAvailableError,
        asyncpg.QueryCanceledError,
        asyncpg.TooManyConnectionsError,
        asyncpg.CannotConnectNowError,
    ],
    OutcomeUnknown: [
        asyncpg.AdminShutdownError,
        asyncpg.CrashShutdownError,
        asyncpg.ConnectionDoesNotExistError,
        asyncpg.StatementCompletionUnknownError,
        asyncpg.InterfaceError,
        asyncpg.InternalClientError,
        ConnectionResetError,
        TimeoutError,
    ],
    Rejected: [asyncpg.UniqueViolationError, asyncpg.CheckViolationError, asyncpg.DataError],
    DatabaseError: [asyncpg.DiskFullError, asyncpg.ReadOnlySQLTransactionError, asyncpg.SyntaxOrAccessError],
    KeyError: [KeyError],
}


class TestErrors:
    @pytest.mark.parametrize(
        ("meaning", "error"), [(meaning, error) for meaning, errors in STATES.items() for error in errors]
    )
    def test_a_drivers_error_becomes_our_word(self, meaning: type[Exception], error: type[Exception]) -> None:
        assert type(mapped(error("words"), OutcomeUnknown)) is meaning

    @pytest.mark.parametrize("error", STATES[OutcomeUnknown])
    def test_a_lost_read_may_be_asked_again(self, error: type[Exception]) -> None:
        assert type(mapped(error("words"), Busy)) is Busy

    async def test_where_nobody_answers_nothing_has_happened(self) -> None:
        database = Postgres("postgresql://me@/db?host=/nowhere", None, schema="s")

        with pytest.raises(Busy):
            await database.open()

    async def test_a_database_that_is_not_there_is_no_use_waiting_for(self, postgres_url: str) -> None:
        database = Postgres(postgres_url.replace("/postgres?", "/nothing?"), None, schema="s")

        with pytest.raises(DatabaseError, match="nothing"):
            await database.open()

    async def test_a_commit_that_is_killed_may_have_happened(self, database: Postgres, stranger: Any) -> None:
        await database.write([created("r1")], 1)

        async with stranger.transaction():
            await stranger.fetch(f"SELECT 1 FROM {database.prefix}runs FOR UPDATE")
            writing = asyncio.create_task(database.write([touched("r1", 1)], 2))
            (pid,) = await until(lambda: waiting_for_lock(stranger))
            await stranger.fetch("SELECT pg_terminate_backend($1)", pid)
            with pytest.raises(OutcomeUnknown):
                await writing

        assert (await database.write([touched("r1", 1)], 3))[0].at is not None

    async def test_a_read_that_is_killed_has_not(self, database: Postgres, stranger: Any) -> None:
        reading = asyncio.create_task(database.fetch("SELECT pg_backend_pid(), pg_sleep(60)"))
        asleep = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'PgSleep'"
        pid = await until(lambda: stranger.fetchval(asleep))

        await stranger.fetch("SELECT pg_terminate_backend($1)", pid)

        with pytest.raises(Busy):
            await reading

    async def test_connections_that_died_in_their_sleep_are_not_used(self, database: Postgres, stranger: Any) -> None:
        ((pid,),) = await database.fetch("SELECT pg_backend_pid()")

        await stranger.fetch("SELECT pg_terminate_backend($1, 5000)", pid)
        await asyncio.sleep(0.05)

        assert (await database.fetch("SELECT pg_backend_pid()"))[0][0] != pid

    async def test_a_lock_that_is_held_too_long_means_try_again(
        self, monkeypatch: pytest.MonkeyPatch, open_database: Callable[..., Any], stranger: Any
    ) -> None:
        monkeypatch.setattr(postgres, "BY_KEY", "SET lock_timeout = '50ms'")
        database = await open_database()
        await database.write([created("r1")], 1)

        async with stranger.transaction():
            await stranger.fetch(f"SELECT 1 FROM {database.prefix}runs FOR UPDATE")
            with pytest.raises(Busy):
                await database.write([touched("r1", 1)], 2)

        assert (await database.write([touched("r1", 1)], 3))[0].at is not None

    async def test_too_many_at_once_wait_and_then_try_again(
        self, monkeypatch: pytest.MonkeyPatch, database: Postgres
    ) -> None:
        monkeypatch.setattr(postgres_pool, "SLOT_TIMEOUT_S", 0.05)

        answers = await asyncio.gather(
            *(database.fetch("SELECT 1 FROM pg_sleep(0.3)") for _ in range(6)), return_exceptions=True
        )

        assert sorted(type(answer).__name__ for answer in answers) == ["Busy", "Busy", *["list"] * 4]

    async def test_a_call_that_is_given_up_spoils_no_connection(self, database: Postgres) -> None:
        calls = [asyncio.create_task(database.fetch("SELECT pg_sleep(60)")) for _ in range(8)]
        await asyncio.sleep(0.05)

        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)

        assert await asyncio.gather(*(database.fetch("SELECT 1") for _ in range(8))) == [[(1,)]] * 8

    @pytest.mark.parametrize(
        "member",
        [
            created("r1"),
            created("r2", keys=[("scope", "taken", "digest", "r2", 1)]),
            created("r2", signals=[("nobody", 1, "id", None, 0, None)]),
            created("r2\0"),
            created("r2", signals=[("r2", 1 << 40, "id", None, 0, None)]),
        ],
        ids=["id taken", "key taken", "no such run", "NUL", "out of range"],
    )
    async def test_a_row_that_cannot_be_takes_the_batch_with_it(self, database: Postgres, member: Member) -> None:
        await database.write([created("r1", keys=[("scope", "taken", "digest", "r1", 1)])], 1)

        with pytest.raises(Rejected):
            await database.write([created("r3"), member], 2)

        assert await database.fetch(f"SELECT run_id FROM {database.prefix}runs") == [("r1",)]


class TestHints:
    async def test_a_hint_reaches_the_others_and_does_not_echo(self, open_database: Callable[..., Any]) -> None:
        sender, listener = await open_database(), await open_database()
        echoed: list[Any] = []
        heard: list[Any] = []
        await sender.listen(echoed.append)
        await listener.listen(heard.append)

        await sender.send_hint(["run:a", "queue:q"])

        await until(lambda: len(heard) == 2)
        assert heard == [(), ["run:a", "queue:q"]]
        assert echoed == [()]

    async def test_a_listener_that_is_killed_listens_again_and_looks_at_everything(
        self, open_database: Callable[..., Any], stranger: Any, schema: str
    ) -> None:
        sender, listener = await open_database(), await open_database()
        heard: list[Any] = []
        await listener.listen(heard.append)
        listening = "SELECT pid FROM pg_stat_activity WHERE query = $1"

        pid = await stranger.fetchval(listening, f'LISTEN "holdfast:{schema}"')
        await stranger.fetch("SELECT pg_terminate_backend($1)", pid)
        await until(lambda: len(heard) == 2)
        await sender.send_hint(["run:a"])

        await until(lambda: len(heard) == 3)
        assert heard == [(), (), ["run:a"]]

    async def test_a_listener_that_went_deaf_is_replaced(
        self, monkeypatch: pytest.MonkeyPatch, postgres_url: str
    ) -> None:
        monkeypatch.setattr(postgres_hints, "BEAT_S", 0.02)
        made: list[Any] = []
        heard: list[Any] = []

        async def tracked() -> Any:
            made.append(await connect(parse_url(postgres_url), SESSION))
            return made[-1]

        ear = Ear(tracked, "deaf", heard.append, name="me")
        await ear.start()
        await asyncio.sleep(0.1)
        before = list(made)
        # The driver's own bookkeeping knows nothing of this.
        await until(lambda: unlisten(made[0]))
        await until(lambda: len(heard) == 2)
        await ear.stop()

        assert len(before) == 1
        assert len(made) == 2

    async def test_without_a_server_nobody_hears_and_nobody_fails(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(postgres_hints, "CONNECT_TIMEOUT_S", 0.05)
        address = parse_url("postgresql://me@/db?host=/nowhere")
        heard: list[Any] = []

        ear = Ear(lambda: connect(address, SESSION), "c", heard.append, name="me")
        await ear.start()
        await ear.stop()

        assert heard == []

    def test_long_news_travels_in_pieces(self) -> None:
        topics = [f"run:{'ü' * 100}{i}" for i in range(300)]

        pieces = list(payloads("me", topics))

        assert max(len(piece.encode()) for piece in pieces) < 8_000
        assert {piece.split("\n")[0] for piece in pieces} == {"me"}
        assert [topic for piece in pieces for topic in piece.split("\n")[1:]] == topics
        assert payload("me", topics) == "me", "in one piece: look at everything"

    @pytest.mark.parametrize("topic", ["a\nb", "x" * 8_000])
    def test_news_that_cannot_travel_means_everything(self, topic: str) -> None:
        assert "me" in list(payloads("me", ["run:a", topic]))


async def unlisten(connection: Any) -> bool:
    try:
        await connection.execute("UNLISTEN *")
    except asyncpg.InterfaceError:
        # Its heartbeat is using it.
        return False
    return True


class TestLifetime:
    async def test_it_must_be_open(self, postgres_url: str) -> None:
        with pytest.raises(DatabaseError) as caught:
            await Postgres(postgres_url, None, schema="s").fetch("SELECT 1")

        assert caught.value.code == "not_open"

    async def test_it_can_be_closed_twice_and_leaves_no_connection(
        self, open_database: Callable[..., Any], stranger: Any
    ) -> None:
        database = await open_database("application_name=closing")
        await database.listen(lambda _: None)
        await database.append([Append("t", [line("note")], 0)], 1)
        await database.send_hint(["t"])

        await database.close()
        await database.close()

        left = "SELECT count(*) = 0 FROM pg_stat_activity WHERE application_name = 'closing'"
        await until(lambda: stranger.fetchval(left))

    async def test_it_belongs_to_the_loop_that_opened_it(self, database: Postgres) -> None:
        codes: list[str] = []

        def elsewhere() -> None:
            try:
                asyncio.run(database.now())
            except DatabaseError as error:
                codes.append(error.code)

        thread = threading.Thread(target=elsewhere)
        thread.start()
        await asyncio.to_thread(thread.join)

        assert codes == ["wrong_event_loop"]
