"""Browser sessions: an opaque id in a cookie, a hash of it here. They end when idle, when old, and when told to."""

from __future__ import annotations

from holdfast import ambient
from holdfast.identity import check_id, hash_token
from holdfast.protocol.state import RunState
from holdfast.store import Store

IDLE_US = 24 * 3_600_000_000
ABSOLUTE_US = 14 * 86_400_000_000
SEEN_EVERY_US = 60_000_000


class BrowserSessions:
    """Who has logged in with which browser."""

    def __init__(self, store: Store[RunState]) -> None:
        self._store = store

    async def begin(self, user_id: str, replaced: str | None = None) -> str:
        """A new session for someone who has just logged in; the one that the browser had before is over."""
        session = ambient.random_token()
        if replaced is not None:
            await self.end(replaced)
        await self._store.change(
            "DELETE FROM {s}browser_sessions WHERE expires_at <= {now} OR seen_at <= {now} - $1 RETURNING user_id",
            IDLE_US,
        )
        sql = """
            INSERT INTO {s}browser_sessions (session_hash, user_id, created_at, seen_at, expires_at)
            VALUES ($1, $2, {now}, {now}, {now} + $3)
            ON CONFLICT (session_hash) DO NOTHING
            RETURNING session_hash
        """
        await self._store.change(sql, hash_token(session), check_id(user_id, "user_id"), ABSOLUTE_US)
        return session

    async def user_of(self, session: str) -> str | None:
        """Who uses this session; None if it is unknown or over."""
        hashed = hash_token(session)
        sql = "SELECT user_id, seen_at, expires_at FROM {s}browser_sessions WHERE session_hash = $1"
        rows = await self._store.fetch(sql, hashed)
        if not rows:
            return None
        (user_id, seen_at, expires_at), now = rows[0], await self._store.now()
        if expires_at <= now or seen_at + IDLE_US <= now:
            return None
        if seen_at + SEEN_EVERY_US <= now:
            # At most once a minute: most requests must not write.
            sql = "UPDATE {s}browser_sessions SET seen_at = {now} WHERE session_hash = $1 RETURNING session_hash"
            await self._store.change(sql, hashed)
        return str(user_id)

    async def end(self, session: str) -> None:
        """Log this browser out. Once more changes nothing."""
        sql = "DELETE FROM {s}browser_sessions WHERE session_hash = $1 RETURNING session_hash"
        await self._store.change(sql, hash_token(session))

    async def end_all(self, user_id: str) -> int:
        """Log a user out of every browser; answer how many there were."""
        sql = "DELETE FROM {s}browser_sessions WHERE user_id = $1 RETURNING session_hash"
        return len(await self._store.change(sql, check_id(user_id, "user_id")))
