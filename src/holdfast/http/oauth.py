"""Connecting an account at an OAuth provider: the browser is sent there, and comes back to any process of ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from holdfast.credentials import Begun, Site
from holdfast.credentials.environment import known_provider
from holdfast.credentials.handshakes import TTL_US
from holdfast.errors import HandshakeRefused, ProviderError, Unauthorized
from holdfast.facade import Holdfast
from holdfast.http.browsers import cookie, is_same_site, page, private, set_cookie
from holdfast.http.callers import Caller
from holdfast.http.limits import Gate, Limits
from holdfast.http.problems import documented
from holdfast.http.routing import DistantRoute

COOKIE = "oauth"
CANONICAL, ALIAS = "/api/oauth/{provider}", "/api/settings/{provider}/oauth"
Name = Annotated[str, Path(pattern=r"^[a-z][a-z0-9_]{0,31}$", description="A provider that the server knows.")]
ReturnTo = Annotated[str | None, Query(max_length=512, description="A path of this site to end at.")]
_REFUSED = documented(401, 403, 404, 409, 422, 429, 502, 503)
_STARTED: dict[int | str, dict[str, Any]] = {302: {"description": "To the provider."}, **_REFUSED}
_ENDED: dict[int | str, dict[str, Any]] = {
    200: {"description": "Connected; the window closes itself.", "content": {"text/html": {}}},
    303: {"description": "Connected; back to where it began."},
    400: {"description": "Refused: used, unknown, late, or the provider said no.", "content": {"text/html": {}}},
    500: {"description": "The provider did not give tokens for its code.", "content": {"text/html": {}}},
    **documented(404, 409, 422, 503),
}


class Started(BaseModel):
    """Where to send the browser, for pages that ask with a key of their own."""

    url: str


def oauth_routes(hf: Holdfast, caller: Caller, *, site: Site | None = None, gate: Gate | None = None) -> APIRouter:
    """`/api/oauth/{provider}/start|callback`, and the same below `/api/settings/{provider}/oauth`.

    Raises at once where the environment does not allow it: in the prod profile without a key, or without a public
    https address.
    """
    connecting = Connecting(hf, caller, site or hf.office.site(), gate or Gate(Limits()))
    router = APIRouter(route_class=DistantRoute, tags=["oauth"])
    router.add_api_route(f"{CANONICAL}/start", connecting.ask, methods=["POST"], name="oauth_ask", responses=_REFUSED)
    told: dict[str, Any] = {"response_class": HTMLResponse}
    for name, place in (("oauth", CANONICAL), ("settings_oauth", ALIAS)):
        start, back = {"name": f"{name}_start", **told}, {"name": f"{name}_callback", **told}
        router.add_api_route(f"{place}/start", connecting.start, status_code=302, responses=_STARTED, **start)
        router.add_api_route(f"{place}/callback", connecting.callback, responses=_ENDED, **back)
    return router


class Connecting:
    """The routes, as methods."""

    def __init__(self, hf: Holdfast, caller: Caller, site: Site, gate: Gate) -> None:
        self._hf = hf
        self._caller = caller
        self._site = site
        self._gate = gate
        self._handshakes = hf.handshakes("connect")

    async def start(self, request: Request, provider: Name, return_to: ReturnTo = None) -> Response:
        """Send the browser to the provider."""
        begun = await self._begin(request, provider, return_to)
        return self._bound(RedirectResponse(begun.url, 302), begun)

    async def ask(self, request: Request, response: Response, provider: Name, return_to: ReturnTo = None) -> Started:
        """The same for a page that names its user in a header, which no navigation carries: it goes there by itself."""
        begun = await self._begin(request, provider, return_to)
        self._bound(response, begun)
        return Started(url=begun.url)

    async def callback(self, request: Request, provider: Name) -> Response:
        """Take what the provider sends the browser back with. It works once, in time, and in the same browser."""
        known = known_provider(provider)
        title = f"Connecting {provider}"
        try:
            ended = await self._handshakes.end(known, answer_of(request), browser=self._browser(request))
            await self._check_user(request, ended.user_id)
            await self._hf.credentials.put(provider, ended.tokens, ended.user_id)
        except HandshakeRefused as error:
            return page(f"{title} failed", str(error), status=400)
        except ProviderError as error:
            return page(f"{title} failed", str(error), status=500)
        if ended.return_to is not None:
            return private(RedirectResponse(f"{self._site.url}{ended.return_to}", 303))
        return page(f"{title} is done", "You can close this window.", closes=True)

    async def _begin(self, request: Request, provider: str, return_to: str | None) -> Begun:
        user_id = await self._caller(request)
        self._gate.start(user_id)
        if request.headers.get("sec-fetch-site") is not None and not is_same_site(request, self._site):
            raise Unauthorized("a page of another site cannot connect an account here", code="forbidden")
        return await self._handshakes.begin(
            known_provider(provider),
            redirect_uri=redirect_uri(self._site, provider),
            user_id=user_id,
            browser=self._browser(request),
            return_to=return_to,
        )

    def _bound(self, response: Response, begun: Begun) -> Response:
        set_cookie(response, self._site, COOKIE, begun.browser, seconds=TTL_US // 1_000_000)
        return private(response)

    def _browser(self, request: Request) -> str | None:
        return cookie(request, self._site.cookie(COOKIE))

    async def _check_user(self, request: Request, user_id: str) -> None:
        """Whoever has logged in as somebody else meanwhile did not begin this. Nobody is fine: the cookie is proof."""
        try:
            calling = await self._caller(request)
        except Unauthorized:
            return
        if calling != user_id:
            raise HandshakeRefused("this authorization was begun by another user; start again")


def redirect_uri(site: Site, provider: str) -> str:
    """Where a provider sends browsers back to: our own address as it was told, and a path of this provider alone."""
    return f"{site.url}{CANONICAL.format(provider=provider)}/callback"


def answer_of(request: Request) -> Mapping[str, str]:
    """What the provider sent along. Anything that is said twice is not believed (RFC 6749, 3.1)."""
    found = dict(request.query_params)
    if len(found) != len(request.query_params.multi_items()):
        raise HandshakeRefused("this answer says something twice; start again")
    return found
