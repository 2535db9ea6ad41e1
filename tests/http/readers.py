"""A reader of event streams that keeps what it saw, and the served app it reads from."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import httpx

from holdfast.http.server import Server


class Seen(NamedTuple):
    """One frame of a stream."""

    id: str | None
    type: str
    data: dict[str, Any]

    @property
    def seq(self) -> int:
        return int(self.id or 0)


class Api(NamedTuple):
    """An app on a socket."""

    client: httpx.AsyncClient
    server: Server
    task: asyncio.Task[None]

    @property
    def base(self) -> str:
        return str(self.client.base_url)

    async def post(self, path: str, body: Any = None, **options: Any) -> httpx.Response:
        return await self.client.post(path, json=body, **options)

    async def get(self, path: str, **options: Any) -> httpx.Response:
        return await self.client.get(path, **options)

    async def start(self, **body: Any) -> str:
        """Queue a run; answer its id."""
        answer = await self.post("/api/runs", {"session_id": "s", **body})
        assert answer.status_code == 202, answer.text
        return str(answer.json()["run_id"])


async def frames(response: httpx.Response) -> AsyncIterator[Seen | str]:
    """Frames as they come; a comment is its text."""
    told: dict[str, str] = {}
    async for line in response.aiter_lines():
        if line.startswith(":"):
            yield line[1:].strip()
        elif line:
            name, _, value = line.partition(": ")
            told[name] = value
        elif told:
            if "data" in told:
                yield Seen(told.get("id"), told["event"], json.loads(told["data"]))
            told = {}


@asynccontextmanager
async def opened(client: httpx.AsyncClient, path: str, last: str | int | None = None) -> AsyncIterator[httpx.Response]:
    headers = {} if last is None else {"Last-Event-ID": str(last)}
    async with client.stream("GET", path, headers=headers) as response:
        yield response


async def read(
    client: httpx.AsyncClient,
    path: str,
    last: str | int | None = None,
    *,
    until: Callable[[Seen], bool] = lambda seen: False,
    within_s: float = 20.0,
) -> list[Seen]:
    """What a stream tells, up to its end or to the first frame that is enough."""
    found: list[Seen] = []
    async with asyncio.timeout(within_s), opened(client, path, last) as response:
        assert response.status_code == 200, await response.aread()
        async for frame in frames(response):
            if isinstance(frame, Seen):
                found.append(frame)
                if until(frame):
                    break
    return found


def types(seen: Sequence[Seen]) -> list[str]:
    return [each.type for each in seen]


async def until(is_so: Callable[[], bool], within_s: float = 20.0) -> None:
    """Wait for something that tells nobody when it happens."""
    async with asyncio.timeout(within_s):
        while True:
            if is_so():
                return
            await asyncio.sleep(0.01)
