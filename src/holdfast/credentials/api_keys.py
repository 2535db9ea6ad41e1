"""API keys: `hf_<id>_<secret>`. Shown once, kept as a hash, looked up by their id, compared in constant time."""

from __future__ import annotations

import hmac
import re
from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec

from holdfast import ambient
from holdfast.credentials.owners import owner as owner_of
from holdfast.errors import InvalidValue, NotFound
from holdfast.identity import hash_token
from holdfast.moments import from_us, to_us
from holdfast.protocol.state import RunState
from holdfast.store import Row, Store

USED_EVERY_US = 60_000_000
LIFETIME_MAX = timedelta(days=36_500)
_KEY = re.compile(r"hf_([0-9a-f]{16})_([A-Za-z0-9_-]{43,64})")
_COLUMNS = "key_id, user_id, scopes, created_at, expires_at, last_used_at, revoked_at"
READ, WRITE, DECIDE, ADMIN = "runs:read", "runs:write", "approvals:decide", "admin"
SCOPES = (READ, WRITE, DECIDE, ADMIN)


class ApiKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key without its secret. Without scopes it may do whatever its user may."""

    key_id: str
    user_id: str
    scopes: tuple[str, ...]
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None
    revoked_at: datetime | None

    def allows(self, scope: str) -> bool:
        """May a caller with this key do what this scope stands for? Whoever may write or decide may see."""
        enough = SCOPES if scope == READ else (scope, ADMIN)
        return not self.scopes or any(each in enough for each in self.scopes)


class NewApiKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key that was just made; `text` is its secret and is never shown again."""

    text: str
    key: ApiKey


class ApiKeys:
    """The keys of all users, or of the one who asks."""

    def __init__(self, store: Store[RunState], user_id: str | None = None) -> None:
        self._store = store
        self._user_id = user_id

    async def create(
        self, user_id: str | None = None, *, scopes: Sequence[str] = (), lifetime: timedelta | None = None
    ) -> NewApiKey:
        """Make a key for a user. It works until its lifetime is over or it is revoked."""
        owner = owner_of(self._user_id, user_id)
        chosen = sorted(set(scopes))
        for scope in chosen:
            if scope not in SCOPES:
                raise InvalidValue(f"{scope!r} is no scope; use one of {', '.join(SCOPES)}")
        key_id, secret = f"{ambient.random_bits(64):016x}", ambient.random_token()
        sql = """
            INSERT INTO {s}api_keys (key_id, user_id, secret_hash, scopes, created_at, expires_at)
            VALUES ($1, $2, $3, $4, {now}, {now} + CAST($5 AS bigint))
            ON CONFLICT (key_id) DO NOTHING
            RETURNING key_id
        """
        await self._store.change(sql, key_id, owner, hash_token(secret), " ".join(chosen), _lifetime_us(lifetime))
        return NewApiKey(text=f"hf_{key_id}_{secret}", key=_api_key((await self._row(key_id))[0]))

    async def verify(self, text: str) -> ApiKey | None:
        """The key that this text is; None if there is none, or it was revoked, or its time is over."""
        found = _KEY.fullmatch(text)
        rows = await self._row(found[1] if found else "")
        # Whether the id or the secret is wrong takes the same comparison.
        kept = rows[0][-1] if rows else hash_token("")
        matches = hmac.compare_digest(kept, hash_token(found[2] if found else "no key"))
        if not rows or not matches:
            return None
        key, now = _api_key(rows[0]), from_us(await self._store.now())
        if key.revoked_at is not None or (key.expires_at is not None and key.expires_at <= now):
            return None
        await self._note_use(key, now)
        return key

    async def revoke(self, key_id: str) -> ApiKey:
        """From now on the key opens nothing. Once more changes nothing."""
        owned = "" if self._user_id is None else "AND user_id = $2"
        sql = f"""
            UPDATE {{s}}api_keys SET revoked_at = coalesce(revoked_at, {{now}})
            WHERE key_id = $1 {owned}
            RETURNING {_COLUMNS}
        """
        rows = await self._store.change(sql, str(key_id), *([] if self._user_id is None else [self._user_id]))
        if not rows:
            raise NotFound(f"there is no API key {key_id}")
        return _api_key(rows[0])

    async def _row(self, key_id: str) -> list[Row]:
        return await self._store.fetch(f"SELECT {_COLUMNS}, secret_hash FROM {{s}}api_keys WHERE key_id = $1", key_id)

    async def _note_use(self, key: ApiKey, now: datetime) -> None:
        """Write when the key was used, at most once a minute: most requests must not write."""
        if key.last_used_at is not None and to_us(now) - to_us(key.last_used_at) < USED_EVERY_US:
            return
        sql = """
            UPDATE {s}api_keys SET last_used_at = {now}
            WHERE key_id = $1 AND (last_used_at IS NULL OR last_used_at <= {now} - $2)
            RETURNING key_id
        """
        await self._store.change(sql, key.key_id, USED_EVERY_US)

    async def list(self, user_id: str | None = None) -> list[ApiKey]:
        """Keys by user and age, revoked ones included: of everyone, unless a user is named or asks."""
        owner = None if self._user_id is None and user_id is None else owner_of(self._user_id, user_id)
        sql = f"""
            SELECT {_COLUMNS}
            FROM {{s}}api_keys
            {"" if owner is None else "WHERE user_id = $1"}
            ORDER BY user_id, created_at, key_id
        """
        return [_api_key(row) for row in await self._store.fetch(sql, *([] if owner is None else [owner]))]


def _lifetime_us(lifetime: timedelta | None) -> int | None:
    if lifetime is None:
        return None
    if not timedelta() < lifetime <= LIFETIME_MAX:
        raise InvalidValue(f"a key lives for more than nothing and for at most {LIFETIME_MAX.days} days")
    return lifetime // timedelta(microseconds=1)


def _api_key(row: Row) -> ApiKey:
    key_id, user_id, scopes, *moments = row[:7]
    created_at, expires_at, last_used_at, revoked_at = (None if each is None else from_us(each) for each in moments)
    assert created_at is not None
    return ApiKey(
        key_id=key_id,
        user_id=user_id,
        scopes=tuple(scopes.split()),
        created_at=created_at,
        expires_at=expires_at,
        last_used_at=last_used_at,
        revoked_at=revoked_at,
    )
