"""What can be wrong with a Postgres server, and with what stands between it and us."""

from __future__ import annotations

from typing import Any, NamedTuple

from holdfast.errors import DatabaseError
from holdfast.store.findings import Finding, State, schema_finding
from holdfast.store.postgres import OLDEST
from holdfast.store.postgres_pool import SESSION, Address, connect, disconnect, mapped, parse_url
from holdfast.store.types import Busy

CONNECTIONS_PER_PROCESS = 15
LONG_TRANSACTION_S = 300
_TIMEOUTS = {"statement_timeout": "15s", "lock_timeout": "3s", "idle_in_transaction_session_timeout": "15s"}
_LOOK = """
    SELECT
        current_setting('server_version_num')::int AS version,
        pg_is_in_recovery() AS in_recovery,
        current_setting('fsync') AS fsync,
        current_setting('full_page_writes') AS full_page_writes,
        current_setting('synchronous_commit') AS synchronous_commit,
        current_setting('default_transaction_read_only') AS read_only,
        current_setting('server_encoding') AS encoding,
        current_setting('max_connections')::int AS connections_max,
        (SELECT count(*)::int FROM pg_stat_activity WHERE backend_type = 'client backend') AS connections,
        (
            SELECT coalesce(max(extract(epoch FROM clock_timestamp() - xact_start)), 0)::float8
            FROM pg_stat_activity
            WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()
        ) AS oldest_transaction_s,
        pg_backend_pid() AS pid,
        current_user::text AS role,
        to_regnamespace($1) IS NOT NULL AS schema_exists,
        has_database_privilege(current_database(), 'CREATE') AS may_create
"""


class _Seen(NamedTuple):
    """What the server said, and how we came to it."""

    said: dict[str, Any]
    address: Address
    pid: int


async def check_reachable(url: str) -> None:
    """Try to connect, once. Raises `DatabaseError` in words."""
    await disconnect(await _connected(_address(url)))


async def look_at_schema(url: str, schema: str) -> Finding:
    """How the schema stands. Raises `DatabaseError` if the server cannot be reached."""
    connection = await _connected(_address(url))
    try:
        return schema_finding("postgres", await _applied(connection, schema))
    except Exception as error:
        raise _in_words(mapped(error, Busy)) from error
    finally:
        await disconnect(connection)


async def examine(url: str, schema: str) -> list[Finding]:
    """The server's settings, the way to it, and our schema in it."""
    address = _address(url)
    connection = await _connected(address)
    try:
        said = dict(await connection.fetchrow(_LOOK, f'"{schema}"'))
        timeouts = {name: await connection.fetchval(f"SHOW {name}") for name in _TIMEOUTS}
        applied = await _applied(connection, schema)
        seen = _Seen(said, address, connection.get_server_pid())
    except Exception as error:
        raise _in_words(mapped(error, Busy)) from error
    finally:
        await disconnect(connection)
    return [
        *(_version(seen), _primary(seen), _encoding(seen), *_durability(seen), _pooler(seen)),
        *(_timeouts(seen, timeouts), _room(seen), _long_transactions(seen)),
        _rights(seen, schema) or schema_finding("postgres", applied),
    ]


def _address(url: str) -> Address:
    try:
        return parse_url(url)
    except ValueError as error:
        raise DatabaseError(f"the database URL cannot be read: {error}", code="invalid_url") from error


async def _connected(address: Address) -> Any:
    try:
        return await connect(address, SESSION)
    except Exception as error:
        raise _in_words(error) from error


def _in_words(error: BaseException) -> BaseException:
    if isinstance(error, Busy):
        return DatabaseError(f"the database cannot be reached: {error.__cause__ or error}", code="database_unavailable")
    return error


async def _applied(connection: Any, schema: str) -> set[int]:
    table = f'"{schema}".migrations'
    if not await connection.fetchval("SELECT to_regclass($1) IS NOT NULL", table):
        return set()
    return {row[0] for row in await connection.fetch(f"SELECT version FROM {table}")}


def _version(seen: _Seen) -> Finding:
    version = seen.said["version"]
    if version >= OLDEST:
        return Finding(name="version", state="ok", found=f"Postgres {version // 10_000}")
    found = f"Postgres {version // 10_000} is too old"
    return Finding(name="version", state="problem", found=found, advice="upgrade to 13 or newer")


def _primary(seen: _Seen) -> Finding:
    if seen.said["in_recovery"]:
        return Finding(name="role", state="problem", found="a standby", advice="connect to the primary")
    if seen.said["read_only"] == "on":
        advice = f"ALTER ROLE {seen.said['role']} SET default_transaction_read_only = off"
        return Finding(name="role", state="problem", found="primary, but every transaction only reads", advice=advice)
    return Finding(name="role", state="ok", found="primary")


def _encoding(seen: _Seen) -> Finding:
    encoding = seen.said["encoding"]
    if encoding == "UTF8":
        return Finding(name="encoding", state="ok", found=encoding)
    advice = "create the database with ENCODING 'UTF8'; others cannot keep every text"
    return Finding(name="encoding", state="problem", found=encoding, advice=advice)


def _durability(seen: _Seen) -> list[Finding]:
    risks = {
        "fsync": "a crash of the machine corrupts the database",
        "full_page_writes": "a crash of the machine can leave torn pages",
        "synchronous_commit": "a crash loses commits that were confirmed",
    }
    bad: State = "warning" if seen.address.unsafe else "problem"
    return [
        Finding(name=name, state="ok", found=seen.said[name])
        if seen.said[name] != "off"
        else Finding(name=name, state=bad, found=f"off: {risk}", advice=f"ALTER SYSTEM SET {name} = on; then reload")
        for name, risk in risks.items()
    ]


def _pooler(seen: _Seen) -> Finding:
    # A pooler makes up the number of the session it offers; the server tells the true one.
    is_between = seen.said["pid"] != seen.pid
    if seen.address.pooled:
        found = "a pooler, used transaction by transaction" if is_between else "none, though the URL says so"
        return Finding(name="pooler", state="ok", found=found)
    if not is_between:
        return Finding(name="pooler", state="ok", found="none")
    advice = "if it hands out transactions or statements, add pooler=transaction to the URL; sessions are fine"
    return Finding(name="pooler", state="warning", found="something stands between us and the server", advice=advice)


def _timeouts(seen: _Seen, timeouts: dict[str, str]) -> Finding:
    if not seen.address.pooled:
        return Finding(name="timeouts", state="ok", found="set by Holdfast for each of its sessions")
    missing = [name for name, value in timeouts.items() if value == "0"]
    if not missing:
        return Finding(name="timeouts", state="ok", found=", ".join(f"{name} {timeouts[name]}" for name in timeouts))
    advice = "; ".join(f"ALTER ROLE {seen.said['role']} SET {name} = '{_TIMEOUTS[name]}'" for name in missing)
    found = f"{', '.join(missing)} without a limit: a lost client can hold its locks for ever"
    return Finding(name="timeouts", state="warning", found=found, advice=advice)


def _room(seen: _Seen) -> Finding:
    used, most = seen.said["connections"], seen.said["connections_max"]
    found = f"{used} of {most} connections in use"
    if most - used >= 2 * CONNECTIONS_PER_PROCESS:
        return Finding(name="connections", state="ok", found=found)
    advice = f"a Holdfast process uses up to {CONNECTIONS_PER_PROCESS}; raise max_connections or put a pooler between"
    return Finding(name="connections", state="warning", found=found, advice=advice)


def _long_transactions(seen: _Seen) -> Finding:
    oldest = seen.said["oldest_transaction_s"]
    if oldest < LONG_TRANSACTION_S:
        return Finding(name="transactions", state="ok", found="none is open for long")
    advice = "end it (see pg_stat_activity): nothing that was deleted since then can be cleaned up, and tables grow"
    return Finding(name="transactions", state="warning", found=f"one is open for {oldest:.0f} s", advice=advice)


def _rights(seen: _Seen, schema: str) -> Finding | None:
    """What keeps us from making our schema, if it is not there yet."""
    if seen.said["schema_exists"] or seen.said["may_create"]:
        return None
    advice = f"as an administrator: CREATE SCHEMA {schema} AUTHORIZATION {seen.said['role']}"
    found = f"the schema {schema} does not exist, and our role may not create it"
    return Finding(name="schema", state="problem", found=found, advice=advice)
