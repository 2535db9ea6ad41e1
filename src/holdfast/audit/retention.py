"""Retention: whole keys go, with every fact of theirs. Nothing is thinned out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta

from holdfast.errors import InvalidValue
from holdfast.protocol.state import RunState
from holdfast.store import FACTS, Addition, FactKey, Row, Store

BATCH = 500
TTL_MAX_S = 1 << 36
_STILL = "NOT EXISTS (SELECT 1 FROM {{s}}{table} x WHERE {later} AND x.validity > $1)"
_OVER = {
    "turns": "1 = 1",
    # The ledger of a run that is kept is proved by its entries, so it stays as long as they do.
    "tool_calls": """
        EXISTS (SELECT 1 FROM {{s}}{table} x WHERE {later} AND x.status IN ('completed', 'failed'))
        AND (b.run_id IS NULL OR NOT EXISTS (
            SELECT 1 FROM {{s}}journal j WHERE j.thread = 'run:' || b.run_id AND j.rev = 1
        ))
    """,
    "proposals": """
        EXISTS (SELECT 1 FROM {{s}}{table} x WHERE {later} AND x.status IN ('denied', 'applied', 'reverted'))
    """,
}


async def forget(store: Store[RunState], ttl: float | timedelta) -> dict[str, int]:
    """Forget what is older than this, each key behind its lock: one that was spoken of meanwhile stays."""
    seconds = ttl.total_seconds() if isinstance(ttl, timedelta) else ttl
    if not 0 <= seconds <= TTL_MAX_S:
        raise InvalidValue(f"ttl is a timedelta or a number of seconds from 0 to {TTL_MAX_S}; got {ttl!r}")
    by = await store.now() - round(seconds * 1_000_000)
    return {table: await _forget(store, table, by) for table in _OVER}


async def _forget(store: Store[RunState], table: str, by: int) -> int:
    key = FACTS[table].key[:-2]
    later = " AND ".join(f"x.{name} = b.{name}" for name in key)
    text = f"""
        SELECT {", ".join(f"b.{name}" for name in key)}
        FROM {{{{s}}}}{table} b
        WHERE b.validity = b.created AND b.created <= $1 AND {_STILL} AND {_OVER[table]}
        ORDER BY b.created, {", ".join(f"b.{name}" for name in key)}
        LIMIT {BATCH}
    """.format(table=table, later=later)
    forgotten = 0
    while rows := await store.fetch(text, by):
        keys = [FactKey(table, tuple(row)) for row in rows]
        recorded = await store.record(keys, lambda before, _: Addition(drops=_old(before, keys, by)))  # noqa: B023
        forgotten += len(recorded.addition.drops)
        if not recorded.addition.drops:
            break
    return forgotten


def _old(before: Mapping[FactKey, Row | None], keys: Sequence[FactKey], by: int) -> tuple[FactKey, ...]:
    place = {key.table: FACTS[key.table].names.index("validity") for key in keys}
    rows = ((key, before[key]) for key in keys)
    return tuple(key for key, row in rows if row is not None and row[place[key.table]] <= by)
