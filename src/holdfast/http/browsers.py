"""What browsers bring and get: cookies that only they can send back, proof that a page of ours asked, small pages."""

from __future__ import annotations

from html import escape

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from holdfast import ambient
from holdfast.credentials import Site

COOKIE_LENGTH_MAX = 128
_SAFE_SITES = frozenset({"same-origin", "none"})
_PRIVATE = {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}


def is_same_site(request: Request, site: Site | None = None) -> bool:
    """Did a page of ours, or the user themselves, send this? Asked before a cookie may change anything.

    Browsers say so (`Sec-Fetch-Site`); older ones name the page's origin. Who says neither is not believed.
    """
    told = request.headers.get("sec-fetch-site")
    if told is not None:
        return told in _SAFE_SITES
    return request.headers.get("origin") == (site or Site.of_environment()).origin


def cookie(request: Request, name: str) -> str | None:
    """The cookie's value, if it could be one of ours."""
    found = request.cookies.get(name)
    return found if found and len(found) <= COOKIE_LENGTH_MAX else None


def set_cookie(response: Response, site: Site, name: str, value: str, *, seconds: int) -> None:
    """Give the browser something to bring back: to us alone, and out of reach of scripts."""
    response.set_cookie(
        site.cookie(name), value, max_age=seconds, path="/", secure=site.is_secure, httponly=True, samesite="lax"
    )


def clear_cookie(response: Response, site: Site, name: str) -> None:
    response.delete_cookie(site.cookie(name), path="/", secure=site.is_secure, httponly=True, samesite="lax")


def private(response: Response) -> Response:
    """Nobody keeps this answer, and nobody learns from where its reader came."""
    response.headers.update(_PRIVATE)
    return response


def page(title: str, text: str, *, status: int = 200, closes: bool = False) -> Response:
    """A page that says one thing and loads nothing. `closes`: a window that was opened for it goes away by itself."""
    nonce = ambient.random_token()
    script = f'<script nonce="{nonce}">setTimeout(() => window.close(), 300)</script>' if closes else ""
    body = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title></head>
<body><h1>{escape(title)}</h1><p>{escape(text)}</p>{script}</body></html>
"""
    policy = (
        f"default-src 'none'; script-src 'nonce-{nonce}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return private(HTMLResponse(body, status, {"Content-Security-Policy": policy, "X-Content-Type-Options": "nosniff"}))
