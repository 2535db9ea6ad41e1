"""The page at `/`: sessions, a conversation that streams, and what a run is about. No build step, no foreign source."""

from __future__ import annotations

from importlib.resources import files

from fastapi import APIRouter
from starlette.responses import Response

from holdfast.http.service import Service

_KINDS = {
    "": ("index.html", "text/html; charset=utf-8"),
    "page.js": ("page.js", "text/javascript; charset=utf-8"),
    "page.css": ("page.css", "text/css; charset=utf-8"),
}


def page_routes(service: Service) -> APIRouter:
    """`/` and the two files it needs, named relative to it: it works wherever the app is mounted."""
    routes = APIRouter(include_in_schema=False)
    folder = files("holdfast.http") / "static"

    def add(path: str, name: str, kind: str) -> None:
        body = (folder / name).read_bytes()

        @routes.get(f"/{path}")
        async def show() -> Response:
            return Response(body, headers={"content-type": kind, "cache-control": "no-cache"})

    for path, (name, kind) in _KINDS.items():
        add(path, name, kind)
    return routes
