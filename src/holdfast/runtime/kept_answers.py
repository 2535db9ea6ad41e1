"""Kept answers: a request that carries a key is carried out once, however often it is sent and whoever gets it."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from holdfast import ambient
from holdfast.errors import Conflict
from holdfast.identity import new_id
from holdfast.protocol.state import RunState
from holdfast.store import Row, Store

KEPT_US = 24 * 3_600_000_000
HELD_US = 60_000_000
"""A request that is on its way for longer is lost with its process; the next one of its key takes its place."""

_EXPIRE = "DELETE FROM {s}kept_answers WHERE created_at <= $1"
_BEGIN = """
    INSERT INTO {s}kept_answers (user_id, route, key, fingerprint, nonce, holder, held_at, created_at)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $7)
    ON CONFLICT (user_id, route, key) DO NOTHING
"""
_LOOK = """
    SELECT fingerprint, nonce, holder, held_at, status, headers, body
    FROM {s}kept_answers
    WHERE user_id = $1 AND route = $2 AND key = $3
"""
_TAKE_OVER = """
    UPDATE {s}kept_answers SET holder = $4, held_at = $5
    WHERE user_id = $1 AND route = $2 AND key = $3 AND holder = $6 AND status IS NULL
"""
_KEEP = """
    UPDATE {s}kept_answers SET status = $5, headers = $6, body = $7
    WHERE user_id = $1 AND route = $2 AND key = $3 AND holder = $4
"""
_FORGET = """
    DELETE FROM {s}kept_answers
    WHERE user_id = $1 AND route = $2 AND key = $3 AND holder = $4 AND status IS NULL
"""


class Place(NamedTuple):
    """Whose request this is, what it asks for, and the key it carries."""

    user_id: str
    route: str
    key: str


class Answer(NamedTuple):
    """What a request was answered."""

    status: int
    headers: dict[str, str]
    body: bytes


class Turn(NamedTuple):
    """The right to carry out a request. What it commits takes its ids and keys from `nonce`, so whoever takes the
    request over after a crash finds what was done instead of doing it again."""

    place: Place
    nonce: str
    holder: str


class KeptAnswers:
    """Answers by user, route and key, for a day. They hold across processes, because they are rows."""

    def __init__(self, store: Store[RunState]) -> None:
        self._store = store

    async def begin(self, place: Place, fingerprint: str) -> Turn | Answer:
        """The answer that was given before, or the right to find one.

        Another request under the same key is a `Conflict` (`key_reused`), one that is still on its way a `Conflict`
        (`request_in_flight`).
        """
        now = await self._store.now()
        mine = ambient.random_token()
        begin = (*place, fingerprint, new_id(), mine, now)
        await self._store.execute((_EXPIRE, (now - KEPT_US,)), (_BEGIN, begin))
        found = await self._look(place)
        if found is None:
            # Forgotten between the two: whoever held it was refused, and so nothing stands in our way.
            return await self.begin(place, fingerprint)
        known, nonce, holder, held_at, status, headers, body = found
        if known != fingerprint:
            raise Conflict(f"key {place.key!r} was used before with another body; choose a new key", code="key_reused")
        if status is not None:
            return Answer(status, msgspec.json.decode(headers), bytes(body))
        if holder == mine:
            return Turn(place, nonce, mine)
        if now - held_at < HELD_US:
            text = f"a request with key {place.key!r} is on its way; ask again in a moment"
            raise Conflict(text, code="request_in_flight")
        return await self._take_over(place, fingerprint, nonce, holder, now)

    async def keep(self, turn: Turn, answer: Answer) -> None:
        """From now on this is the answer."""
        headers = msgspec.json.encode(answer.headers).decode()
        await self._store.execute((_KEEP, (*turn.place, turn.holder, answer.status, headers, answer.body)))

    async def forget(self, turn: Turn) -> None:
        """Nothing was done: the next request of this key is carried out."""
        await self._store.execute((_FORGET, (*turn.place, turn.holder)))

    async def _take_over(self, place: Place, fingerprint: str, nonce: str, holder: str, now: int) -> Turn | Answer:
        mine = ambient.random_token()
        await self._store.execute((_TAKE_OVER, (*place, mine, now, holder)))
        found = await self._look(place)
        if found is not None and found[2] == mine:
            return Turn(place, nonce, mine)
        return await self.begin(place, fingerprint)

    async def _look(self, place: Place) -> Row | None:
        rows = await self._store.fetch(_LOOK, *place)
        return rows[0] if rows else None
