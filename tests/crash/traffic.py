"""Callers that commit and callers that claim, and the diary each keeps of what it was told.

    python -m tests.crash.traffic <committer|claimer> <url> <schema> <seconds> <seed> <diary>

As a process it says `ready` when its database is open, begins at the first line it is sent, and leaves its diary as
JSON. Inside a process `commit` and `claim` are plain coroutines. Everything written carries a mark that nobody else
uses, so that it can be found again and counted.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import Awaitable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from holdfast import Claim, Conflict, Continue, DatabaseError, Holdfast, LeaseLost, Ok
from holdfast.invariants.histories import Call, Reading
from holdfast.protocol.values import canonical, digest

THREADS = ("ledger:a", "ledger:b", "ledger:c")
LEASE_MS = 400
LATE_S = 0.05


class Told(msgspec.Struct, frozen=True):
    """A caller was told that what carries this mark stands at this revision."""

    thread: str
    rev: int
    mark: str


class Held(msgspec.Struct):
    """A claim as its holder saw it, and how it ended for the holder."""

    run_id: str
    claim_id: str
    lease_until: datetime
    end: str = "dropped"


class Diary(msgspec.Struct):
    """What one caller did and was told."""

    name: str
    told: list[Told] = []
    calls: list[Call] = []
    readings: list[Reading] = []
    held: list[Held] = []
    counts: dict[str, int] = {}

    def count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1


class Caller:
    """One caller's turns until its time is up. A turn that fails in words is counted and the next one follows."""

    def __init__(self, holdfast: Holdfast, name: str, seed: int) -> None:
        self._hf = holdfast
        self._chance = random.Random(seed)
        self._marks = 0
        self.diary = Diary(name)

    async def work(self, seconds: float) -> Diary:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            try:
                await self._turn()
                self.diary.count("turns")
            except DatabaseError as error:
                self.diary.count(f"error {error.code}")
        return self.diary

    async def _turn(self) -> None:
        raise NotImplementedError

    def _mark(self) -> str:
        self._marks += 1
        return f"{self.diary.name}.{self._marks}"

    def _tell(self, run_id: str, rev: int, mark: str) -> None:
        self.diary.told.append(Told(f"run:{run_id}", rev, mark))


class Committer(Caller):
    """Creates runs, signals them, and writes to shared threads against rivals."""

    def __init__(self, holdfast: Holdfast, name: str, seed: int) -> None:
        super().__init__(holdfast, name, seed)
        self._runs: list[str] = []

    async def _turn(self) -> None:
        turns = (self._create, self._create_at_once, self._signal, self._append, self._append_at, self._read)
        await self._chance.choice(turns)()

    async def _create(self) -> None:
        mark = self._mark()
        run = await self._hf.create_run(session_id=self.diary.name, clog_id="noop", input=mark)
        self._runs.append(run.run_id)
        self._tell(run.run_id, 1, mark)

    async def _create_at_once(self) -> None:
        marks = [self._mark() for _ in range(3)]
        requests = [{"session_id": self.diary.name, "clog_id": "noop", "input": mark} for mark in marks]
        for run, mark in zip(await self._hf.create_runs(requests), marks, strict=True):
            self._runs.append(run.run_id)
            self._tell(run.run_id, 1, mark)

    async def _signal(self) -> None:
        if not self._runs:
            return
        run_id, mark = self._chance.choice(self._runs[-20:]), self._mark()
        receipt = await self._hf.signal(run_id, mark)
        if receipt.rev is not None:
            self._tell(run_id, receipt.rev, mark)

    async def _append(self) -> None:
        await self._write(self._chance.choice(THREADS), None)

    async def _append_at(self) -> None:
        """At the head that was just read; sometimes behind it, which must be refused."""
        thread = self._chance.choice(THREADS)
        head = len(await self._hf.journal.read(thread))
        await self._write(thread, max(head - self._chance.choice((0, 0, 1)), 0))

    async def _write(self, thread: str, expected_rev: int | None) -> None:
        data = [{"mark": self._mark()} for _ in range(self._chance.randint(1, 3))]
        rev: int | None = None
        outcome: Any = "unknown"
        try:
            rev = await self._hf.journal.append(thread, [{"kind": "note", "data": each} for each in data], expected_rev)
            outcome = "ok"
        except Conflict:
            outcome = "refused"
        finally:
            bodies = tuple(canonical(each) for each in data)
            call = Call(thread=thread, bodies=bodies, outcome=outcome, rev=rev, expected_rev=expected_rev)
            self.diary.calls.append(call)

    async def _read(self) -> None:
        thread = self._chance.choice(THREADS)
        found = await self._hf.journal.read(thread)
        digests = tuple(digest(entry.kind, canonical(entry.data)) for entry in found)
        self.diary.readings.append(Reading(thread=thread, digests=digests))


class Claimer(Caller):
    """Takes work in batches; mostly does it, sometimes lets a lease run out, sometimes is too late."""

    def __init__(self, holdfast: Holdfast, name: str, seed: int) -> None:
        super().__init__(holdfast, name, seed)
        self._late: list[tuple[Claim, Held]] = []
        self._ends = 0

    async def _turn(self) -> None:
        await self._come_too_late()
        claims = await self._hf.claim_next(lease_ms=LEASE_MS, limit=self._chance.randint(1, 4))
        held = [Held(claim.run_id, claim.claim_id, claim.lease_until) for claim in claims]
        self.diary.held += held
        for claim, record in zip(claims, held, strict=True):
            await self._work_on(claim, record)
        if not claims:
            self.diary.count("nothing to claim")

    async def _work_on(self, claim: Claim, held: Held) -> None:
        try:
            await self._show(claim)
            if self._chance.random() < 0.5:
                held.lease_until = await self._hf.heartbeat(claim, LEASE_MS)
            await self._end(claim, held)
        except LeaseLost:
            held.end = "lost"
            self.diary.count("lost on the way")

    async def _show(self, claim: Claim) -> None:
        mark = self._mark()
        self._tell(claim.run_id, await self._hf.emit(claim, "note", mark), mark)

    async def _end(self, claim: Claim, held: Held) -> None:
        self._ends += 1
        if self._ends % 10 == 3:
            self.diary.count("left to expire")
        elif self._ends % 10 == 5:
            self._late.append((claim, held))
        elif self._ends % 10 == 7:
            await self._hf.release(claim)
            held.end = "settled"
        else:
            await self._complete(claim)
            held.end = "settled"

    async def _complete(self, claim: Claim) -> None:
        mark = self._mark()
        result = self._chance.choice((mark, Continue(mark), Ok()))
        ended = await self._hf.complete(claim, result)
        if not isinstance(result, Ok):
            self._tell(claim.run_id, ended.rev, mark)

    async def _come_too_late(self) -> None:
        """Speak and complete after the lease ran out. Nobody is listened to who is late, taken over or not."""
        now = datetime.now(UTC).timestamp()
        ripe = [pair for pair in self._late if pair[1].lease_until.timestamp() + LATE_S < now]
        self._late = [pair for pair in self._late if pair not in ripe]
        for claim, held in ripe:
            refused = await self._is_refused(self._hf.emit(claim, "note", self._mark()))
            refused &= await self._is_refused(self._hf.complete(claim, self._mark()))
            held.end = "refused" if refused else "accepted too late"
            self.diary.count(held.end)

    async def _is_refused(self, call: Awaitable[object]) -> bool:
        try:
            await call
        except LeaseLost:
            return True
        return False


ROLES: dict[str, type[Caller]] = {"committer": Committer, "claimer": Claimer}


async def keep_a_diary(role: str, url: str, schema: str, seconds: float, seed: int) -> Diary:
    async with Holdfast(url, schema=schema) as holdfast:
        caller = ROLES[role](holdfast, f"{role}{seed}", seed)
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        return await caller.work(seconds)


def main() -> None:
    role, url, schema, seconds, seed, path = sys.argv[1:]
    diary = asyncio.run(keep_a_diary(role, url, schema, float(seconds), int(seed)))
    Path(path).write_bytes(msgspec.json.encode(diary))


if __name__ == "__main__":
    main()
