"""SQLite's one writer. Whatever gathered while a commit was in flight goes into the next one.

A job is a function of an open connection and the commit's clock; it runs inside `BEGIN IMMEDIATE`, maybe beside
others, and its caller is answered only when the commit is on disk. A job that fails takes nobody with it: the batch
is rolled back and tried again in halves.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import sqlite3
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from holdfast.errors import DatabaseError
from holdfast.store.sqlite_limits import was_cut
from holdfast.store.types import Busy, OutcomeUnknown, Rejected

T = TypeVar("T")
Job = Callable[[sqlite3.Connection, int], T]
BATCH_MAX = 512


class WriteLock(Protocol):
    def acquire(self) -> None: ...

    def release(self) -> None: ...


class _Ticket:
    """A job on its way, and where its answer goes."""

    def __init__(self, job: Job[Any], writes: bool) -> None:
        self.job = job
        self.writes = writes
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self.loop.create_future()
        self.result: Any = None
        self.error: BaseException | None = None

    def deliver(self) -> None:
        if self.future.cancelled():
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.result)


class Writer(ABC):
    """One connection and the jobs that want it. Usable from any number of event loops of one process."""

    def __init__(
        self,
        connect: Callable[[], sqlite3.Connection],
        clock: Callable[[], int],
        lock: WriteLock | None,
        guard: Callable[[], None],
    ) -> None:
        self._connect = connect
        self._clock = clock
        self._lock = lock
        self._guard = guard
        self._pid = os.getpid()
        self._connection: sqlite3.Connection | None = None

    def start(self) -> None:
        self._connection = self._connect()

    @abstractmethod
    async def stop(self) -> None:
        """Finish what was accepted, then let the connection go."""

    async def write(self, job: Job[T]) -> T:
        """Run the job in a transaction; return when it is on disk."""
        return await self._submit(job, writes=True)

    async def read(self, job: Job[T]) -> T:
        """Run the job on the writer's own connection, between commits. For databases that live in memory."""
        return await self._submit(job, writes=False)

    def check_process(self) -> None:
        # A connection that crosses a fork corrupts the file; the child must open its own.
        if os.getpid() != self._pid:
            raise DatabaseError(
                "this Holdfast was opened before a fork; open a new one inside the child process",
                code="forked_process",
            )

    async def _submit(self, job: Job[T], writes: bool) -> T:
        self.check_process()
        ticket = _Ticket(job, writes)
        self._accept(ticket)
        result: T = await ticket.future
        return result

    @abstractmethod
    def _accept(self, ticket: _Ticket) -> None:
        """Take the job now; carry it out soon, beside whatever else was taken meanwhile."""

    def _carry_out(self, batch: list[_Ticket]) -> None:
        """Writes first, in one commit; then what is read on the same connection."""
        writes = [ticket for ticket in batch if ticket.writes]
        if writes:
            self._commit(writes)
        for ticket in batch:
            if not ticket.writes:
                self._answer(ticket)

    def _commit(self, batch: list[_Ticket]) -> None:
        try:
            self._guard()
            if self._lock is not None:
                self._lock.acquire()
        except Exception as error:
            _fail(batch, error)
            return
        try:
            self._transact(batch)
        finally:
            if self._lock is not None:
                self._lock.release()

    def _transact(self, batch: list[_Ticket]) -> None:
        connection = self._open_connection(batch)
        if connection is None:
            return
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            # No job is to blame, so none is tried alone.
            _fail(batch, mapped(error))
            return
        ticket = batch[0]
        try:
            now = self._clock()
            for ticket in batch:
                ticket.result = ticket.job(connection, now)
        except Exception as error:
            self._roll_back(connection)
            self._isolate(batch, ticket, error)
            return
        try:
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            # The frames may or may not be on disk. Only a fresh handle can tell.
            self._drop_connection()
            _fail(batch, Busy(str(error)) if _is_full(error) else OutcomeUnknown(str(error)))

    def _isolate(self, batch: list[_Ticket], failed: _Ticket, error: Exception) -> None:
        if len(batch) == 1 or was_cut(error):
            # What took too long would do so again in each half, and everybody would wait for it.
            failed.error = mapped(error)
            batch = [ticket for ticket in batch if ticket is not failed]
        middle = len(batch) // 2
        for half in (batch[:middle], batch[middle:]):
            if half:
                self._transact(half)

    def _answer(self, ticket: _Ticket) -> None:
        connection = self._open_connection([ticket])
        if connection is None:
            return
        try:
            ticket.result = ticket.job(connection, self._clock())
        except Exception as error:
            ticket.error = mapped(error)

    def _open_connection(self, batch: list[_Ticket]) -> sqlite3.Connection | None:
        if self._connection is None:
            try:
                self._connection = self._connect()
            except Exception as error:
                _fail(batch, mapped(error))
        return self._connection

    def _roll_back(self, connection: sqlite3.Connection) -> None:
        try:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        except sqlite3.Error:
            self._drop_connection()

    def _drop_connection(self) -> None:
        """Closing undoes what is open. A handle that cannot even do that is only let go."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(sqlite3.Error):
                connection.close()


class WriterThread(Writer):
    """For a file: a thread waits for the disk and the other processes, so that no event loop does."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self._tickets: queue.SimpleQueue[_Ticket | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="holdfast-sqlite-writer", daemon=True)

    def start(self) -> None:
        super().start()
        self._thread.start()

    async def stop(self) -> None:
        self.check_process()
        self._tickets.put(None)
        await asyncio.to_thread(self._thread.join)

    def _accept(self, ticket: _Ticket) -> None:
        self._tickets.put(ticket)

    def _run(self) -> None:
        last = False
        while not last:
            batch, last = self._gather()
            self._carry_out(batch)
            _deliver(batch)
        self._drop_connection()

    def _gather(self) -> tuple[list[_Ticket], bool]:
        first = self._tickets.get()
        if first is None:
            return [], True
        batch = [first]
        while len(batch) < BATCH_MAX:
            try:
                ticket = self._tickets.get_nowait()
            except queue.Empty:
                return batch, False
            if ticket is None:
                return batch, True
            batch.append(ticket)
        return batch, False


class WriterHere(Writer):
    """For a database in memory, where there is nothing to wait for: jobs run on the loop that brings them, whatever has
    gathered in one of its turns together. To hand them to a thread would take longer than most of them do."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        # Loops of other threads want the same connection.
        self._mutex = threading.Lock()
        self._gathered: dict[asyncio.AbstractEventLoop, list[_Ticket]] = {}

    async def stop(self) -> None:
        self.check_process()
        with self._mutex:
            for loop in tuple(self._gathered):
                batch = self._gathered.pop(loop)
                self._carry_out(batch)
                _deliver(batch)
            self._drop_connection()

    def _accept(self, ticket: _Ticket) -> None:
        with self._mutex:
            gathered = self._gathered.setdefault(ticket.loop, [])
            gathered.append(ticket)
        if len(gathered) == 1:
            ticket.loop.call_soon(self._turn, ticket.loop)

    def _turn(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._mutex:
            batch = self._gathered.pop(loop, [])
            self._carry_out(batch)
        _deliver_all(batch)


def mapped(error: Exception) -> Exception:
    """SQLite's errors in the words of the seam; everything else as it is."""
    if isinstance(error, sqlite3.IntegrityError | sqlite3.DataError | OverflowError):
        return Rejected(str(error))
    if was_cut(error):
        return Busy("a statement took too long and was cut", timed_out=True)
    if isinstance(error, sqlite3.OperationalError):
        text = str(error)
        if "locked" in text or "busy" in text or _is_full(error):
            return Busy(text, timed_out=not _is_full(error))
        return DatabaseError(f"SQLite refused the work: {text}", code="database_unusable")
    if isinstance(error, sqlite3.Error):
        return DatabaseError(f"SQLite failed: {error}", code="database_unusable")
    return error


def _is_full(error: sqlite3.Error) -> bool:
    """No room on the disk: the commit's last frame was never written whole, so nothing of it counts."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_FULL


def _fail(batch: list[_Ticket], error: Exception) -> None:
    for ticket in batch:
        ticket.error = error


def _deliver(batch: list[_Ticket]) -> None:
    """Answer everybody with one hop per event loop."""
    loops: dict[asyncio.AbstractEventLoop, list[_Ticket]] = {}
    for ticket in batch:
        loops.setdefault(ticket.loop, []).append(ticket)
    for loop, tickets in loops.items():
        if not loop.is_closed():
            loop.call_soon_threadsafe(_deliver_all, tickets)


def _deliver_all(tickets: list[_Ticket]) -> None:
    for ticket in tickets:
        ticket.deliver()
