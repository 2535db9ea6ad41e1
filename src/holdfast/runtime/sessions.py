"""`Sessions`: what groups the runs of a conversation, with its title and everything that was said in it."""

from __future__ import annotations

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from holdfast.errors import InvalidValue, NotFound
from holdfast.identity import check_id, new_id
from holdfast.journal.conversation import Message, conversations, input_text
from holdfast.moments import from_us
from holdfast.protocol.audit import LOCAL
from holdfast.protocol.values import clean, whole_number
from holdfast.runtime.listing import LIMIT_MAX, Page
from holdfast.runtime.runs import Runs
from holdfast.store import Row

TITLE_MAX = 200
OPEN = ("pending", "active", "waiting", "paused")

# Beside each session its newest run: found by one step into an index.
_SESSIONS = """
    SELECT s.session_id, s.user_id, s.title, s.created_at, coalesce(r.at, s.created_at) AS updated_at, r.run_id,
           r.status
    FROM {s}sessions s
    LEFT JOIN {s}runs r ON r.run_id = (
        SELECT x.run_id
        FROM {s}runs x
        WHERE x.session_id = s.session_id
        ORDER BY x.created_at DESC, x.run_id DESC
        LIMIT 1
    )
"""
_CREATE = """
    INSERT INTO {s}sessions (session_id, user_id, title, created_at) VALUES ($1, $2, $3, $4)
    ON CONFLICT (session_id) DO NOTHING
"""


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """A session. `updated_at` is when its newest run last moved, `run_id` that run as long as it is not over."""

    session_id: str
    user_id: str
    title: str | None
    created_at: datetime
    updated_at: datetime
    run_id: str | None
    message_count: int
    last_user_message: str | None


class Sessions:
    """List, create, look at and cancel. To one user the sessions of others are unknown."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs
        self._store = runs.journal.store
        self._user_id = runs._user_id

    async def list(self, limit: int = 50, cursor: str | None = None) -> Page[Session]:
        """Those that moved last come first; `cursor` is the `next` of the last page."""
        most = min(whole_number(limit, "limit", 1, 1 << 31), LIMIT_MAX)
        at, session_id = _place(cursor)
        sql = f"""
            SELECT * FROM ({_SESSIONS} WHERE s.user_id = $1) found
            WHERE (updated_at, session_id) < ($2, $3)
            ORDER BY updated_at DESC, session_id DESC
            LIMIT {most + 1}
        """
        rows = await self._store.fetch(sql, self._owner, at, session_id)
        following = _cursor(rows[most - 1]) if len(rows) > most else None
        return Page([*await self._sessions(rows[:most])], following)

    async def get(self, session_id: str) -> Session:
        rows = await self._store.fetch(f"{_SESSIONS} WHERE s.session_id = $1", check_id(session_id, "session_id"))
        if not rows or self._user_id not in (None, rows[0][1]):
            raise NotFound(f"there is no session {session_id}")
        return (await self._sessions(rows))[0]

    async def is_known(self, session_id: str) -> bool:
        """Is there such a session for whoever asks? Nothing of it is read."""
        sql = "SELECT user_id FROM {s}sessions WHERE session_id = $1"
        rows = await self._store.fetch(sql, check_id(session_id, "session_id"))
        return bool(rows) and self._user_id in (None, rows[0][0])

    async def check(self, session_id: str) -> None:
        """`NotFound` if there is no such session for whoever asks."""
        if not await self.is_known(session_id):
            raise NotFound(f"there is no session {session_id}")

    async def create(self, session_id: str | None = None, *, title: str | None = None) -> Session:
        """A session without runs. One that is there already stays as it is; another user's is unknown here."""
        chosen = new_id() if session_id is None else check_id(session_id, "session_id")
        words, _ = clean(title)
        if words is not None and len(words) > TITLE_MAX:
            raise InvalidValue(f"a title has at most {TITLE_MAX} characters, got {len(words)}")
        await self._store.execute((_CREATE, (chosen, self._owner, words, await self._store.now())))
        return await self.get(chosen)

    async def messages(self, session_id: str, *, until_us: int = 1 << 62) -> Sequence[Message]:
        """Everything that was said and done in the session, as it stood at an instant."""
        await self.check(session_id)
        return (await conversations(self._store, [session_id], until_us=until_us))[session_id]

    async def cancel(self, session_id: str, *, actor: str | None = None) -> int:
        """Ask every run of the session that is not over to stop; answer how many there were."""
        await self.get(session_id)
        places = ", ".join(f"'{status}'" for status in OPEN)
        sql = f"SELECT run_id FROM {{s}}runs WHERE session_id = $1 AND status IN ({places}) ORDER BY created_at, run_id"
        run_ids = [row[0] for row in await self._store.fetch(sql, session_id)]
        # The newest first: otherwise each end would let the next one of the lane begin.
        for run_id in reversed(run_ids):
            await self._runs.cancel(run_id, actor=actor)
        return len(run_ids)

    @property
    def _owner(self) -> str:
        return self._user_id or LOCAL

    async def _sessions(self, rows: Sequence[Row]) -> Sequence[Session]:
        told = await conversations(self._store, [row[0] for row in rows])
        return [_session(row, told[row[0]]) for row in rows]


def _session(row: Row, messages: Sequence[Message]) -> Session:
    session_id, user_id, title, created_at, updated_at, run_id, status = row
    words: list[Any] = [message.content for message in messages if message.role == "user"]
    return Session(
        session_id=session_id,
        user_id=user_id,
        title=title,
        created_at=from_us(created_at),
        updated_at=from_us(updated_at),
        run_id=run_id if status in OPEN else None,
        message_count=len(messages),
        last_user_message=input_text(words[-1]) if words else None,
    )


def _cursor(row: Row) -> str:
    return urlsafe_b64encode(f"{row[4]}/{row[0]}".encode()).decode().rstrip("=")


def _place(cursor: str | None) -> tuple[int, str]:
    if cursor is None:
        return 1 << 62, ""
    try:
        text = urlsafe_b64decode(f"{cursor}{'=' * (-len(cursor) % 4)}".encode("ascii")).decode("ascii")
        at, _, session_id = text.partition("/")
        return min(int(at), 1 << 62), check_id(session_id, "session_id")
    except (ValueError, binascii.Error) as error:
        text = "this cursor was not made by a list; pass on the `next` of the last page"
        raise InvalidValue(text, code="invalid_cursor") from error
