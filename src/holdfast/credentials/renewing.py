"""Renewing: one request to the provider however many ask, in however many processes, and never a loop of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast import ambient
from holdfast.credentials.environment import Environment, known_provider
from holdfast.credentials.grants import Grants, Kept
from holdfast.errors import NotFound, ProviderError, ReauthRequired
from holdfast.identity import new_id
from holdfast.redaction import logger

if TYPE_CHECKING:
    from holdfast.credentials.providers import Providers

log = logger("holdfast.credentials")
EARLY_US = 60_000_000
LEASE_US = 45_000_000
"""Longer than two requests to a provider may take."""
PATIENCE_S = 60.0
LOOK_EVERY_S = 0.1


class Renewing:
    """Answers access tokens that are good for more than a minute, and has them renewed where they are not."""

    def __init__(self, grants: Grants, providers: Callable[[], Providers], environment: Environment | None) -> None:
        self._grants = grants
        self._providers = providers
        self._environment = environment
        self._under_way: dict[tuple[str, str], asyncio.Task[str]] = {}

    async def access_token(self, user_id: str, provider: str) -> str:
        """A token that works now. `NotFound` without a grant, `ReauthRequired` once only the user can help."""
        kept = await self._read(user_id, provider)
        if kept.lasts(EARLY_US):
            return self._grants.access_token(kept)
        key = (user_id, provider)
        task = self._under_way.get(key)
        if task is None:
            task = self._under_way[key] = asyncio.create_task(self._renewed(user_id, provider))
            task.add_done_callback(lambda done: self._ended(key, done))
        # Whoever gives up waiting must not end what may have used up the refresh token already.
        return await asyncio.shield(task)

    async def close(self) -> None:
        """Let what is under way end."""
        await asyncio.gather(*self._under_way.values(), return_exceptions=True)

    def _ended(self, key: tuple[str, str], task: asyncio.Task[str]) -> None:
        self._under_way.pop(key, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("no new token of %s for %s: %s", key[1], key[0], error)

    async def _renewed(self, user_id: str, provider: str) -> str:
        owner_id, deadline = new_id(), ambient.monotonic() + PATIENCE_S
        while True:
            kept = await self._read(user_id, provider)
            if kept.lasts(EARLY_US):
                return self._grants.access_token(kept)
            if kept.refresh_token is None:
                return await self._unrenewable(kept)
            if await self._grants.take(kept, owner_id, LEASE_US):
                token = await self._renew(kept, owner_id)
                if token is not None:
                    return token
            elif ambient.monotonic() >= deadline:
                text = f"somebody else has been renewing the grant of {provider} for too long; try again"
                raise ProviderError(text, code="provider_unavailable")
            else:
                await asyncio.sleep(LOOK_EVERY_S)

    async def _renew(self, kept: Kept, owner_id: str) -> str | None:
        """Ask the provider, as the holder of the lease. None: the grant was replaced meanwhile, so look again."""
        provider = known_provider(kept.grant.provider, self._environment)
        refresh_token = self._grants.refresh_token(kept)
        assert refresh_token is not None
        try:
            tokens = await self._providers().refresh(provider, refresh_token)
        except ReauthRequired:
            if await self._grants.give_up(kept, owner_id):
                raise
            return None
        except ProviderError as error:
            await self._grants.release(kept, owner_id)
            if not kept.lasts(0):
                raise
            log.warning("the token of %s is used to its end: %s", provider.name, error)
            return self._grants.access_token(kept)
        if not await self._grants.renew(kept, owner_id, tokens):
            return None
        return tokens.access_token

    async def _unrenewable(self, kept: Kept) -> str:
        """Without a refresh token the access token is good for as long as it lasts."""
        if kept.lasts(0):
            return self._grants.access_token(kept)
        await self._grants.give_up(kept)
        raise _lost(kept)

    async def _read(self, user_id: str, provider: str) -> Kept:
        kept = await self._grants.read(user_id, provider)
        if kept is None:
            raise NotFound(f"{user_id} has granted us nothing at {provider}; connect it first", code="not_connected")
        if kept.grant.status != "connected":
            raise _lost(kept)
        return kept


def _lost(kept: Kept) -> ReauthRequired:
    return ReauthRequired(
        f"{kept.grant.provider} no longer honours what {kept.grant.user_id} granted; connect it again"
    )
