"""Who is calling: nobody but the person at this machine, the holder of a key, or whom the host says it is."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import Request

from holdfast.errors import InvalidValue, Unauthorized
from holdfast.facade import Holdfast
from holdfast.http.scopes import check_scope
from holdfast.identity import check_id

Caller = Callable[[Request], Awaitable[str]]
"""Answers the id of the user who asks, or raises `Unauthorized`."""
Authenticate = Callable[[Request], Any]
"""The host's own: answers a user id, or None for nobody; may be async."""

LoggedIn = Callable[[Request], Awaitable[str | None]]

LOCAL = "local"
MODES = ("none", "token", "oidc")


def caller_of(
    hf: Holdfast, auth: str, authenticate: Authenticate | None = None, *, logged_in: LoggedIn | None = None
) -> Caller:
    """How this app finds out who asks. The host's own way, where there is one, goes before every mode.

    `logged_in` says who has logged in with a browser; in mode `oidc` that counts, and so does an API key.
    """
    if authenticate is not None:
        return _host(authenticate)
    match auth:
        case "none":
            return _anyone
        case "token":
            return _holder(hf)
        case "oidc" if logged_in is not None:
            return _person(logged_in, _holder(hf))
        case _:
            raise InvalidValue(f"auth is {auth!r}; use one of {', '.join(MODES)}, or pass authenticate=")


def _host(authenticate: Authenticate) -> Caller:
    async def ask(request: Request) -> str:
        found = authenticate(request)
        user_id = await found if inspect.isawaitable(found) else found
        if user_id is None:
            raise Unauthorized("nobody knows who is calling; sign in, then ask again")
        return check_id(user_id, "user_id")

    return ask


async def _anyone(request: Request) -> str:
    return LOCAL


def _holder(hf: Holdfast) -> Caller:
    """Whoever shows an API key, as `Authorization: Bearer …` or `X-API-Key`, that may be used for this."""

    async def ask(request: Request) -> str:
        text = _shown_key(request)
        found = None if text is None else await hf.api_keys.verify(text)
        if found is None:
            raise Unauthorized("this needs an API key that is valid: Authorization: Bearer <key>")
        check_scope(request, found)
        return check_id(found.user_id, "user_id")

    return ask


def _person(logged_in: LoggedIn, holder: Caller) -> Caller:
    """Whoever has logged in with this browser; programs show a key instead."""

    async def ask(request: Request) -> str:
        if _shown_key(request) is not None:
            return await holder(request)
        user_id = await logged_in(request)
        if user_id is None:
            raise Unauthorized("nobody has logged in with this browser; open /api/login, or show an API key")
        return user_id

    return ask


def _shown_key(request: Request) -> str | None:
    scheme, _, text = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and text.strip():
        return text.strip()
    return request.headers.get("x-api-key") or None
