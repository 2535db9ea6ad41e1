"""The app over a real database: called directly where an answer is enough, on a real socket where it streams."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from holdfast import Holdfast
from holdfast.http import create_app
from holdfast.http.server import Server
from tests.http.clogs import register
from tests.http.readers import Api

LEASE_MS = 5_000

Serve = Callable[..., Awaitable[Api]]


@pytest.fixture(params=["file", "postgres"])
def configuration(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def hf(database_url: str, schema: str) -> AsyncIterator[Holdfast]:
    """A runtime on real time that knows the clogs of these tests; afterwards journal and rows agree."""
    async with Holdfast(database_url, schema=schema, lease_ms=LEASE_MS) as holdfast:
        register(holdfast)
        yield holdfast
        report = await holdfast.fsck()
        assert report.ok, report.problems


def known_user(request: Any) -> str | None:
    """Who asks is who they say they are."""
    found: str | None = request.headers.get("x-user")
    return found


@pytest.fixture
def app(hf: Holdfast) -> FastAPI:
    return create_app(hf)


@pytest.fixture
async def api(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    """The app for the one user of a machine."""
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://holdfast") as client:
        yield client


@pytest.fixture
async def ours(hf: Holdfast) -> AsyncIterator[httpx.AsyncClient]:
    """The app for several users; `x-user` says who asks."""
    transport = httpx.ASGITransport(create_app(hf, authenticate=known_user))
    async with httpx.AsyncClient(transport=transport, base_url="http://holdfast") as client:
        yield client


@pytest.fixture
async def serve(hf: Holdfast) -> AsyncIterator[Serve]:
    """Puts an app on a socket of this machine; all are gone afterwards."""
    async with AsyncExitStack() as stack:

        async def served(made: FastAPI | None = None, **options: Any) -> Api:
            server = Server(made or create_app(hf, **options), host="127.0.0.1", port=0)
            task = asyncio.create_task(server.serve())
            await asyncio.wait_for(server.ready.wait(), 10)
            client = httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.address[1]}", timeout=30)
            stack.push_async_callback(_end, server, task, client)
            return Api(client, server, task)

        yield served


async def _end(server: Server, task: asyncio.Task[None], client: httpx.AsyncClient) -> None:
    await client.aclose()
    server.should_exit = True
    server._service.leave()
    await asyncio.wait_for(task, 10)
    await server._service.tails.close()
