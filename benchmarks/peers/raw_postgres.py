"""The limits: the rows of a run, its open work and its journal, written by hand with asyncpg and nothing around it.

`each` commits every transition of every run alone (only the search for work finds many); `group` commits whatever has
gathered. No values are checked, no lease is kept alive, no error is handled: what does that has these as its ceiling.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import asyncpg

from benchmarks.peers.driving import (
    BATCH,
    EVENT,
    STEPS,
    WINDOW,
    Gathering,
    Job,
    Pipe,
    ask,
    callers,
    forever,
    main,
    new_id,
    told,
)
from benchmarks.peers.growing import REAL, copy

EACH, GROUP = "each", "group"
EACH_CONNECTIONS = 24
GROUP_CONNECTIONS = 3
GROUP_SIZE = 128
IDLE_S = 0.002
RUN_ID = "the-stream"

SCHEMA = """
CREATE TABLE runs (
    run_id text COLLATE "C" PRIMARY KEY, session_id text NOT NULL, clog_id text NOT NULL, queue text NOT NULL,
    status text NOT NULL, rev integer NOT NULL, at bigint NOT NULL, created_at bigint NOT NULL, finished_at bigint
) WITH (fillfactor = 70);
CREATE TABLE work (
    run_id text COLLATE "C" PRIMARY KEY, queue text NOT NULL, priority integer NOT NULL, due_at bigint NOT NULL,
    claim_id text
) WITH (
    fillfactor = 70, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 500,
    autovacuum_vacuum_cost_delay = 0
);
CREATE INDEX work_due ON work (queue, priority, due_at);
CREATE TABLE journal (
    thread text COLLATE "C" NOT NULL, rev integer NOT NULL, kind text NOT NULL, data text NOT NULL, at bigint NOT NULL,
    PRIMARY KEY (thread, rev)
);
"""
_NOW = "(extract(epoch FROM clock_timestamp()) * 1e6)::bigint"
CREATE = f"""
    WITH x AS MATERIALIZED (SELECT id, {_NOW} AS now FROM unnest($1::text[]) id),
    r AS (INSERT INTO runs SELECT id, 'bench', 'noop', 'default', 'pending', 1, now, now FROM x),
    w AS (INSERT INTO work SELECT id, 'default', 0, now FROM x)
    INSERT INTO journal SELECT id, 1, 'run_created', '{{"clog_id":"noop","input":1,"v":1}}', now FROM x
"""
CLAIM = f"""
    WITH p AS MATERIALIZED (
        SELECT run_id, {_NOW} AS now FROM work
        WHERE queue = 'default' AND priority = 0 AND due_at <= {_NOW}
        ORDER BY due_at LIMIT $1 FOR UPDATE SKIP LOCKED
    ),
    w AS (UPDATE work w SET claim_id = $2, due_at = p.now + 30000000 FROM p WHERE w.run_id = p.run_id),
    r AS (
        UPDATE runs r SET status = 'active', rev = r.rev + 1, at = p.now FROM p WHERE r.run_id = p.run_id
        RETURNING r.run_id, r.rev, r.at
    ),
    j AS (
        INSERT INTO journal
        SELECT run_id, rev, 'attempt_claimed', '{{"claim_id":"' || $2 || '","lease_us":30000000,"v":1}}', at FROM r
    )
    SELECT run_id, rev FROM r
"""
STEP = f"""
    WITH x AS MATERIALIZED (SELECT * FROM unnest($1::text[], $2::integer[]) x (id, rev)),
    r AS (
        UPDATE runs r SET rev = x.rev + 1, at = {_NOW} FROM x JOIN work w ON w.run_id = x.id AND w.claim_id = $3
        WHERE r.run_id = x.id AND r.rev = x.rev RETURNING r.run_id, r.rev, r.at
    )
    INSERT INTO journal SELECT run_id, rev, 'step_completed', '{{"name":"one","result":{{"value":1}},"v":1}}', at FROM r
"""
SETTLE = f"""
    WITH x AS MATERIALIZED (SELECT * FROM unnest($1::text[], $2::integer[]) x (id, rev)),
    d AS (DELETE FROM work w USING x WHERE w.run_id = x.id AND w.claim_id = $3 RETURNING w.run_id),
    r AS (
        UPDATE runs r SET status = 'done', rev = x.rev + 1, at = {_NOW}, finished_at = {_NOW}
        FROM x JOIN d ON d.run_id = x.id WHERE r.run_id = x.id AND r.rev = x.rev RETURNING r.run_id, r.rev, r.at
    )
    INSERT INTO journal SELECT run_id, rev, 'run_terminal', '{{"output":1,"status":"done","v":1}}', at FROM r
"""
STEP_ONE = f"""
    WITH r AS (
        UPDATE runs SET rev = $2 + 1, at = {_NOW}
        WHERE run_id = $1 AND rev = $2 AND EXISTS (SELECT 1 FROM work WHERE run_id = $1 AND claim_id = $3)
        RETURNING run_id, rev, at
    )
    INSERT INTO journal SELECT run_id, rev, 'step_completed', '{{"name":"one","result":{{"value":1}},"v":1}}', at FROM r
"""
SETTLE_ONE = f"""
    WITH d AS (DELETE FROM work WHERE run_id = $1 AND claim_id = $3 RETURNING run_id),
    r AS (
        UPDATE runs SET status = 'done', rev = $2 + 1, at = {_NOW}, finished_at = {_NOW}
        WHERE run_id = $1 AND rev = $2 AND EXISTS (SELECT 1 FROM d) RETURNING run_id, rev, at
    )
    INSERT INTO journal SELECT run_id, rev, 'run_terminal', '{{"output":1,"status":"done","v":1}}', at FROM r
"""
APPEND = f"""
    WITH r AS (
        UPDATE runs SET rev = rev + cardinality($2::text[]), at = {_NOW} WHERE run_id = $1 RETURNING rev, at
    )
    INSERT INTO journal
    SELECT $1, r.rev - cardinality($2::text[]) + x.n, 'event', x.data, r.at
    FROM r, unnest($2::text[]) WITH ORDINALITY x (data, n)
"""


@asynccontextmanager
async def connections(job: Job, many: int | None = None) -> AsyncIterator[list[asyncpg.Connection]]:
    """Connections that are kept: a pool would ask the server to forget everything after each use."""
    wanted = many or (GROUP_CONNECTIONS if job.mode == GROUP else EACH_CONNECTIONS)
    opened = [await asyncpg.connect(job.url) for _ in range(wanted)]
    try:
        yield opened
    finally:
        for connection in opened:
            connection.terminate()


async def setup(job: Job, pipe: Pipe) -> None:
    async with connections(job, 1) as (connection,):
        await connection.execute(SCHEMA)


async def fill(job: Job, pipe: Pipe) -> None:
    async with connections(job, 1) as (connection,):
        for first in range(0, job.n, BATCH):
            await connection.execute(CREATE, [new_id() for _ in range(min(BATCH, job.n - first))])


async def work(job: Job, pipe: Pipe) -> None:
    steps = 3 if job.kind == STEPS else 0
    async with connections(job) as opened:
        await asyncio.to_thread(pipe.ready)
        if job.mode == EACH and not job.socket:
            await pipe.until_told(_each(opened, steps))
        else:
            await pipe.until_told(asyncio.gather(*(_lane(connection, steps, job) for connection in opened)))


async def _each(opened: list[asyncpg.Connection], steps: int) -> None:
    """Claims for all slots are one search; every later transition of a run is a transaction of its own."""
    claimed: asyncio.Queue[tuple[str, int, str]] = asyncio.Queue(maxsize=GROUP_SIZE)

    async def claim(connection: asyncpg.Connection) -> None:
        claim_id = new_id()
        found = await connection.fetch(CLAIM, GROUP_SIZE, claim_id)
        for run_id, rev in found:
            await claimed.put((run_id, rev, claim_id))
        if not found:
            await asyncio.sleep(IDLE_S)

    async def slot(connection: asyncpg.Connection) -> None:
        run_id, rev, claim_id = await claimed.get()
        for done in range(steps):
            await connection.execute(STEP_ONE, run_id, rev + done, claim_id)
        await connection.execute(SETTLE_ONE, run_id, rev + steps, claim_id)

    first, *others = opened
    await asyncio.gather(forever(lambda: claim(first)), *(forever(partial(slot, other)) for other in others))


async def _lane(connection: asyncpg.Connection, steps: int, job: Job) -> None:
    """Claim, work, settle, on a connection of our own; others do the same beside us."""
    tell, is_asked = told(job), bool(job.socket)
    heard = asyncio.Event()
    if is_asked:
        await connection.add_listener("work", lambda *_: heard.set())
    while True:
        heard.clear()
        claim_id = new_id()
        found = await connection.fetch(CLAIM, GROUP_SIZE, claim_id)
        if not found:
            await _heard(heard, 1.0 if is_asked else IDLE_S)
            continue
        tell()
        ids, revs = [row[0] for row in found], [row[1] for row in found]
        for done in range(steps):
            await connection.execute(STEP, ids, [rev + done for rev in revs], claim_id)
        await connection.execute(SETTLE, ids, [rev + steps for rev in revs], claim_id)
        if is_asked:
            await connection.execute("SELECT pg_notify('done', $1)", ids[0])


async def _heard(event: asyncio.Event, seconds: float) -> None:
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        return


async def grow(job: Job, pipe: Pipe) -> None:
    """Finished runs, as a worker leaves them."""
    await fill(replace(job, n=REAL), pipe)
    async with connections(job, 1) as (connection,):
        claim_id = new_id()
        found = await connection.fetch(CLAIM, REAL, claim_id)
        await connection.execute(SETTLE, [row[0] for row in found], [row[1] for row in found], claim_id)
    await copy(job.url, {"runs": ["run_id"], "journal": ["thread"]}, job.n // REAL - 1)


async def enqueue(job: Job, pipe: Pipe) -> None:
    async with connections(job) as opened:
        gathering: Gathering[str] = Gathering(lambda ids: opened[0].execute(CREATE, ids))
        await asyncio.to_thread(pipe.ready)
        if job.mode == GROUP:
            await pipe.until_told(callers(lambda: gathering.commit(new_id())))
        else:
            await pipe.until_told(asyncio.gather(*(forever(partial(_create, connection)) for connection in opened)))


async def _create(connection: asyncpg.Connection, many: int = 1) -> None:
    await connection.execute(CREATE, [new_id() for _ in range(many)])


async def batch(job: Job, pipe: Pipe) -> None:
    async with connections(job, 1) as (connection,):
        await asyncio.to_thread(pipe.ready)
        await pipe.until_told(forever(lambda: _create(connection, BATCH)))


async def asking(job: Job, pipe: Pipe) -> None:
    """Create, notify, wait for the notification of its end."""
    async with connections(job, 2) as (listening, connection):
        done = asyncio.Event()
        await listening.add_listener("done", lambda *_: done.set())

        async def call() -> None:
            done.clear()
            await _create(connection)
            await connection.execute("SELECT pg_notify('work', '')")
            await done.wait()

        await ask(job, pipe, call)


async def stream(job: Job, pipe: Pipe) -> None:
    async with connections(job, 1) as (connection,):
        await connection.execute(CREATE, [RUN_ID])
        gathering: Gathering[str] = Gathering(lambda events: connection.execute(APPEND, RUN_ID, events))
        await asyncio.to_thread(pipe.ready)
        if job.mode == GROUP:
            await pipe.until_told(callers(lambda: gathering.commit(EVENT), WINDOW))
        else:
            await pipe.until_told(forever(lambda: connection.execute(APPEND, RUN_ID, [EVENT])))


ROLES: dict[str, Any] = {
    "setup": setup,
    "fill": fill,
    "grow": grow,
    "work": work,
    "enqueue": enqueue,
    "batch": batch,
    "ask": asking,
    "stream": stream,
}

if __name__ == "__main__":
    main(ROLES)
