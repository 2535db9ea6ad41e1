"""`hf.credentials`: what providers have granted to users, and access tokens that work."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast.credentials.environment import Environment, Site, gate_of, known_provider, profile_of
from holdfast.credentials.grants import Grant, Grants, Tokens
from holdfast.credentials.owners import owner
from holdfast.credentials.renewing import Renewing
from holdfast.credentials.vault import Rotation, Vault
from holdfast.errors import HoldfastError, Misconfigured, NotFound, ProviderError, SealError
from holdfast.identity import check_id
from holdfast.outbound import Gate
from holdfast.redaction import logger

if TYPE_CHECKING:
    from holdfast.credentials.providers import Providers

log = logger("holdfast.credentials")
ACCOUNT_HEADER = "ChatGPT-Account-Id"


class Office:
    """What all users of one runtime share: the vault, the rows, the providers, and the renewals under way."""

    def __init__(self, vault: Vault, grants: Grants, environment: Environment | None = None) -> None:
        self.vault = vault
        self.grants = grants
        self.environment = environment
        self.renewing = Renewing(grants, lambda: self.providers, environment)
        self._providers: Providers | None = None

    @property
    def providers(self) -> Providers:
        """Made when first needed, because its libraries are an extra."""
        if self._providers is None:
            self._providers = _make_providers()(gate_of(self.environment))
        return self._providers

    def site(self, url: str | None = None) -> Site:
        """Where we are, for whoever serves browsers. In the prod profile it refuses to serve without a key."""
        self.check_key()
        return Site.of_environment(self.environment, url=url)

    def check_key(self) -> None:
        """Raise, in the prod profile, where the host has no key to seal secrets with."""
        if profile_of(self.environment) == "prod":
            _ = self.vault.ring


class Credentials:
    """The grants of all users, or of the one who asks."""

    def __init__(self, office: Office, user_id: str | None = None) -> None:
        self._office = office
        self._user_id = user_id

    async def access_token(self, provider: str, user_id: str | None = None) -> str:
        """A token that is good for more than a minute, renewed first where it is not.

        However many ask at once, in however many processes, the provider is asked once. Raises `NotFound`
        (`not_connected`) without a grant, and `ReauthRequired` once the provider no longer honours it.
        """
        return await self._office.renewing.access_token(owner(self._user_id, user_id), provider)

    async def headers(self, provider: str, user_id: str | None = None) -> dict[str, str]:
        """The headers of a request in the user's name: the token, and their account if the provider told it."""
        user = owner(self._user_id, user_id)
        token = await self.access_token(provider, user)
        grant = await self.get(provider, user)
        account = {} if grant is None or grant.account_id is None else {ACCOUNT_HEADER: grant.account_id}
        return {"Authorization": f"Bearer {token}", **account}

    async def get(self, provider: str, user_id: str | None = None) -> Grant | None:
        """The grant without its tokens; None if there is none."""
        kept = await self._office.grants.read(owner(self._user_id, user_id), provider)
        return None if kept is None else kept.grant

    async def list(self, user_id: str | None = None) -> list[Grant]:
        """All grants of a user, by provider."""
        return await self._office.grants.list(owner(self._user_id, user_id))

    async def put(self, provider: str, tokens: Tokens, user_id: str | None = None) -> Grant:
        """Keep what a provider has granted, in place of what was there."""
        return await self._office.grants.put(owner(self._user_id, user_id), check_id(provider, "provider"), tokens)

    async def disconnect(self, provider: str, user_id: str | None = None) -> bool:
        """Forget a grant; False if there is none. The provider is told, as far as it listens."""
        user = owner(self._user_id, user_id)
        kept = await self._office.grants.read(user, provider)
        if kept is None:
            return False
        await self._office.grants.remove(user, provider)
        try:
            token = self._office.grants.refresh_token(kept) or self._office.grants.access_token(kept)
            await self._office.providers.revoke(known_provider(provider, self._office.environment), token)
        except (ProviderError, NotFound, SealError, Misconfigured) as error:
            log.warning("%s was not told that %s has disconnected: %s", provider, user, error)
        return True

    async def check(self) -> None:
        """Raise `SealError` if a secret is kept under a key that this host does not have. For the start of a server."""
        await self._office.vault.check()

    async def rotate(self) -> Rotation:
        """Seal every secret anew with the first key of the ring."""
        return await self._office.vault.rotate()


def _make_providers() -> Callable[[Gate], Providers]:
    try:
        from holdfast.credentials.providers import Providers  # noqa: PLC0415  # its libraries are an extra
    except ModuleNotFoundError as error:
        text = f"OAuth needs {error.name}: pip install 'holdfast[server]'"
        raise HoldfastError(text, code="extra_missing") from error
    return Providers
