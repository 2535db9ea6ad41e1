"""The inbox: every open question to a person, over all runs."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from holdfast.journal import Journal
from holdfast.moments import from_us
from holdfast.protocol import facts
from holdfast.protocol.values import whole_number
from holdfast.runtime.listing import LIMIT_MAX, Page, cursor_at, place_of


class OpenQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """A run that waits for a person. `rev` is what to give back as `seen_rev`, `shown_sha` the hash of `details`."""

    run_id: str
    session_id: str
    clog_id: str
    user_id: str
    step: str
    kind: str
    details: dict[str, Any]
    shown_sha: str
    asked_at: datetime
    expires_at: datetime | None
    rev: int


async def open_questions(
    journal: Journal, equal: dict[str, str | None], limit: int, cursor: str | None
) -> Page[OpenQuestion]:
    """Those of the newest runs first. Each shows exactly what its answer will be held against."""
    most = min(whole_number(limit, "limit", 1, 1 << 31), LIMIT_MAX)
    wanted = [(column, value) for column, value in equal.items() if value is not None]
    # Few runs ask, whoever owns them: an index by owner must not look better than the one of open questions.
    filters = [f"coalesce({column}, '') = ${place}" for place, (column, _) in enumerate(wanted, start=1)]
    conditions = ["boundary_step IS NOT NULL", *filters]
    values: list[Any] = [value for _, value in wanted]
    if cursor is not None:
        conditions.append(f"(created_at, run_id) < (${len(values) + 1}, ${len(values) + 2})")
        values += place_of(cursor)
    sql = f"""
        SELECT run_id, session_id, clog_id, user_id, boundary_step, boundary_kind, boundary_rev, boundary_shown,
               boundary_expires_at, created_at
        FROM {{s}}runs
        WHERE {" AND ".join(conditions)}
        ORDER BY created_at DESC, run_id DESC
        LIMIT {most + 1}
    """
    rows = await journal.store.fetch(sql, *values)
    told = await journal.told_at([(row[0], row[6]) for row in rows[:most]])
    items = [_question(row, *told[row[0], row[6]]) for row in rows[:most]]
    return Page(items, cursor_at(rows[most - 1][-1], rows[most - 1][0]) if len(rows) > most else None)


def _question(row: tuple[Any, ...], asked: facts.Fact, at: int) -> OpenQuestion:
    assert isinstance(asked, facts.ManualStepPaused)
    run_id, session_id, clog_id, user_id, step, kind, rev, shown_sha, expires_at, _ = row
    return OpenQuestion(
        run_id=run_id,
        session_id=session_id,
        clog_id=clog_id,
        user_id=user_id,
        step=step,
        kind=kind,
        details=asked.metadata,
        shown_sha=shown_sha,
        asked_at=from_us(at),
        expires_at=None if expires_at is None else from_us(expires_at),
        rev=rev,
    )
