"""Logging in through an OpenID provider, and the browser session that follows."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response

from holdfast.credentials import Provider, Site, login_provider
from holdfast.credentials.browser_sessions import ABSOLUTE_US
from holdfast.credentials.handshakes import TTL_US, checked_path
from holdfast.credentials.logins import user_of
from holdfast.errors import HandshakeRefused, ProviderError, Unauthorized
from holdfast.facade import Holdfast
from holdfast.http.browsers import clear_cookie, cookie, is_same_site, page, private, set_cookie
from holdfast.http.limits import Gate, Limits
from holdfast.http.oauth import ReturnTo, answer_of
from holdfast.http.problems import documented
from holdfast.http.routing import DistantRoute

SESSION, BINDING = "session", "login"
LOGIN, CALLBACK, LOGOUT = "/api/login", "/api/login/callback", "/api/logout"
_STARTED: dict[int | str, dict[str, Any]] = {
    302: {"description": "To the provider."},
    **documented(409, 422, 429, 502, 503),
}
_ENDED: dict[int | str, dict[str, Any]] = {
    303: {"description": "Logged in; back to where it began."},
    400: {"description": "Refused: used, unknown, late, or not allowed.", "content": {"text/html": {}}},
    500: {"description": "The provider did not say who it is.", "content": {"text/html": {}}},
    **documented(409, 503),
}


async def browser_user(request: Request, hf: Holdfast, site: Site | None = None) -> str | None:
    """Who has logged in with this browser; None if nobody has, or not lately."""
    session = cookie(request, (site or Site.of_environment()).cookie(SESSION))
    return None if session is None else await hf.browser_sessions.user_of(session)


def login_routes(hf: Holdfast, *, site: Site | None = None, gate: Gate | None = None) -> APIRouter:
    """`/api/login`, its callback, and `/api/logout`. Raises at once where the environment does not allow it."""
    door = Door(hf, login_provider(), site or hf.office.site(), gate or Gate(Limits()))
    router = APIRouter(route_class=DistantRoute, tags=["login"])
    told: dict[str, Any] = {"response_class": HTMLResponse}
    router.add_api_route(LOGIN, door.login, status_code=302, responses=_STARTED, **told)
    router.add_api_route(CALLBACK, door.callback, status_code=303, responses=_ENDED, **told)
    router.add_api_route(LOGOUT, door.logout, methods=["POST"], responses=documented(403, 422))
    return router


class Door:
    """The routes, as methods."""

    def __init__(self, hf: Holdfast, provider: Provider, site: Site, gate: Gate) -> None:
        self._hf = hf
        self._provider = provider
        self._site = site
        self._gate = gate
        self._handshakes = hf.handshakes("login")

    async def login(self, request: Request, return_to: ReturnTo = None) -> Response:
        """Send the browser to the provider that knows people."""
        self._gate.start(request.client.host if request.client else "")
        begun = await self._handshakes.begin(
            self._provider,
            redirect_uri=f"{self._site.url}{CALLBACK}",
            user_id="",
            browser=cookie(request, self._site.cookie(BINDING)),
            return_to=checked_path(return_to or "/"),
        )
        answer = private(RedirectResponse(begun.url, 302))
        set_cookie(answer, self._site, BINDING, begun.browser, seconds=TTL_US // 1_000_000)
        return answer

    async def callback(self, request: Request) -> Response:
        """Begin a session for whom the provider names. The session that the browser had before is over."""
        try:
            browser = cookie(request, self._site.cookie(BINDING))
            ended = await self._handshakes.end(self._provider, answer_of(request), browser=browser)
            if not ended.claims:
                raise ProviderError(f"{self._provider.name} does not say who logs in; ask for the scope openid")
            user_id = user_of(ended.claims)
        except HandshakeRefused as error:
            return page("Login failed", str(error), status=400)
        except ProviderError as error:
            return page("Login failed", str(error), status=500)
        session = await self._hf.browser_sessions.begin(user_id, replaced=self._session(request))
        answer = private(RedirectResponse(f"{self._site.url}{ended.return_to or '/'}", 303))
        set_cookie(answer, self._site, SESSION, session, seconds=ABSOLUTE_US // 1_000_000)
        return answer

    async def logout(self, request: Request, everywhere: Annotated[bool, Query()] = False) -> Response:
        """End this browser's session, or all sessions of its user."""
        if not is_same_site(request, self._site):
            raise Unauthorized("a page of another site cannot log you out", code="forbidden")
        session, user_id = self._session(request), await browser_user(request, self._hf, self._site)
        if session is not None:
            await self._hf.browser_sessions.end(session)
        if everywhere and user_id is not None:
            await self._hf.browser_sessions.end_all(user_id)
        answer = private(JSONResponse({"ok": True}))
        clear_cookie(answer, self._site, SESSION)
        return answer

    def _session(self, request: Request) -> str | None:
        return cookie(request, self._site.cookie(SESSION))
