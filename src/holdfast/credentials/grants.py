"""Grants: what a provider has given us for a user, a row each, sealed. Who may ask for new tokens is decided there too.

A grant is renewed by the one who holds its lease, with the version that was read: everybody else waits and reads again,
in whatever process. Nothing waits inside a transaction.
"""

from __future__ import annotations

from datetime import datetime

import msgspec

from holdfast.credentials.vault import ACCESS_TOKEN, REFRESH_TOKEN, Vault
from holdfast.errors import Conflict
from holdfast.moments import from_us
from holdfast.protocol.state import RunState
from holdfast.store import Row, Store

_COLUMNS = (
    *("user_id", "provider", "status", "access_token", "refresh_token", "scope", "account_id", "expires_at", "version"),
    *("created_at", "updated_at"),
)
_CHOSEN = ", ".join(_COLUMNS)
LOSSES_MAX = 20
# Only on the version that was read: a statement that was lost on its way must not undo what came after it.
_PUT = """
    INSERT INTO {s}credentials AS old (
        user_id, provider, status, access_token, refresh_token, scope, account_id, expires_at, version, created_at,
        updated_at
    )
    VALUES ($1, $2, 'connected', $3, $4, $5, $6, {now} + CAST($7 AS bigint), CAST($8 AS bigint) + 1, {now}, {now})
    ON CONFLICT (user_id, provider) DO UPDATE
    SET status = excluded.status, access_token = excluded.access_token, refresh_token = excluded.refresh_token,
        scope = excluded.scope, account_id = excluded.account_id, expires_at = excluded.expires_at,
        version = excluded.version, owner_id = NULL, lease_until = NULL, updated_at = excluded.updated_at
    WHERE old.version = $8
    RETURNING version
"""


class Tokens(msgspec.Struct, frozen=True, kw_only=True):
    """What a provider gave, in clear. Lives in memory only."""

    access_token: str
    refresh_token: str | None
    lifetime_s: int | None
    scope: str
    account_id: str | None

    def __repr__(self) -> str:
        return f"Tokens(scope={self.scope!r}, lifetime_s={self.lifetime_s})"


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """A grant without its tokens. `version` grows with every change of them."""

    user_id: str
    provider: str
    status: str
    scope: str
    account_id: str | None
    expires_at: datetime | None
    version: int
    created_at: datetime
    updated_at: datetime


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """A grant as it stands in its row, the tokens sealed, and the clock of the moment it was read."""

    grant: Grant
    access_token: str
    refresh_token: str | None
    expires_at: int | None
    now: int

    def lasts(self, us: int) -> bool:
        """Is the access token good for longer than this?"""
        return self.expires_at is None or self.expires_at - self.now > us


class Grants:
    """The rows of `credentials`."""

    def __init__(self, store: Store[RunState], vault: Vault) -> None:
        self._store = store
        self.vault = vault

    async def read(self, user_id: str, provider: str) -> Kept | None:
        sql = f"SELECT {_CHOSEN} FROM {{s}}credentials WHERE user_id = $1 AND provider = $2"
        rows = await self._store.fetch(sql, user_id, provider)
        return _kept(rows[0], await self._store.now()) if rows else None

    def access_token(self, kept: Kept) -> str:
        user_id, provider = kept.grant.user_id, kept.grant.provider
        return self.vault.open(kept.access_token, ACCESS_TOKEN, user_id, provider, user_id=user_id)

    def refresh_token(self, kept: Kept) -> str | None:
        user_id, provider = kept.grant.user_id, kept.grant.provider
        if kept.refresh_token is None:
            return None
        return self.vault.open(kept.refresh_token, REFRESH_TOKEN, user_id, provider, user_id=user_id)

    async def put(self, user_id: str, provider: str, tokens: Tokens) -> Grant:
        """Keep what the user has just granted, in place of whatever was there. A renewal under way comes too late."""
        access, refresh = self._sealed(user_id, provider, tokens)
        told = (user_id, provider, access, refresh, tokens.scope, tokens.account_id, _lifetime_us(tokens))
        for _ in range(LOSSES_MAX):
            before = await self.read(user_id, provider)
            await self._store.change(_PUT, *told, 0 if before is None else before.grant.version)
            after = await self.read(user_id, provider)
            # No sealed text is made twice: if it stands there it is ours, whatever became of the answer.
            if after is not None and after.access_token == access:
                return after.grant
        raise Conflict(f"the grant of {provider} is replaced by others all the time; try again", code="version_changed")

    async def take(self, kept: Kept, owner_id: str, lease_us: int) -> bool:
        """Become the one who renews this version; False while someone else is, or it is no longer the version."""
        sql = """
            UPDATE {s}credentials
            SET owner_id = $4, lease_until = {now} + $5
            WHERE user_id = $1 AND provider = $2 AND version = $3 AND status = 'connected'
              AND (lease_until IS NULL OR lease_until <= {now} OR owner_id = $4)
            RETURNING version
        """
        return bool(await self._store.change(sql, *_key(kept), owner_id, lease_us))

    async def release(self, kept: Kept, owner_id: str) -> None:
        """Let others try."""
        sql = """
            UPDATE {s}credentials SET owner_id = NULL, lease_until = NULL
            WHERE user_id = $1 AND provider = $2 AND version = $3 AND owner_id = $4
            RETURNING version
        """
        await self._store.change(sql, *_key(kept), owner_id)

    async def renew(self, kept: Kept, owner_id: str, tokens: Tokens) -> bool:
        """Keep the new tokens; False if the grant was replaced or removed meanwhile.

        A provider that gives no new refresh token means the old one to be used again.
        """
        sql = """
            UPDATE {s}credentials
            SET access_token = $5, refresh_token = coalesce($6, refresh_token), scope = $7,
                account_id = coalesce($8, account_id), expires_at = {now} + CAST($9 AS bigint), version = version + 1,
                owner_id = NULL, lease_until = NULL, updated_at = {now}
            WHERE user_id = $1 AND provider = $2 AND version = $3 AND owner_id = $4
            RETURNING version
        """
        access, refresh = self._sealed(kept.grant.user_id, kept.grant.provider, tokens)
        told = (access, refresh, tokens.scope, tokens.account_id, _lifetime_us(tokens))
        if await self._store.change(sql, *_key(kept), owner_id, *told):
            return True
        # No sealed text is made twice: if it stands there, an answer was lost and the tokens were not.
        found = await self.read(kept.grant.user_id, kept.grant.provider)
        return found is not None and found.access_token == access

    async def give_up(self, kept: Kept, owner_id: str = "") -> bool:
        """Mark this version as no longer honoured; False if it is another by now, or another's. Nothing is deleted."""
        sql = """
            UPDATE {s}credentials
            SET status = 'reauth_required', owner_id = NULL, lease_until = NULL, version = version + 1,
                updated_at = {now}
            WHERE user_id = $1 AND provider = $2 AND version = $3 AND coalesce(owner_id, '') = $4
            RETURNING version
        """
        return bool(await self._store.change(sql, *_key(kept), owner_id))

    async def remove(self, user_id: str, provider: str) -> None:
        sql = "DELETE FROM {s}credentials WHERE user_id = $1 AND provider = $2 RETURNING version"
        await self._store.change(sql, user_id, provider)

    def _sealed(self, user_id: str, provider: str, tokens: Tokens) -> tuple[str, str | None]:
        key = (user_id, provider)
        access = self.vault.seal(tokens.access_token, ACCESS_TOKEN, *key, user_id=user_id)
        if tokens.refresh_token is None:
            return access, None
        return access, self.vault.seal(tokens.refresh_token, REFRESH_TOKEN, *key, user_id=user_id)

    async def list(self, user_id: str) -> list[Grant]:
        sql = f"SELECT {_CHOSEN} FROM {{s}}credentials WHERE user_id = $1 ORDER BY provider"
        return [_kept(row, 0).grant for row in await self._store.fetch(sql, user_id)]


def _key(kept: Kept) -> tuple[str, str, int]:
    return kept.grant.user_id, kept.grant.provider, kept.grant.version


def _lifetime_us(tokens: Tokens) -> int | None:
    return None if tokens.lifetime_s is None else tokens.lifetime_s * 1_000_000


def _kept(row: Row, now: int) -> Kept:
    values = dict(zip(_COLUMNS, row, strict=True))
    expires_at = values["expires_at"]
    return Kept(
        grant=Grant(
            user_id=values["user_id"],
            provider=values["provider"],
            status=values["status"],
            scope=values["scope"],
            account_id=values["account_id"],
            expires_at=None if expires_at is None else from_us(expires_at),
            version=values["version"],
            created_at=from_us(values["created_at"]),
            updated_at=from_us(values["updated_at"]),
        ),
        access_token=values["access_token"],
        refresh_token=values["refresh_token"],
        expires_at=expires_at,
        now=now,
    )
