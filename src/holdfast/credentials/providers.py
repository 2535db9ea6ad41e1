"""Talking to OAuth providers: what they say of themselves, codes for tokens, new tokens for old, and who a token names.

Authlib speaks to the token endpoint, joserfc checks signatures; both need the `server` extra. Nothing here is kept
beyond a cache: what a provider granted is for the rows.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode, urlsplit

import httpx2
import msgspec
from authlib.integrations.base_client import OAuthError
from authlib.integrations.httpx_client import AsyncOAuth2Client
from joserfc import jwt
from joserfc.errors import InvalidKeyIdError, JoseError
from joserfc.jwk import KeySet

from holdfast import ambient
from holdfast.credentials.environment import Provider
from holdfast.credentials.grants import Tokens
from holdfast.errors import AddressRefused, ProviderError, ReauthRequired
from holdfast.outbound import Gate
from holdfast.outbound.client import TIMEOUT_S, options

METADATA_TTL_S = 3_600.0
LEEWAY_S = 60
LIFETIME_S_MAX = 10 * 365 * 86_400
ALGORITHMS = ("RS256", "PS256", "ES256", "RS384", "PS384", "ES384", "RS512", "PS512", "ES512", "Ed25519", "EdDSA")
"""Signatures that only the provider can make. Never `none`, never a shared secret."""
TEXT_MAX = 300
_OPENAI = "https://api.openai.com/auth"


class Metadata(msgspec.Struct, frozen=True):
    """What a provider says of itself (OpenID discovery, RFC 8414)."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str | None = None
    revocation_endpoint: str | None = None
    token_endpoint_auth_methods_supported: tuple[str, ...] = ("client_secret_basic",)
    id_token_signing_alg_values_supported: tuple[str, ...] = ("RS256",)
    authorization_response_iss_parameter_supported: bool = False


class Providers:
    """Every provider, asked through one gate. What they say of themselves is remembered for an hour."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._metadata: dict[str, tuple[Metadata, float]] = {}
        self._keys: dict[str, tuple[KeySet, float]] = {}

    async def metadata(self, provider: Provider) -> Metadata:
        """What the provider says of itself; `ProviderError` if it says it is another."""
        known = self._metadata.get(provider.issuer)
        if known is not None and ambient.monotonic() - known[1] < METADATA_TTL_S:
            return known[0]
        found = await self._discover(provider)
        self._metadata[provider.issuer] = (found, ambient.monotonic())
        return found

    async def authorization_url(
        self, provider: Provider, *, state: str, verifier: str, nonce: str, redirect_uri: str
    ) -> str:
        """Where to send the browser. The verifier goes along as its S256 challenge only."""
        endpoint = (await self.metadata(provider)).authorization_endpoint
        asked = {
            **provider.params,
            "response_type": "code",
            "client_id": provider.client_id,
            "redirect_uri": redirect_uri,
            "scope": provider.scopes,
            "state": state,
            "code_challenge": challenge(verifier),
            "code_challenge_method": "S256",
            **({"nonce": nonce} if _is_openid(provider) else {}),
        }
        return f"{endpoint}{'&' if urlsplit(endpoint).query else '?'}{urlencode(asked)}"

    async def exchange(
        self, provider: Provider, *, code: str, verifier: str, redirect_uri: str, nonce: str
    ) -> tuple[Tokens, Mapping[str, Any]]:
        """The tokens for a code, once, and the claims of the id token, which was checked; none if there is none."""
        answer = await self._ask(
            provider,
            lambda client, url: client.fetch_token(
                url, grant_type="authorization_code", code=code, code_verifier=verifier, redirect_uri=redirect_uri
            ),
        )
        claims: Mapping[str, Any] = {}
        if _is_openid(provider) and "id_token" in answer:
            claims = await self._claims(provider, str(answer["id_token"]), nonce)
        return _tokens(provider, answer, claims), claims

    async def refresh(self, provider: Provider, refresh_token: str) -> Tokens:
        """New tokens for a refresh token. `ReauthRequired` if the provider does not honour it any more.

        A request whose answer was lost is sent once more: a provider that has rotated and is strict refuses it then.
        """
        for last in (False, True):
            try:
                answer = await self._ask(
                    provider, lambda client, url: client.refresh_token(url, refresh_token=refresh_token)
                )
                return _tokens(provider, answer, {})
            except ProviderError as error:
                if last or error.code != "provider_unavailable":
                    raise
        raise AssertionError("the second try answers or raises")

    async def revoke(self, provider: Provider, token: str) -> None:
        """Ask the provider to forget a grant (RFC 7009), if it can be asked."""
        endpoint = (await self.metadata(provider)).revocation_endpoint
        if endpoint is None:
            return
        body = {"token": token, "token_type_hint": "refresh_token", "client_id": provider.client_id}
        async with httpx2.AsyncClient(**options(self._gate)) as client:
            if provider.client_secret is not None:
                client.auth = (provider.client_id, provider.client_secret)
            await self._in_time(provider, client.post(endpoint, data=body))

    async def _ask(self, provider: Provider, ask: Any) -> dict[str, Any]:
        """What the token endpoint answers, or `ProviderError` without a word of what was sent."""
        metadata = await self.metadata(provider)
        client = AsyncOAuth2Client(
            client_id=provider.client_id,
            client_secret=provider.client_secret,
            token_endpoint_auth_method=_method(provider, metadata),
            **options(self._gate),
        )
        async with client:
            try:
                return dict(await self._in_time(provider, ask(client, metadata.token_endpoint)))
            except OAuthError as error:
                raise _refusal(provider, error) from None
            except (OverflowError, TypeError, ValueError) as error:
                raise ProviderError(f"{provider.name} answered something that is no token") from error

    async def _discover(self, provider: Provider) -> Metadata:
        issuer = provider.issuer.rstrip("/")
        parts = urlsplit(issuer)
        openid = f"{issuer}/.well-known/openid-configuration"
        plain = f"{parts.scheme}://{parts.netloc}/.well-known/oauth-authorization-server{parts.path}"
        answer = await self._get(provider, openid)
        if answer.status_code == 404:
            answer = await self._get(provider, plain)
        found: Metadata = self._decoded(provider, answer, Metadata)
        if found.issuer != provider.issuer:
            raise ProviderError(
                f"{provider.issuer} says that it is {found.issuer[:TEXT_MAX]}; "
                f"write HOLDFAST_OAUTH_{provider.name.upper()}_ISSUER as the provider does"
            )
        places = (found.authorization_endpoint, found.token_endpoint, found.jwks_uri, found.revocation_endpoint)
        if any(place is not None and urlsplit(place).scheme not in ("https", parts.scheme) for place in places):
            raise ProviderError(f"{provider.issuer} names addresses that are not as safe as its own")
        return found

    async def _claims(self, provider: Provider, token: str, nonce: str) -> Mapping[str, Any]:
        """The claims of an id token that this provider signed for us and for this very handshake."""
        metadata = await self.metadata(provider)
        algorithms = [each for each in metadata.id_token_signing_alg_values_supported if each in ALGORITHMS]
        rules = jwt.JWTClaimsRegistry(
            now=ambient.wall_us() // 1_000_000,
            leeway=LEEWAY_S,
            iss={"essential": True, "value": metadata.issuer},
            aud={"essential": True, "value": provider.client_id},
            exp={"essential": True},
            sub={"essential": True},
            nonce={"essential": True, "value": nonce},
        )
        try:
            try:
                decoded = jwt.decode(token, await self._key_set(provider, metadata), algorithms=algorithms)
            except InvalidKeyIdError:
                # The provider may have new keys since we asked.
                self._keys.pop(metadata.issuer, None)
                decoded = jwt.decode(token, await self._key_set(provider, metadata), algorithms=algorithms)
            rules.validate(decoded.claims)
        except (JoseError, ValueError) as error:
            text = f"the id token of {provider.name} is not to be trusted: {error}"
            raise ProviderError(text[:TEXT_MAX], code="invalid_id_token") from error
        if decoded.claims.get("azp", provider.client_id) != provider.client_id:
            raise ProviderError(f"the id token of {provider.name} is for another client", code="invalid_id_token")
        return decoded.claims

    async def _key_set(self, provider: Provider, metadata: Metadata) -> KeySet:
        known = self._keys.get(metadata.issuer)
        if known is not None and ambient.monotonic() - known[1] < METADATA_TTL_S:
            return known[0]
        if metadata.jwks_uri is None:
            raise ProviderError(f"{provider.name} signs tokens and does not say with which keys")
        found = self._decoded(provider, await self._get(provider, metadata.jwks_uri), dict[str, Any])
        try:
            keys = KeySet.import_key_set(found)
        except (JoseError, KeyError, TypeError, ValueError) as error:
            raise ProviderError(f"the keys of {provider.name} cannot be read") from error
        self._keys[metadata.issuer] = (keys, ambient.monotonic())
        return keys

    async def _get(self, provider: Provider, url: str) -> httpx2.Response:
        async with httpx2.AsyncClient(**options(self._gate)) as client:
            answer: httpx2.Response = await self._in_time(provider, client.get(url))
            return answer

    async def _in_time(self, provider: Provider, request: Any) -> Any:
        try:
            async with asyncio.timeout(TIMEOUT_S):
                return await request
        except AddressRefused as error:
            raise ProviderError(f"{provider.name} is not to be reached: {error}", code="address_refused") from error
        except (httpx2.HTTPError, TimeoutError) as error:
            text = f"{provider.name} cannot be reached: {type(error).__name__}; try again later"
            raise ProviderError(text, code="provider_unavailable") from error

    def _decoded(self, provider: Provider, answer: httpx2.Response, kind: type[Any]) -> Any:
        if answer.status_code != 200:
            text = f"{provider.name} answered {answer.status_code} where it should describe itself"
            raise ProviderError(text, code="provider_unavailable" if answer.status_code >= 500 else "provider_error")
        try:
            return msgspec.json.decode(answer.content, type=kind)
        except msgspec.DecodeError as error:
            raise ProviderError(f"what {provider.name} says of itself cannot be read: {error}") from error


def challenge(verifier: str) -> str:
    """The S256 challenge of a PKCE verifier."""
    return base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).decode().rstrip("=")


def _is_openid(provider: Provider) -> bool:
    return "openid" in provider.scopes.split()


def _method(provider: Provider, metadata: Metadata) -> str:
    if provider.client_secret is None:
        return "none"
    known = metadata.token_endpoint_auth_methods_supported
    return "client_secret_post" if "client_secret_basic" not in known else "client_secret_basic"


def _refusal(provider: Provider, error: OAuthError) -> ProviderError:
    said = str(error.description or error.error)[:TEXT_MAX]
    if error.error == "invalid_grant":
        return ReauthRequired(f"{provider.name} no longer honours its grant: {said}")
    return ProviderError(f"{provider.name} refused: {said}")


def _tokens(provider: Provider, answer: Mapping[str, Any], claims: Mapping[str, Any]) -> Tokens:
    access, kind = answer.get("access_token"), str(answer.get("token_type", "bearer"))
    if not isinstance(access, str) or not access or kind.lower() != "bearer":
        raise ProviderError(f"{provider.name} gave no bearer token")
    refresh = answer.get("refresh_token")
    return Tokens(
        access_token=access,
        refresh_token=refresh if isinstance(refresh, str) and refresh else None,
        lifetime_s=_seconds(answer.get("expires_in")),
        scope=str(answer.get("scope") or provider.scopes),
        account_id=_account_id(claims),
    )


def _seconds(value: object) -> int | None:
    """A lifetime, which some providers write as a text; None where none is said."""
    try:
        return min(max(int(float(value)), 0), LIFETIME_S_MAX) if isinstance(value, int | float | str) else None
    except (ValueError, OverflowError):
        return None


def _account_id(claims: Mapping[str, Any]) -> str | None:
    """Whose account a token is for: what OpenAI calls it, or the subject."""
    nested = claims.get(_OPENAI)
    places = (nested if isinstance(nested, Mapping) else {}, claims)
    found = next((place["chatgpt_account_id"] for place in places if "chatgpt_account_id" in place), claims.get("sub"))
    return str(found) if found else None
