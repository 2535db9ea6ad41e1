"""Handshakes: an authorization from its beginning to its end, wherever the browser comes back to.

What must be remembered in between is a row: the state as a hash, the browser as a hash, the verifier sealed. Whoever
ends a handshake takes the row out in the same statement that reads it, so it ends once, in time, or not at all.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from holdfast import ambient
from holdfast.credentials.credentials import Office
from holdfast.credentials.environment import Provider
from holdfast.credentials.grants import Tokens
from holdfast.credentials.vault import CODE_VERIFIER
from holdfast.errors import HandshakeRefused, InvalidValue
from holdfast.identity import hash_token
from holdfast.protocol.state import RunState
from holdfast.store import Store

Purpose = Literal["connect", "login"]
TTL_US = 600_000_000
VERIFIER_BYTES = 48
TEXT_MAX = 300
_PATH = re.compile(r"/(?![/\\])[!-\[\]-~]{0,511}")
_STALE = "this authorization is unknown, was used before, or took too long; start again"


class Begun(NamedTuple):
    """Where to send the browser, and what it must bring back in its cookie."""

    url: str
    browser: str


class Ended(NamedTuple):
    """An authorization that ended as it began. `claims` are those of the id token, if there was one."""

    user_id: str
    provider: str
    tokens: Tokens
    claims: Mapping[str, Any]
    return_to: str | None


class _State(NamedTuple):
    purpose: str
    user_id: str
    provider: str
    browser_hash: str
    code_verifier: str
    nonce: str
    redirect_uri: str
    return_to: str | None


class Handshakes:
    """Begins and ends authorizations of one purpose."""

    def __init__(self, store: Store[RunState], office: Office, purpose: Purpose) -> None:
        self._store = store
        self._office = office
        self._purpose = purpose

    async def begin(
        self, provider: Provider, *, redirect_uri: str, user_id: str, browser: str | None, return_to: str | None
    ) -> Begun:
        """Remember a new handshake for ten minutes. `browser` is what its cookie holds already, if it has one."""
        path = None if return_to is None else checked_path(return_to)
        state, nonce = ambient.random_token(), ambient.random_token()
        verifier = f"{ambient.random_bits(VERIFIER_BYTES * 8):0{VERIFIER_BYTES * 2}x}"
        bound = browser if browser is not None and len(browser) == len(state) else ambient.random_token()
        url = await self._office.providers.authorization_url(
            provider, state=state, verifier=verifier, nonce=nonce, redirect_uri=redirect_uri
        )
        hashed = hash_token(state)
        sealed = self._office.vault.seal(verifier, CODE_VERIFIER, hashed, user_id=user_id)
        row = (hashed, self._purpose, user_id, provider.name, hash_token(bound), sealed, nonce, redirect_uri, path)
        await self._remember(*row)
        return Begun(url, bound)

    async def end(self, provider: Provider, answer: Mapping[str, str], *, browser: str | None) -> Ended:
        """The tokens of the handshake that this answer belongs to, or `HandshakeRefused`. Either way it is over."""
        state = await self._consume(answer.get("state") or "")
        same = browser is not None and hmac.compare_digest(hash_token(browser), state.browser_hash)
        if state.purpose != self._purpose or state.provider != provider.name or not same:
            raise HandshakeRefused(
                "this authorization was begun by another browser or for another purpose; start again"
            )
        await self._check_issuer(provider, answer.get("iss"))
        if answer.get("error"):
            said = str(answer.get("error_description") or answer["error"])[:TEXT_MAX]
            raise HandshakeRefused(f"{provider.name} refused: {said}", code="provider_refused")
        if not answer.get("code"):
            raise HandshakeRefused(f"{provider.name} sent the browser back without a code; start again")
        tokens, claims = await self._office.providers.exchange(
            provider,
            code=answer["code"],
            verifier=state.code_verifier,
            redirect_uri=state.redirect_uri,
            nonce=state.nonce,
        )
        return Ended(state.user_id, provider.name, tokens, claims, state.return_to)

    async def _remember(self, *row: str | None) -> None:
        sql = """
            INSERT INTO {s}oauth_states (
                state_hash, purpose, user_id, provider, browser_hash, code_verifier, nonce, redirect_uri, return_to,
                expires_at
            )
            VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, {now} + $10)
            ON CONFLICT (state_hash) DO NOTHING
            RETURNING state_hash
        """
        await self._store.change("DELETE FROM {s}oauth_states WHERE expires_at <= {now} RETURNING state_hash")
        await self._store.change(sql, *row, TTL_US)

    async def _consume(self, state: str) -> _State:
        hashed = hash_token(state)
        sql = f"""
            DELETE FROM {{s}}oauth_states
            WHERE state_hash = $1 AND expires_at > {{now}}
            RETURNING {", ".join(_State._fields)}
        """
        rows = await self._store.change(sql, hashed)
        if not rows:
            raise HandshakeRefused(_STALE)
        found = _State(*rows[0])
        opened = self._office.vault.open(found.code_verifier, CODE_VERIFIER, hashed, user_id=found.user_id)
        return found._replace(code_verifier=opened)

    async def _check_issuer(self, provider: Provider, issuer: str | None) -> None:
        """RFC 9207: an answer that says whose it is must be the provider's own, and one that must say so says so."""
        says_so = (await self._office.providers.metadata(provider)).authorization_response_iss_parameter_supported
        if issuer != provider.issuer and (issuer is not None or says_so):
            raise HandshakeRefused(f"this answer does not come from {provider.name}; start again", code="wrong_issuer")


def checked_path(path: str) -> str:
    """A place on our own site, or `InvalidValue`: nobody is sent elsewhere from here."""
    if not _PATH.fullmatch(path):
        raise InvalidValue("return_to must be a path of this site, such as /settings", code="invalid_return_to")
    return path
