"""How fast a relay drains the outbox, against the rawest way to do the same on the same database, in one run.

    python -m benchmarks.outbox_drain                     # 100,000 rows on SQLite and on Postgres
    python -m benchmarks.outbox_drain --rows 10000

Raw is the least that must be on disk for every row, in batches of the same size: it is claimed, and it is marked as
sent with an audit row beside it. No sink, no dedup, no renewals, no fence, no Python for a single row. Absolute rates
on a shared machine mean little; the ratio does. So that both sides meet the same neighbours and the same size of the
table, they take turns, slice by slice, each until it has had all its rows.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from pathlib import Path
from typing import Any

from holdfast import Holdfast
from holdfast.identity import new_id
from holdfast.protocol.values import canonical, fingerprint
from holdfast.store import Change
from tests.servers import postgres

BATCH = 500
SLICE = 10_000
_TAKE = """
    UPDATE {s}outbox SET locked_by = 'raw', lease_until = {now} + 60000000, claim_token_hash = 'raw'
    WHERE outbox_id IN (
        SELECT outbox_id FROM {s}outbox
        WHERE status = 'pending' AND next_attempt_at <= {now} AND lease_until IS NULL
        ORDER BY next_attempt_at, created_at, seq
        LIMIT $1
        {skip_locked}
    )
    RETURNING outbox_id
"""
_SEND = """
    UPDATE {s}outbox SET status = 'sent', settled_at = {now}, locked_by = NULL, lease_until = NULL,
        claim_token_hash = NULL
    WHERE locked_by = 'raw'
    RETURNING outbox_id
"""
_NOTE = """
    INSERT INTO {s}outbox_audits (audit_id, outbox_id, at, action, reason, status, evidence)
    SELECT outbox_id, outbox_id, {now}, 'allow', 'outbox_flush_success', 'success', payload
    FROM {from} WHERE {held}
"""
TAKE = Change((_TAKE.replace("{skip_locked}", ""),), _TAKE.replace("{skip_locked}", "FOR UPDATE SKIP LOCKED"))
SEND = Change(
    sqlite=(_NOTE.replace("{from}", "{s}outbox").replace("{held}", "locked_by = 'raw'"), _SEND),
    postgres=f"""
        WITH u AS ({_SEND}, payload), a AS ({_NOTE.replace("{from}", "u").replace("{held}", "true")})
        SELECT outbox_id FROM u
    """,
)


async def fill(hf: Holdfast, rows: int, first: int) -> None:
    """Rows with payloads that no other row has, many in one statement."""
    now = await hf._store.now()
    columns = "outbox_id, user_id, target_space, payload, payload_sha, next_attempt_at, created_at"
    for start in range(0, rows, BATCH):
        made: list[Any] = []
        for number in range(first + start, first + min(start + BATCH, rows)):
            payload = {"to": f"user-{number}@example.com", "text": "hello " * 20}
            made += [new_id(), "local", "email", canonical(payload), fingerprint(payload), now, now]
        marks = ", ".join(
            f"({', '.join(f'${place + offset}' for offset in range(1, 8))})" for place in range(0, len(made), 7)
        )
        await hf._store.execute((f"INSERT INTO {{s}}outbox ({columns}) VALUES {marks}", tuple(made)))


async def raw(hf: Holdfast) -> float:
    """Claim what there is and mark it as sent, in batches; answer the seconds."""
    database = hf._store._database
    began = time.perf_counter()
    while await database.change(TAKE, BATCH):
        await database.change(SEND)
    return time.perf_counter() - began


class Receiver:
    """A sink that does nothing but count."""

    def __init__(self) -> None:
        self.wanted = 0
        self.has_all = asyncio.Event()

    async def __call__(self, payload: Any) -> None:
        self.wanted -= 1
        if not self.wanted:
            self.has_all.set()


async def relayed(hf: Holdfast, receiver: Receiver, rows: int) -> float:
    """Deliver these rows through the whole protocol; answer the seconds."""
    receiver.wanted = rows
    receiver.has_all.clear()
    relay = hf.outbox.relay()
    began = time.perf_counter()
    running = asyncio.create_task(relay.run())
    await receiver.has_all.wait()
    # It ends when the last one is settled.
    relay.stop()
    await running
    assert relay.counts["outbox_flush_success"] == rows
    return time.perf_counter() - began


async def table(urls: dict[str, str], rows: int) -> list[str]:
    lines = [f"| {rows:,} rows | raw/s | relay/s | ratio |", "|---|---:|---:|---:|"]
    for name, url in urls.items():
        raw_s = relay_s = 0.0
        receiver = Receiver()
        async with Holdfast(url, schema="bench_outbox") as hf:
            hf.deliver("email", concurrency=3 * BATCH)(receiver)
            for first in range(0, rows, SLICE):
                count = min(SLICE, rows - first)
                await fill(hf, count, 2 * first)
                raw_s += await raw(hf)
                await fill(hf, count, 2 * first + count)
                relay_s += await relayed(hf, receiver, count)
        ratio = raw_s / relay_s
        lines.append(f"| {name} | {rows / raw_s:,.0f} | {rows / relay_s:,.0f} | {ratio:.2f} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, postgres(Path(folder) / "postgres") as url:
        urls = {"SQLite": str(Path(folder) / "bench.db"), "Postgres": url}
        print("\n".join(asyncio.run(table(urls, options.rows))))


if __name__ == "__main__":
    main()
