"""Connections to Postgres: how they are made, lent out and given up, and what their errors mean to the store.

Nothing here may be waited for while another connection is held. A connection that is not certainly at rest is thrown
away, never lent again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, NoReturn, TypeVar
from urllib.parse import parse_qsl, urlencode, urlsplit

import asyncpg

from holdfast import ambient
from holdfast.errors import DatabaseError, HoldfastError
from holdfast.store.timeouts import STATEMENT_TIMEOUT_MS
from holdfast.store.types import Busy, OutcomeUnknown, Rejected

T = TypeVar("T")
CONNECT_TIMEOUT_S = 5.0
SLOT_TIMEOUT_S = 10.0
IDLE_S_MAX = 300.0
CLOSE_TIMEOUT_S = 2.0
# Beyond the server's own limit, whose answer is certain where ours would leave the outcome unknown.
CALL_GRACE_S = 5.0

SESSION = """
    SET lock_timeout = '3s';
    SET idle_in_transaction_session_timeout = '15s';
    SET jit = off;
    SET plan_cache_mode = force_custom_plan;
"""
"""What every session is told. Through a transaction pooler this cannot be said: there `ALTER ROLE … SET` says it, and
nothing is cached that could grow old."""

BY_KEY = f"""{SESSION}
    SET plan_cache_mode = force_generic_plan;
    SET enable_seqscan = off;
    SET enable_bitmapscan = off;
    SET enable_hashjoin = off;
    SET enable_mergejoin = off;
"""
"""For sessions whose every statement finds its rows by their keys. Their plans are kept, because making them costs as
much as running them (left to itself, the server never thinks so); one that was made while the tables were small must
not read them from end to end later."""


HINTS = f"""{SESSION}
    SET synchronous_commit = off;
"""
"""For news, which nobody keeps: sending it must not wait for a disk."""


class Address(NamedTuple):
    """Where the database is. `pooled`: a transaction pooler stands between, so no session state will last.

    A statement that takes longer than `statement_timeout_ms` is cut by the server, which has written nothing then: its
    clock stops before it begins to commit. Through a pooler the role's own setting holds.
    """

    dsn: str
    pooled: bool
    unsafe: bool
    statement_timeout_ms: int = STATEMENT_TIMEOUT_MS


def parse_url(url: str) -> Address:
    """Take our own words out of a URL's query; the rest belongs to the driver."""
    parts = urlsplit(url)
    words = dict(parse_qsl(parts.query, keep_blank_values=True))
    pooler = words.pop("pooler", "session")
    unsafe = words.pop("unsafe", "0")
    if pooler not in ("session", "transaction") or unsafe not in ("0", "1"):
        raise DatabaseError(
            "the database URL takes pooler=session, pooler=transaction, unsafe=0 and unsafe=1", code="invalid_url"
        )
    return Address(parts._replace(query=urlencode(words)).geturl(), pooler == "transaction", unsafe == "1")


async def connect(address: Address, setup: str) -> Any:
    """A new connection. Whatever prevents it, nothing has happened yet: `Busy`, or words if waiting will not help."""
    try:
        connection = await asyncpg.connect(
            address.dsn,
            timeout=CONNECT_TIMEOUT_S,
            command_timeout=address.statement_timeout_ms / 1_000 + CALL_GRACE_S,
            max_cacheable_statement_size=0,
            **({"statement_cache_size": 0} if address.pooled else {}),
        )
    except Exception as error:
        raise _not_connected(error) from error
    if not address.pooled:
        try:
            await connection.execute(f"{setup}; SET statement_timeout = {address.statement_timeout_ms:d}")
        except BaseException as error:
            connection.terminate()
            raise_mapped(error, Busy)
    return connection


class Connections:
    """Up to `size` connections, made when they are needed, each lent to one job at a time."""

    def __init__(self, address: Address, size: int, setup: str) -> None:
        self._address = address
        self._size = size
        self._setup = setup
        self._slots = asyncio.Semaphore(size)
        self._idle: list[tuple[Any, float]] = []
        self._closed = False

    async def run(self, job: Callable[[Any], Awaitable[T]], *, lost: type[Busy] | type[OutcomeUnknown]) -> T:
        """The job's answer. `lost` is what it means when the connection dies or falls silent under the job."""
        connection = await self._take()
        try:
            answer = await job(connection)
        except BaseException as error:
            self._give_back(connection, at_rest=_leaves_at_rest(error))
            raise_mapped(error, lost)
        self._give_back(connection, at_rest=True)
        return answer

    async def close(self) -> None:
        """Close what is idle; what is lent is thrown away when it comes back."""
        self._closed = True
        idle, self._idle = self._idle, []
        await asyncio.gather(*(disconnect(connection) for connection, _ in idle))

    async def _take(self) -> Any:
        try:
            async with asyncio.timeout(SLOT_TIMEOUT_S if self._slots.locked() else None):
                await self._slots.acquire()
        except TimeoutError:
            raise Busy(f"all {self._size} connections were in use for {SLOT_TIMEOUT_S:.0f} s") from None
        try:
            return self._idle_one() or await connect(self._address, self._setup)
        except BaseException:
            self._slots.release()
            raise

    def _idle_one(self) -> Any | None:
        while self._idle:
            connection, since = self._idle.pop()
            # A connection that slept for long may have been cut silently on its way.
            if not connection.is_closed() and ambient.monotonic() - since < IDLE_S_MAX:
                return connection
            connection.terminate()
        return None

    def _give_back(self, connection: Any, *, at_rest: bool) -> None:
        self._slots.release()
        if at_rest and not self._closed and not connection.is_closed() and not connection.is_in_transaction():
            self._idle.append((connection, ambient.monotonic()))
        else:
            connection.terminate()


async def disconnect(connection: Any) -> None:
    try:
        await connection.close(timeout=CLOSE_TIMEOUT_S)
    except (*_DRIVER_ERRORS, OSError):
        connection.terminate()


_DRIVER_ERRORS = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)
# Serialization, deadlock, lock timeout, cancelled (statement timeout), connections, not up yet, killed while idle.
_BUSY = frozenset({"40001", "40P01", "55P03", "57014", "53300", "57P03", "25P03"})
_TIMED_OUT = frozenset({"55P03", "57014"})
# Shut down or killed under a statement, completion unknown.
_LOST = frozenset({"57P01", "57P02", "57P05", "40003"})
_WORDS = {
    "25006": ("database_read_only", "it only reads; connect to the primary"),
    "53100": ("disk_full", "its disk is full; make room"),
    "42501": ("permission_denied", "our role may not do this; grant it the schema"),
    "3F000": ("not_migrated", "the schema is missing; run migrate"),
    "42P01": ("not_migrated", "a table is missing; run migrate"),
    "42883": ("not_migrated", "a function is missing; run migrate"),
}


def _leaves_at_rest(error: BaseException) -> bool:
    """Whether a connection can be lent again after this. Of a fatal error the server takes its leave."""
    if isinstance(error, asyncpg.PostgresError):
        return error.severity_en not in ("FATAL", "PANIC")
    return isinstance(error, HoldfastError | Busy)


def raise_mapped(error: BaseException, lost: type[Busy] | type[OutcomeUnknown]) -> NoReturn:
    meaning = mapped(error, lost)
    if meaning is error:
        raise error
    raise meaning from error


def mapped(error: BaseException, lost: type[Busy] | type[OutcomeUnknown]) -> BaseException:
    """The driver's errors in the words of the seam; everything else as it is."""
    if isinstance(error, asyncpg.PostgresError):
        return _of_state(error, lost)
    if isinstance(error, OSError | asyncpg.InterfaceError | asyncpg.InternalClientError):
        # OSError covers the client's own timeout. Closed connections speak through InterfaceError.
        return lost(f"the connection to the database was lost: {error or type(error).__name__}")
    return error


def _of_state(error: asyncpg.PostgresError, lost: type[Busy] | type[OutcomeUnknown]) -> Exception:
    state = error.sqlstate or ""
    if state in _BUSY:
        return Busy(str(error), timed_out=state in _TIMED_OUT)
    if state in _LOST or state.startswith("08"):
        return lost(str(error))
    if state.startswith(("22", "23")):
        return Rejected(str(error))
    code, words = _WORDS.get(state, ("database_refused", ""))
    return DatabaseError(f"Postgres refused the work: {words or error} (SQLSTATE {state})", code=code)


def _not_connected(error: Exception) -> Exception:
    found = mapped(error, Busy)
    if isinstance(error, asyncpg.InterfaceError | ValueError):
        return DatabaseError(f"the database URL cannot be used: {error}", code="invalid_url")
    if isinstance(found, Busy | DatabaseError):
        return found
    return Busy(f"the database cannot be reached: {error}")
