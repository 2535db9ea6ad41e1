"""What an API key with scopes may do: every route there is, read from the app's own description, with every scope."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest
from fastapi import FastAPI

from holdfast import Holdfast
from holdfast.credentials.api_keys import SCOPES
from holdfast.http import create_app
from holdfast.http.limits import Limits
from tests.credentials.keys import anywhere
from tests.http.test_boundaries import OPEN, body_for, operations

IDS = {"run_id": "r", "session_id": "s", "request_id": "p", "outbox_id": "o", "provider": "nobodys"}
STREAMS_BY_ITSELF = "/api/chat/{session_id}"
"""Begins a run and shows it on the same connection: whoever may do that stays connected."""


@pytest.fixture
def app(hf: Holdfast) -> FastAPI:
    return create_app(hf, auth="token")


@pytest.fixture
async def client(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://holdfast") as made:
        yield made


def enough(method: str, path: str) -> set[str]:
    """The scopes of which one is enough, said once more in other words than the code's."""
    words = set(path.split("/"))
    if words & {"settings", "oauth", "credentials", "keys"}:
        return {"admin"}
    if method == "get":
        return {"runs:read", "runs:write", "approvals:decide", "admin"}
    if words & {"approve", "reject", "deny", "resume"}:
        return {"approvals:decide", "admin"}
    return {"runs:write", "admin"}


async def key_of(hf: Holdfast, *scopes: str) -> dict[str, str]:
    made = await hf.api_keys.create("ada", scopes=scopes)
    return {"authorization": f"Bearer {made.text}"}


def guarded(app: FastAPI) -> list[tuple[str, str]]:
    # Who comes back from a provider is known by the state and the cookie that were given before.
    return [each for each in operations(app) if each[1] not in OPEN and not each[1].endswith("/callback")]


@anywhere
@pytest.mark.parametrize("scope", SCOPES)
async def test_a_scope_opens_its_routes_and_no_others(
    client: httpx.AsyncClient, app: FastAPI, hf: Holdfast, scope: str
) -> None:
    headers = await key_of(hf, scope)

    wrong = {}
    for method, path in guarded(app):
        may = scope in enough(method, path)
        if may and path == STREAMS_BY_ITSELF:
            continue
        body = body_for(path) if method in ("post", "patch") else None
        answer = await client.request(method, path.format(**IDS), json=body, headers=headers)
        is_problem = answer.headers.get("content-type") == "application/problem+json"
        code = answer.json()["code"] if is_problem else ""
        if (answer.status_code == 403) == may or may == code.startswith("missing_scope"):
            wrong[method, path] = (answer.status_code, code)

    assert len(guarded(app)) >= 30
    assert wrong == {}


@anywhere
@pytest.mark.parametrize("scopes", [(), ("admin",)])
async def test_a_key_without_scopes_may_do_what_its_user_may(
    client: httpx.AsyncClient, app: FastAPI, hf: Holdfast, scopes: tuple[str, ...]
) -> None:
    headers = await key_of(hf, *scopes)

    for method, path in guarded(app):
        if path != STREAMS_BY_ITSELF:
            body = body_for(path) if method in ("post", "patch") else None
            answer = await client.request(method, path.format(**IDS), json=body, headers=headers)
            assert answer.status_code not in (401, 403), (method, path, answer.text)


async def test_the_refusal_names_what_is_missing(client: httpx.AsyncClient, hf: Holdfast) -> None:
    headers = await key_of(hf, "runs:read", "approvals:decide")

    answer = await client.post("/api/runs", json={"session_id": "s", "message": "hi"}, headers=headers)

    assert answer.status_code == 403
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["code"] == "missing_scope_runs_write"
    assert 'error="insufficient_scope", scope="runs:write"' in answer.headers["www-authenticate"]
    assert (await hf.list_runs()).items == []


async def test_a_mounted_app_asks_the_same(hf: Holdfast) -> None:
    host = FastAPI()
    host.mount("/agents", create_app(hf, auth="token"))
    headers = await key_of(hf, "runs:read")

    async with httpx.AsyncClient(transport=httpx.ASGITransport(host), base_url="http://holdfast") as client:
        read = await client.get("/agents/api/runs", headers=headers)
        written = await client.post("/agents/api/runs", json={"session_id": "s", "message": "hi"}, headers=headers)
        chosen = await client.get("/agents/api/settings", headers=headers)

    assert [answer.status_code for answer in (read, written, chosen)] == [200, 403, 403]


async def test_connections_are_begun_at_a_limited_pace(hf: Holdfast) -> None:
    made = create_app(hf, authenticate=lambda request: request.headers["x-user"], limits=Limits(starts_per_second=0.4))
    path = "/api/oauth/nobodys/start"

    async with httpx.AsyncClient(transport=httpx.ASGITransport(made), base_url="http://holdfast") as client:
        answers = [await client.get(path, headers={"x-user": "ada"}) for _ in range(3)]
        other = await client.get(path, headers={"x-user": "bob"})

    assert [answer.status_code for answer in answers] == [404, 404, 429]
    assert int(answers[-1].headers["retry-after"]) >= 1
    assert other.status_code == 404
