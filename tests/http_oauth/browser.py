"""A browser with one cookie jar: our own site is an app in this process, everything else is really asked."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl, urlsplit

import httpx2
from fastapi import FastAPI
from starlette.requests import Request

from holdfast import Holdfast, HoldfastError
from holdfast.errors import Unauthorized
from holdfast.http.callers import Caller
from holdfast.http.limits import Limits
from holdfast.http.login import browser_user, login_routes
from holdfast.http.oauth import oauth_routes
from holdfast.http.problems import of_error
from holdfast.http.service import Service
from holdfast.http.settings import settings_routes

LOCAL = "http://127.0.0.1:8787"
HOPS_MAX = 10


async def named(request: Request) -> str:
    """Whoever says who they are; nobody is local."""
    user = request.headers.get("x-user", "local")
    if user == "nobody":
        raise Unauthorized("nobody knows who is calling")
    return user


def app_of(hf: Holdfast, caller: Caller = named, *, login: bool = False) -> FastAPI:
    """An app with our routes and nothing else."""
    app = FastAPI()
    app.state.holdfast = Service(hf, caller, role="api", limits=Limits())
    if login:
        site = hf.office.site()

        async def logged_in(request: Request) -> str:
            user = await browser_user(request, hf, site)
            if user is None:
                raise Unauthorized("log in first")
            return user

        caller = logged_in
        app.include_router(login_routes(hf))
    app.include_router(oauth_routes(hf, caller))
    app.include_router(settings_routes(hf, caller))
    app.add_exception_handler(HoldfastError, of_error)
    return app


class _Site(httpx2.AsyncBaseTransport):
    def __init__(self, browser: Browser) -> None:
        self._browser = browser

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        transport = httpx2.ASGITransport(self._browser.node)
        return await transport.handle_async_request(request)


class Browser:
    """Goes where it is sent. `node` is the process that answers for our site; tests may change it at any time."""

    def __init__(self, node: FastAPI, url: str = LOCAL, **headers: str) -> None:
        self.node = node
        self.url = url
        self._client = httpx2.AsyncClient(mounts={url: _Site(self)}, headers=headers, timeout=20, trust_env=False)

    async def __aenter__(self) -> Browser:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    async def get(self, path: str, **options: Any) -> httpx2.Response:
        return await self._client.get(path if "://" in path else f"{self.url}{path}", **options)

    async def send(self, method: str, path: str, **options: Any) -> httpx2.Response:
        return await self._client.request(method, f"{self.url}{path}", **options)

    def forget(self) -> None:
        """Lose all cookies, as another browser has none of them."""
        self._client.cookies.clear()

    @property
    def cookies(self) -> dict[str, str]:
        return {cookie.name: cookie.value or "" for cookie in self._client.cookies.jar}

    async def authorize(self, path: str) -> str:
        """Begin at our site, agree at the provider; answer the address that it sends us back to."""
        return await self.follow(path)

    async def follow(self, address: str) -> str:
        """Go there, and wherever we are sent, until we are sent back."""
        answer = await self.get(address)
        for _ in range(HOPS_MAX):
            assert answer.status_code in (302, 303), (answer.status_code, answer.text)
            target = answer.headers["location"]
            here = str(answer.request.url)
            target = target if "://" in target else f"{origin(here)}{target}"
            if target.startswith(self.url):
                return target
            answer = await self.get(target)
        raise AssertionError("the provider never sent us back")


def origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def query(url: str) -> dict[str, str]:
    return dict(parse_qsl(urlsplit(url).query))
