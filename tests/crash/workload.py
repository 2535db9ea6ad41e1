"""A child process that does a bounded mix of everything on one SQLite file and says what it was promised.

    python -m tests.crash.workload <database> <acks> <sessions> <rounds>

Each acknowledged call leaves a line `ack <thread> <rev>` in the file of acks, written only after the call returned.
A call that ended in a typed error leaves `error <code>`; any other error ends the process. Each session opens the
file anew and ends with `fsck <problems>`. `CRASH_PRAGMAS` is set on every connection after Holdfast's own settings:
the way to make checkpoints frequent, or to break durability on purpose. `CRASH_PATIENCE_S` shortens the time after
which a call gives up on its database.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import sys
from collections.abc import Awaitable
from typing import TypeVar

from holdfast import Claim, Continue, DatabaseError, Holdfast
from holdfast.store import committer
from holdfast.store.sqlite import SQLite

T = TypeVar("T")


class Workload:
    """One session's calls, each followed by its ack."""

    def __init__(self, holdfast: Holdfast, acks: int) -> None:
        self._hf = holdfast
        self._acks = acks

    async def round(self, number: int) -> None:
        """Some calls alone and some at once, so that commits are single and grouped."""
        await self._create(0)
        await asyncio.gather(*(self._create(place) for place in range(1, 4)), self._append("letters", number))
        claims = await self._told(self._hf.claim_next(limit=3)) or []
        await asyncio.gather(*(self._work(claim) for claim in claims), self._append("numbers", number))
        await self._append("letters", -number)

    async def _create(self, place: int) -> None:
        run = await self._told(self._hf.create_run(session_id=f"s{place}", clog_id="noop", input=place))
        if run is None:
            return
        self._ack(f"run:{run.run_id}", run.rev)
        receipt = await self._told(self._hf.signal(run.run_id, "x" * 100 * place))
        if receipt is not None and receipt.rev is not None:
            self._ack(f"run:{run.run_id}", receipt.rev)

    async def _work(self, claim: Claim) -> None:
        thread = f"run:{claim.run_id}"
        await self._told(self._hf.heartbeat(claim))
        seen = await self._told(self._hf.get_run(claim.run_id))
        if seen is not None:
            # What was read is promised too: nobody may see what a power loss would take back.
            self._ack(thread, seen.rev)
        seq = await self._told(self._hf.emit(claim, "thought", {"text": "y" * 300}))
        if seq is not None:
            self._ack(thread, seq)
        ended = await self._told(self._hf.complete(claim, Continue(1) if claim.attempt else "done"))
        if ended is not None:
            self._ack(thread, ended.rev)

    async def _append(self, thread: str, number: int) -> None:
        entries = [{"kind": "note", "data": {"number": number, "part": part}} for part in range(2)]
        head = await self._told(self._hf.journal.append(thread, entries))
        if head is not None:
            self._ack(thread, head)

    def _ack(self, thread: str, rev: int) -> None:
        say(self._acks, f"ack {thread} {rev}")

    async def _told(self, call: Awaitable[T]) -> T | None:
        try:
            return await call
        except DatabaseError as error:
            say(self._acks, f"error {error.code}")
            return None


async def session(path: str, acks: int, rounds: int) -> None:
    holdfast = await _opened(path, acks)
    try:
        workload = Workload(holdfast, acks)
        for number in range(1, rounds + 1):
            await workload.round(number)
        report = await holdfast.fsck()
        say(acks, f"fsck {len(report.problems)}")
    finally:
        await holdfast.close()


async def _opened(path: str, acks: int) -> Holdfast:
    while True:
        try:
            return await Holdfast(path).open()
        except DatabaseError as error:
            say(acks, f"error {error.code}")


def say(acks: int, text: str) -> None:
    os.write(acks, f"{text}\n".encode())


def set_pragmas(text: str) -> None:
    """Let every connection of the store also get these settings, after its own."""
    connect = SQLite._connect

    def wrapped(database: SQLite) -> sqlite3.Connection:
        connection = connect(database)
        for pragma in filter(None, text.split(";")):
            connection.execute(f"PRAGMA {pragma}")
        return connection

    SQLite._connect = wrapped  # type: ignore[assignment,method-assign]


def set_patience(seconds: float) -> None:
    committer.Patience.__init__.__defaults__ = (seconds,)
    committer.patiently.__kwdefaults__ = {"patience_s": seconds}


def main() -> None:
    path, acks_path, sessions, rounds = sys.argv[1:]
    set_pragmas(os.environ.get("CRASH_PRAGMAS", ""))
    if patience := os.environ.get("CRASH_PATIENCE_S"):
        set_patience(float(patience))
    acks = os.open(acks_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for _ in range(int(sessions)):
        asyncio.run(session(path, acks, int(rounds)))


if __name__ == "__main__":
    main()
