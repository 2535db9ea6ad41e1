"""How a run ended, in one question: whoever waits for a result asks it at every piece of news."""

from __future__ import annotations

from typing import Any, NamedTuple

from holdfast.journal.entries import RUN_PREFIX, fact_of, proved
from holdfast.store import Entry, Store

_ENDING = """
    SELECT
        r.status, r.finished_at IS NOT NULL,
        j.position, j.thread, j.rev, j.kind, j.data, j.at, j.digest, j.commit_id
    FROM {s}runs r
    LEFT JOIN {s}journal j ON j.thread = $1 AND j.rev = r.output_rev
    WHERE r.run_id = $2
      AND r.user_id = coalesce($3, r.user_id)
"""


class Ending(NamedTuple):
    """Where a run stands, and what it answered if it is done."""

    status: str
    is_over: bool
    output: Any


async def read_ending(store: Store[Any], run_id: str, user_id: str | None) -> Ending | None:
    """None for a run that this user (any, if None) does not have."""
    for status, is_over, *entry in await store.fetch_by_key(_ENDING, RUN_PREFIX + run_id, run_id, user_id):
        return Ending(status, bool(is_over), None if entry[0] is None else _output(Entry(*entry)))
    return None


def _output(entry: Entry) -> Any:
    (sound,) = proved([entry], after=entry.rev - 1)
    return getattr(fact_of(sound), "output", None)
