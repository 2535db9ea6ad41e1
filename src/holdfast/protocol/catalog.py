"""The catalog and the index of a clog as a pure fold: which runs there are, without their contents."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

from holdfast.protocol import facts
from holdfast.protocol.facts import Fact

KINDS = ("run_created", "run_terminal")
"""The entries that a listing is built from."""


class Listed(msgspec.Struct, frozen=True, kw_only=True):
    """A run as a listing shows it: no input, no output, no error, no claim."""

    run_id: str
    session_id: str
    clog_id: str
    queue: str
    created_at: int
    ended: str | None = None


def fold(entries: Iterable[tuple[str, Fact, int]]) -> dict[str, Listed]:
    """Every run exactly once, by id."""
    runs: dict[str, Listed] = {}
    for run_id, fact, at in entries:
        known = runs.get(run_id)
        if isinstance(fact, facts.RunCreated) and known is None:
            runs[run_id] = Listed(
                run_id=run_id, session_id=fact.session_id, clog_id=fact.clog_id, queue=fact.queue, created_at=at
            )
        elif isinstance(fact, facts.RunTerminal) and known and known.ended is None:
            runs[run_id] = replace(known, ended=fact.status)
    return runs
