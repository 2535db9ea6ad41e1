"""`create_app`: the routes, the edge and the life of one app."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from starlette.exceptions import HTTPException

from holdfast.credentials import Site
from holdfast.errors import HoldfastError
from holdfast.facade import Holdfast
from holdfast.http import problems
from holdfast.http.callers import Authenticate, caller_of
from holdfast.http.edge import Edge
from holdfast.http.health import health_routes
from holdfast.http.limits import Limits
from holdfast.http.login import browser_user, login_routes
from holdfast.http.oauth import oauth_routes
from holdfast.http.page import page_routes
from holdfast.http.problems import Problem
from holdfast.http.records import record_routes
from holdfast.http.runs import run_routes
from holdfast.http.service import Service, setting
from holdfast.http.sessions import session_routes
from holdfast.http.settings import settings_routes
from holdfast.http.streams import stream_routes


def create_app(
    hf: Holdfast,
    *,
    authenticate: Authenticate | None = None,
    auth: str | None = None,
    role: str = "api",
    limits: Limits | None = None,
    hosts: Sequence[str] | None = None,
    origins: Sequence[str] = (),
    site: Site | None = None,
) -> FastAPI:
    """The API of a runtime as an ASGI app, to serve or to mount.

    Whoever mounts it may enter `app.state.holdfast.lifespan()`; otherwise the runtime is opened by the first request.
    `authenticate(request)` answers a user id or None; without it `auth` (`HOLDFAST_AUTH`) is none, token or oidc. The
    role `worker` answers for its health and nothing else. `site` is where browsers find us (`HOLDFAST_PUBLIC_URL`).
    """
    mode = auth or setting("AUTH", "none")
    place = None if role == "worker" else site or hf.office.site()
    caller = caller_of(hf, mode, authenticate, logged_in=lambda request: browser_user(request, hf, place))
    service = Service(hf, caller, role=role, limits=limits or Limits())

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with service.lifespan():
            yield

    app = FastAPI(title="Holdfast", lifespan=lifespan, docs_url=None, redoc_url=None)
    app.state.holdfast = service
    app.include_router(health_routes(service))
    if role != "worker":
        for routes in (run_routes, stream_routes, session_routes, record_routes, page_routes):
            app.include_router(routes(service))
        app.include_router(settings_routes(hf, service.user))
        app.include_router(oauth_routes(hf, service.user, site=place, gate=service.gate))
        if mode == "oidc" and authenticate is None:
            app.include_router(login_routes(hf, site=place, gate=service.gate))
    app.add_exception_handler(HoldfastError, problems.of_error)
    app.add_exception_handler(HTTPException, problems.of_http)
    app.add_exception_handler(RequestValidationError, problems.of_validation)
    app.add_exception_handler(TimeoutError, problems.of_accident)
    app.add_exception_handler(Exception, problems.of_accident)
    app.add_middleware(Edge, service=service, hosts=hosts, origins=origins)
    app.openapi = lambda: _described(app)  # type: ignore[method-assign]
    return app


def _described(app: FastAPI) -> dict[str, Any]:
    """The description with the problem that every route may answer."""
    if app.openapi_schema is None:
        schema = get_openapi(title=app.title, version="1", routes=app.routes, openapi_version="3.1.0")
        schema.setdefault("components", {}).setdefault("schemas", {})["Problem"] = _schema()
        app.openapi_schema = schema
    return app.openapi_schema


def _schema() -> dict[str, Any]:
    shape = Problem.model_json_schema()
    fields = shape.pop("$defs")["FieldError"]
    shape["properties"]["errors"] = {"type": "array", "items": fields}
    shape["properties"]["instance"] = {"type": "string"}
    return shape
