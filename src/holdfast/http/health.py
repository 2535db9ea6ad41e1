"""Routes for whoever looks after the process: alive, ready, and what it counts."""

from __future__ import annotations

import asyncio
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from fastapi import APIRouter, Request, Response
from starlette.responses import JSONResponse

from holdfast.errors import HoldfastError
from holdfast.http.problems import RETRY_AFTER_S, documented
from holdfast.http.service import Service, in_time
from holdfast.http.shapes import Health, Readiness

CHECK_S = 2.0


def health_routes(service: Service) -> APIRouter:
    """`/api/health`, `/livez`, `/readyz`, `/metrics`."""
    routes = APIRouter(tags=["health"])

    @routes.get("/api/health", response_model=Health)
    async def health() -> Health:
        """What this process is."""
        return Health(ok=True, run_role=service.role, run_backend=service.hf.backend, version=_version())

    @routes.get("/livez", response_model=dict[str, bool])
    async def livez() -> dict[str, bool]:
        """The process answers. The database has no say in that: a restart would not bring it back."""
        return {"ok": True}

    async def ready() -> Response:
        """Whether requests should be sent here: the database answers, and we are not leaving."""
        checks = {"database": await _database(service), "draining": "yes" if service.is_leaving else "no"}
        is_ready = checks == {"database": "ok", "draining": "no"}
        shown = Readiness(ready=is_ready, checks=checks).model_dump()
        return JSONResponse(shown) if is_ready else JSONResponse(shown, 503, {"Retry-After": str(RETRY_AFTER_S)})

    unready: dict[int | str, dict[str, Any]] = {503: {"model": Readiness, "description": "Not now."}}
    for path in ("/readyz", "/startupz", "/healthz"):
        routes.get(path, response_model=Readiness, responses=unready, name=path.strip("/"))(ready)

    @routes.get("/metrics", response_class=Response, responses=documented(503))
    async def metrics(request: Request) -> Response:
        """Prometheus' text, or OpenMetrics' for who accepts that."""
        async with in_time(service.limits.database_s):
            await service.open()
            text, kind = await service.metrics.scrape(service.hf.journal, request.headers.get("accept", ""))
        return Response(text, media_type=kind)

    return routes


async def _database(service: Service) -> str:
    try:
        async with asyncio.timeout(CHECK_S):
            await service.open()
            await service.hf.journal.store.now()
    except TimeoutError:
        # Before the others: it is one of them, and has no words of its own.
        return "does not answer"
    except (HoldfastError, OSError) as error:
        return str(error)
    return "ok"


def _version() -> str:
    try:
        return version("holdfast")
    except PackageNotFoundError:
        return "unknown"
