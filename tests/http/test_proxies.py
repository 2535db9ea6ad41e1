"""Behind what people put in front: a proxy that buffers, and a balancer that remembers nobody."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from holdfast import Holdfast
from tests.http.proxies import haproxy, nginx
from tests.http.readers import Seen, frames, opened, read, types
from tests.http.test_processes import Serve, configuration, hf, joined, serve, stored

__all__ = ["configuration", "hf", "serve"]


@pytest.mark.clause("WB-6", "W-06")
async def test_a_proxy_that_buffers_passes_events_on_as_they_come(serve: Serve, hf: Holdfast) -> None:
    both = await serve("all")
    assert both.client.base_url.port is not None
    loop = asyncio.get_running_loop()
    came: list[float] = []

    async with nginx(both.client.base_url.port) as url, httpx.AsyncClient(base_url=url, timeout=30) as client:
        answer = await client.post(
            "/api/runs", json={"session_id": "s", "clog_id": "slow", "input": {"times": 20, "pace_s": 0.1}}
        )
        run_id = answer.json()["run_id"]
        async with asyncio.timeout(30), opened(client, f"/api/runs/{run_id}/events") as response:
            seen = [each async for each in frames(response) if isinstance(each, Seen) and _note(came, loop, each)]

    assert joined(seen) == await stored(hf, run_id)
    assert came[-1] - came[0] > 1.0, "they were not held back"


def _note(came: list[float], loop: asyncio.AbstractEventLoop, each: Seen) -> bool:
    if each.type == "number":
        came.append(loop.time())
    return True


@pytest.mark.clause("W-50", "W-52", "W-06")
async def test_a_balancer_without_memory_loses_nothing(serve: Serve, hf: Holdfast) -> None:
    a, b, _ = await asyncio.gather(serve("api"), serve("api"), serve("worker"))
    ports = [port for each in (a, b) if (port := each.client.base_url.port) is not None]

    async with haproxy(ports) as url, httpx.AsyncClient(base_url=url, timeout=30) as client:
        body = {"session_id": "s", "clog_id": "slow", "input": {"times": 60, "pace_s": 0.05}}
        answers = [await client.post("/api/runs", json=body, headers={"Idempotency-Key": "k"}) for _ in range(4)]
        run_id = answers[0].json()["run_id"]
        seen: list[Seen] = []
        connections = 0
        while not seen or seen[-1].type != "done":
            connections += 1
            last = seen[-1].id if seen else None
            seen += await read(client, f"/api/runs/{run_id}/events", last, until=lambda each: each.seq % 12 == 0)
            if connections == 2:
                await a.kill()

    assert {answer.json()["run_id"] for answer in answers} == {run_id}
    assert connections > 3
    assert joined(seen) == await stored(hf, run_id)
    assert types(seen).count("done") == 1
