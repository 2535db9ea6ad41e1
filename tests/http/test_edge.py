"""What holds for every request: problems, sizes, foreign pages, names of requests, mounting, health and metrics."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from holdfast import Holdfast
from holdfast.errors import DatabaseError, InvalidValue
from holdfast.http import Limits, create_app, health
from holdfast.http.server import check_bind
from tests.http.conftest import Serve

RUN = {"session_id": "s1", "message": "hello"}


def client_of(app: FastAPI) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://holdfast")


async def test_every_error_is_a_problem_with_a_code(api: httpx.AsyncClient) -> None:
    answers = [
        await api.get("/api/runs/none"),
        await api.get("/api/nothing"),
        await api.delete("/api/runs"),
        await api.post("/api/runs", content=b"{", headers={"content-type": "application/json"}),
        await api.post("/api/runs", json={}),
        await api.get("/api/runs/bad%20id"),
    ]

    told = [(answer.status_code, answer.json()["code"]) for answer in answers]
    assert told == [
        (404, "not_found"),
        (404, "not_found"),
        (405, "method_not_allowed"),
        (400, "malformed"),
        (422, "invalid_value"),
        (422, "invalid_value"),
    ]
    for answer in answers:
        body = answer.json()
        assert answer.headers["content-type"] == "application/problem+json"
        assert body.keys() >= {"type", "title", "status", "detail", "code", "instance"}
        assert (body["status"], isinstance(body["detail"], str)) == (answer.status_code, True)


async def test_a_body_over_the_limit_is_refused_before_it_is_read(serve: Serve) -> None:
    api = await serve(limits=Limits(body_bytes=1_000))
    reader, writer = await asyncio.open_connection(*api.server.address)

    writer.write(
        b"POST /api/runs HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 2000\r\n\r\n"
    )
    announced = await asyncio.wait_for(reader.readline(), 5)
    writer.close()

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(10):
            yield b"x" * 500

    unannounced = await api.client.post("/api/runs", content=pieces())

    settings = await api.client.patch("/api/settings", content=pieces(), headers={"content-type": "application/json"})

    assert b"413" in announced
    for answer in (unannounced, settings):
        assert (answer.status_code, answer.json()["code"]) == (413, "too_large")


async def test_requests_have_names(api: httpx.AsyncClient) -> None:
    given = await api.get("/livez", headers={"X-Request-ID": "mine-1"})
    bad = await api.get("/livez", headers={"X-Request-ID": "no good; at all"})

    assert given.headers["x-request-id"] == "mine-1"
    assert len(bad.headers["x-request-id"]) == 36


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 202),
        ({"sec-fetch-site": "same-origin"}, 202),
        ({"sec-fetch-site": "none"}, 202),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
        ({"origin": "http://holdfast"}, 202),
        ({"origin": "http://elsewhere"}, 403),
        ({"origin": "http://friend", "sec-fetch-site": "cross-site"}, 202),
        ({"cookie": "session=1"}, 403),
        ({"cookie": "session=1", "sec-fetch-site": "same-origin"}, 202),
        ({"sec-fetch-site": "cross-site", "authorization": "Bearer x"}, 202),
    ],
)
async def test_pages_of_other_sites_change_nothing(hf: Holdfast, headers: dict[str, str], status: int) -> None:
    async with client_of(create_app(hf, origins=["http://friend"])) as client:
        answer = await client.post("/api/runs", json=RUN, headers=headers)

    assert answer.status_code == status
    assert len((await hf.list_runs()).items) == (1 if status == 202 else 0)


async def test_a_form_that_poses_as_json_is_refused(api: httpx.AsyncClient) -> None:
    answer = await api.post(
        "/api/runs", content=b'{"session_id": "s", "message": "m"}', headers={"content-type": "text/plain"}
    )

    assert answer.status_code == 422


async def test_a_machine_that_is_renamed_by_a_page_does_not_answer(hf: Holdfast) -> None:
    async with client_of(create_app(hf, hosts=["localhost", "127.0.0.1"])) as client:
        renamed = await client.get("/api/runs", headers={"host": "evil.example:8787"})
        known = await client.get("/api/runs", headers={"host": "localhost:8787"})

    assert (renamed.status_code, known.status_code) == (403, 200)


async def test_commands_of_one_user_are_limited(hf: Holdfast) -> None:
    limits = Limits(commands_per_second=0.4)
    async with client_of(create_app(hf, limits=limits)) as client:
        answers = [await client.post("/api/sessions", json={}) for _ in range(3)]
        reading = await client.get("/api/sessions")

    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert int(answers[-1].headers["retry-after"]) >= 1
    assert reading.status_code == 200


async def test_a_mounted_app_says_where_things_are_and_opens_by_itself(database_url: str, schema: str) -> None:
    hf = Holdfast(database_url, schema=schema)
    inner = create_app(hf)
    host = FastAPI()
    host.mount("/agents", inner)

    async with client_of(host) as client:
        made = await client.post("/agents/api/runs", json=RUN)
        run = await client.get(made.headers["content-location"])
        page = await client.get("/agents/")
    await inner.state.holdfast.close()

    assert made.headers["location"] == f"/agents/api/runs/{made.json()['run_id']}/events"
    assert run.json()["status"] == "queued"
    assert 'href="page.css"' in page.text
    assert not hf.is_open


async def test_a_host_may_keep_the_runtime_open_itself(database_url: str, schema: str) -> None:
    async with Holdfast(database_url, schema=schema) as hf:
        app = create_app(hf)
        async with app.state.holdfast.lifespan(), client_of(app) as client:
            assert (await client.get("/readyz")).json()["ready"] is True
        assert hf.is_open


async def test_a_database_that_is_away_is_said_with_503(
    api: httpx.AsyncClient, hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*args: Any, **options: Any) -> Any:
        raise DatabaseError("the database was not ready for 30 s")

    monkeypatch.setattr(type(hf.journal.store), "fetch", away)
    monkeypatch.setattr(type(hf.journal.store), "now", away)
    answers = [await api.get("/api/runs"), await api.get("/api/sessions"), await api.get("/metrics")]
    ready, live = await api.get("/readyz"), await api.get("/livez")
    monkeypatch.undo()

    for answer in answers:
        assert (answer.status_code, answer.json()["code"]) == (503, "database_unavailable")
        assert int(answer.headers["retry-after"]) >= 1
    assert (ready.status_code, live.status_code) == (503, 200)
    assert (await api.get("/readyz")).status_code == 200


async def silent(*args: Any, **options: Any) -> Any:
    await asyncio.sleep(60)


@pytest.mark.parametrize("path", ["/api/runs", "/api/settings", "/metrics"])
async def test_a_database_that_does_not_answer_is_not_waited_for(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr(type(hf.journal.store), "fetch", silent)
    async with client_of(create_app(hf, limits=Limits(database_s=0.1))) as client:
        answer = await client.get(path)
    monkeypatch.undo()

    assert (answer.status_code, answer.json()["code"]) == (503, "database_timeout")
    assert int(answer.headers["retry-after"]) >= 1


BODIES = {"/api/chat/s": {"message": "hi"}}


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/api/runs/r/events"),
        ("GET", "/api/sessions/s/events"),
        ("POST", "/api/chat/s"),
        ("POST", "/api/advance"),
    ],
)
async def test_nobody_waits_long_to_hear_that_it_cannot_be_known_who_asks(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch, method: str, path: str
) -> None:
    key = (await hf.api_keys.create("ada")).text
    monkeypatch.setattr(type(hf.journal.store), "fetch", silent)
    async with client_of(create_app(hf, auth="token", limits=Limits(database_s=0.1))) as client:
        answer = await client.request(method, path, json=BODIES.get(path), headers={"x-api-key": key})
    monkeypatch.undo()

    assert (answer.status_code, answer.json()["code"]) == (503, "database_timeout")


async def test_whoever_asks_whether_we_are_ready_hears_what_is_missing(
    api: httpx.AsyncClient, hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(hf.journal.store), "now", silent)
    monkeypatch.setattr(health, "CHECK_S", 0.1)
    answer = await api.get("/readyz")
    monkeypatch.undo()

    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) >= 1
    assert answer.json()["checks"] == {"database": "does not answer", "draining": "no"}


@pytest.mark.clause("WB-1")
async def test_health_names_role_and_backend(api: httpx.AsyncClient, hf: Holdfast, configuration: str) -> None:
    health = (await api.get("/api/health")).json()
    async with client_of(create_app(hf, role="worker")) as client:
        worker = (await client.get("/api/health")).json()
        nothing_else = await client.get("/api/runs")
        ready = await client.get("/readyz")

    backend = {"file": "sqlite", "postgres": "postgres"}[configuration]
    assert (health["ok"], health["run_role"], health["run_backend"]) == (True, "api", backend)
    assert worker["run_role"] == "worker"
    assert (nothing_else.status_code, ready.status_code) == (404, 200)


async def test_an_accident_tells_nothing_about_itself(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*args: Any, **options: Any) -> Any:
        raise RuntimeError("a secret of the house")

    monkeypatch.setattr(type(hf), "list_runs", broken)
    transport = httpx.ASGITransport(create_app(hf), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://holdfast") as client:
        answer = await client.get("/api/runs")

    assert (answer.status_code, answer.json()["code"]) == (500, "internal_error")
    assert "secret" not in answer.text


async def test_metrics_are_counted_here_and_read_from_the_database(api: httpx.AsyncClient, hf: Holdfast) -> None:
    await api.post("/api/runs", json=RUN)
    await hf.create_run(session_id="s2", clog_id="asker")

    text = (await api.get("/metrics")).text

    assert 'holdfast_runs_open{status="pending"} 1.0' in text
    assert 'holdfast_runs_open{status="waiting"} 0.0' in text
    assert 'holdfast_http_requests_total{method="POST",status="202"} 1.0' in text
    for name in ("queue_oldest_age_seconds", "sse_connections", "event_delivery_lag_seconds", "approvals_pending"):
        assert f"holdfast_{name}" in text


async def test_the_page_is_ours_alone(api: httpx.AsyncClient) -> None:
    page, script, style = [await api.get(path) for path in ("/", "/page.js", "/page.css")]

    assert page.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert "frame-ancestors 'none'" in page.headers["content-security-policy"]
    assert page.headers["x-content-type-options"] == "nosniff"
    assert [answer.status_code for answer in (page, script, style)] == [200] * 3
    assert "innerHTML" not in script.text
    assert "http" not in page.text.replace("http-equiv", "")


@pytest.mark.parametrize(
    ("host", "auth", "is_fine"),
    [
        ("127.0.0.1", "none", True),
        ("localhost", "none", True),
        ("::1", "none", True),
        ("0.0.0.0", "none", False),
        ("192.168.1.5", "none", False),
        ("example.org", "none", False),
        ("0.0.0.0", "token", True),
    ],
)
def test_nobody_serves_others_without_asking_who_they_are(host: str, auth: str, is_fine: bool) -> None:
    if is_fine:
        check_bind(host, auth)
    else:
        with pytest.raises(InvalidValue, match="HOLDFAST_AUTH"):
            check_bind(host, auth)


async def test_balancers_may_ask_by_any_name(hf: Holdfast) -> None:
    async with client_of(create_app(hf, hosts=["localhost"])) as client:
        answers = [await client.get(path, headers={"host": ""}) for path in ("/livez", "/readyz", "/api/health")]

    assert [answer.status_code for answer in answers] == [200, 200, 403]
