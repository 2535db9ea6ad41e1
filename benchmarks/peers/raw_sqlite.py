"""The limits on SQLite: the same rows, written by hand with `sqlite3`, `synchronous=FULL`, one process.

`each` commits every transition of every run alone; `group` commits a hundred runs at once.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from typing import Any

from benchmarks.peers.driving import BATCH, STEPS, Job, Pipe, main, new_id

EACH, GROUP = "each", "group"
GROUP_SIZE = 100
IDLE_S = 0.002
SCHEMA = """
CREATE TABLE runs (
    run_id TEXT PRIMARY KEY, session_id TEXT NOT NULL, clog_id TEXT NOT NULL, queue TEXT NOT NULL,
    status TEXT NOT NULL, rev INTEGER NOT NULL, at INTEGER NOT NULL, created_at INTEGER NOT NULL, finished_at INTEGER
) STRICT;
CREATE TABLE work (
    run_id TEXT PRIMARY KEY, queue TEXT NOT NULL, priority INTEGER NOT NULL, due_at INTEGER NOT NULL, claim_id TEXT
) STRICT;
CREATE INDEX work_due ON work (queue, priority, due_at);
CREATE TABLE journal (
    position INTEGER PRIMARY KEY, thread TEXT NOT NULL, rev INTEGER NOT NULL, kind TEXT NOT NULL, data TEXT NOT NULL,
    at INTEGER NOT NULL, UNIQUE (thread, rev)
) STRICT;
"""
ENTRY = "INSERT INTO journal (thread, rev, kind, data, at) VALUES (?, ?, ?, ?, ?)"


def opened(job: Job) -> sqlite3.Connection:
    connection = sqlite3.connect(job.url, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    return connection


def now_us() -> int:
    return time.time_ns() // 1_000


async def setup(job: Job, pipe: Pipe) -> None:
    opened(job).executescript(SCHEMA)


async def fill(job: Job, pipe: Pipe) -> None:
    connection = opened(job)
    for first in range(0, job.n, BATCH):
        create(connection, min(BATCH, job.n - first))


def create(connection: sqlite3.Connection, many: int) -> None:
    now = now_us()
    ids = [new_id() for _ in range(many)]
    connection.execute("BEGIN IMMEDIATE")
    rows = [(run_id, "bench", "noop", "default", "pending", 1, now, now) for run_id in ids]
    connection.executemany("INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?, ?, ?, NULL)", rows)
    connection.executemany("INSERT INTO work VALUES (?, 'default', 0, ?, NULL)", [(run_id, now) for run_id in ids])
    connection.executemany(ENTRY, [(run_id, 1, "run_created", '{"input":1,"v":1}', now) for run_id in ids])
    connection.execute("COMMIT")


async def work(job: Job, pipe: Pipe) -> None:
    connection = opened(job)
    size = GROUP_SIZE if job.mode == GROUP else 1
    steps = 3 if job.kind == STEPS else 0
    await asyncio.to_thread(pipe.ready)
    pipe.until_told_now(lambda: _drain(connection, size, steps))


async def batch(job: Job, pipe: Pipe) -> None:
    connection = opened(job)
    await asyncio.to_thread(pipe.ready)
    pipe.until_told_now(lambda: create(connection, BATCH))


def _drain(connection: sqlite3.Connection, size: int, steps: int) -> None:
    claim_id = new_id()
    taken = _claim(connection, size, claim_id)
    if not taken:
        time.sleep(IDLE_S)
        return
    for done in range(steps):
        _step(connection, taken, 3 + done, claim_id)
    _settle(connection, taken, 3 + steps, claim_id)


def _claim(connection: sqlite3.Connection, size: int, claim_id: str) -> list[str]:
    now = now_us()
    connection.execute("BEGIN IMMEDIATE")
    due = "SELECT run_id FROM work WHERE queue = 'default' AND priority = 0 AND due_at <= ? ORDER BY due_at LIMIT ?"
    ids = [row[0] for row in connection.execute(due, (now, size))]
    held = [(claim_id, now + 30_000_000, run_id) for run_id in ids]
    connection.executemany("UPDATE work SET claim_id = ?, due_at = ? WHERE run_id = ?", held)
    _move(connection, ids, 2, "active", None)
    connection.executemany(
        ENTRY, [(run_id, 2, "attempt_claimed", f'{{"claim_id":"{claim_id}"}}', now) for run_id in ids]
    )
    connection.execute("COMMIT")
    return ids


def _move(connection: sqlite3.Connection, ids: list[str], rev: int, status: str, finished_at: int | None) -> None:
    rows = [(status, rev, now_us(), finished_at, run_id, rev - 1) for run_id in ids]
    connection.executemany(
        "UPDATE runs SET status = ?, rev = ?, at = ?, finished_at = ? WHERE run_id = ? AND rev = ?", rows
    )


def _step(connection: sqlite3.Connection, ids: list[str], rev: int, claim_id: str) -> None:
    now = now_us()
    connection.execute("BEGIN IMMEDIATE")
    rows = [(rev, now, run_id, rev - 1, claim_id) for run_id in ids]
    connection.executemany(
        """
        UPDATE runs SET rev = ?, at = ? WHERE run_id = ? AND rev = ?
            AND EXISTS (SELECT 1 FROM work w WHERE w.run_id = runs.run_id AND w.claim_id = ?)
        """,
        rows,
    )
    data = '{"name":"one","result":{"value":1},"v":1}'
    connection.executemany(ENTRY, [(run_id, rev, "step_completed", data, now) for run_id in ids])
    connection.execute("COMMIT")


def _settle(connection: sqlite3.Connection, ids: list[str], rev: int, claim_id: str) -> None:
    now = now_us()
    connection.execute("BEGIN IMMEDIATE")
    held = [(run_id, claim_id) for run_id in ids]
    connection.executemany("DELETE FROM work WHERE run_id = ? AND claim_id = ?", held)
    _move(connection, ids, rev, "done", now)
    connection.executemany(ENTRY, [(run_id, rev, "run_terminal", '{"output":1,"v":1}', now) for run_id in ids])
    connection.execute("COMMIT")


ROLES: dict[str, Any] = {"setup": setup, "fill": fill, "work": work, "batch": batch}

if __name__ == "__main__":
    main(ROLES)
