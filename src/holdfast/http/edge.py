"""The edge of the app: what holds for every request before a route sees it, and for every answer after."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from urllib.parse import quote, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast import ambient
from holdfast.http.problems import of_accident, problem
from holdfast.http.service import UNSAFE, Service
from holdfast.identity import new_id
from holdfast.logs import request_id

# A plain logger: these lines hold no query, header or body, and looking for secrets in each would cost more than the
# request itself.
log = logging.getLogger("holdfast.access")

_REQUEST_ID = re.compile(r"[\w-]{1,64}", re.ASCII)
LENGTH_DIGITS_MAX = 18
_SAFE_SITES = frozenset({"same-origin", "none"})
PROBES = frozenset({"/livez", "/readyz", "/startupz", "/healthz"})
"""What balancers ask, by whatever name: it tells nothing to a page that renames itself."""
CSP = "; ".join(
    (
        *("default-src 'none'", "script-src 'self'", "style-src 'self'", "img-src 'self' data:", "connect-src 'self'"),
        *("font-src 'self'", "base-uri 'none'", "form-action 'self'", "frame-ancestors 'none'"),
        "require-trusted-types-for 'script'",
    )
)
_SECURITY = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Content-Security-Policy": CSP,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "DENY",
}


class Edge:
    """Names the request, refuses what is too large or sent by a foreign page, and writes down how it was answered."""

    def __init__(self, app: ASGIApp, service: Service, *, hosts: Sequence[str] | None, origins: Sequence[str]) -> None:
        self._app = app
        self._service = service
        self._hosts = None if hosts is None else frozenset(hosts)
        self._origins = frozenset(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        given = headers.get("x-request-id", "")
        name = given if _REQUEST_ID.fullmatch(given) else new_id()
        token = request_id.set(name)
        answer = _Answer(send, name)
        since = ambient.monotonic()
        try:
            refusal = self._refusal(scope, headers)
            if refusal is not None:
                await problem(Request(scope), *refusal)(scope, receive, answer.send)
            else:
                await self._app(scope, _bounded(receive, self._service.limits.body_bytes), answer.send)
        except Exception as error:
            if answer.status:
                raise
            await of_accident(Request(scope), error)(scope, receive, answer.send)
        finally:
            self._note(scope, answer, ambient.monotonic() - since)
            request_id.reset(token)

    def _refusal(self, scope: Scope, headers: Headers) -> tuple[int, str, str] | None:
        length = headers.get("content-length", "0")
        most = self._service.limits.body_bytes
        if not (length.isascii() and length.isdigit()) or len(length) > LENGTH_DIGITS_MAX or int(length) > most:
            return 413, "too_large", f"a body has at most {most} bytes"
        if not self._is_known_by(headers.get("host", "")) and scope["path"] not in PROBES:
            return 403, "forbidden", "this server is not known by that name"
        if scope["method"] in UNSAFE and not self._is_own(headers):
            return 403, "forbidden", "this was sent by a page of another site"
        return None

    def _is_known_by(self, host: str) -> bool:
        return self._hosts is None or urlsplit(f"//{host}").hostname in self._hosts

    def _is_own(self, headers: Headers) -> bool:
        """Was this sent by our own pages, or by a program? Whoever shows a key does so on purpose."""
        if "authorization" in headers or "x-api-key" in headers:
            return True
        origin = headers.get("origin")
        site = headers.get("sec-fetch-site")
        if origin is not None and origin in self._origins:
            return True
        if site is not None:
            return site in _SAFE_SITES
        if origin is not None:
            return urlsplit(origin).netloc == headers.get("host")
        return "cookie" not in headers

    def _note(self, scope: Scope, answer: _Answer, seconds: float) -> None:
        metrics = self._service.metrics
        metrics.requests.labels(scope["method"], str(answer.status)).inc()
        if not answer.is_stream:
            metrics.seconds.observe(seconds)
        about = {**scope.get("path_params", {}), "user_id": scope.get("state", {}).get("user_id")}
        names = {name: about[name] for name in ("run_id", "session_id", "user_id") if about.get(name)}
        told = (scope["method"], quote(scope["path"], safe="/:@"), answer.status, round(seconds * 1_000))
        log.info("%s %s %s in %d ms", *told, extra={**names, "request_id": answer.request_id})


class _Answer:
    """Adds to every answer what all have, and remembers its status."""

    def __init__(self, send: Send, request_id: str) -> None:
        self._send = send
        self.request_id = request_id
        self.status = 0
        self.is_stream = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            self.is_stream = headers.get("content-type", "").startswith("text/event-stream")
            headers["X-Request-ID"] = self.request_id
            headers.setdefault("Cache-Control", "no-store")
            for name, value in _SECURITY.items():
                headers.setdefault(name, value)
        await self._send(message)


class TooLarge(Exception):
    """More came than was announced, or than is allowed."""


def _bounded(receive: Receive, most: int) -> Receive:
    """The same messages, as long as the body stays below its limit: a length may be missing or a lie."""
    taken = 0

    async def bounded() -> Message:
        nonlocal taken
        message = await receive()
        taken += len(message.get("body", b""))
        if taken > most:
            raise TooLarge
        return message

    return bounded
