"""One user never meets what belongs to another: on every route there is, read from the app's own description."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from holdfast import Holdfast
from holdfast.http import create_app
from tests.http.conftest import known_user

ADA, BOB = {"x-user": "ada"}, {"x-user": "bob"}
OPEN = {"/api/health", "/livez", "/readyz", "/startupz", "/healthz", "/metrics"}
"""What is nobody's: these say nothing about anybody."""


@pytest.fixture
def many(hf: Holdfast) -> FastAPI:
    return create_app(hf, authenticate=known_user)


async def things(ours: httpx.AsyncClient, hf: Holdfast) -> dict[str, str]:
    """One of everything, Ada's."""
    mine = hf.as_user("ada")
    body = {"session_id": "adas", "message": "mine alone"}
    run_id = (await ours.post("/api/runs", json=body, headers=ADA)).json()["run_id"]
    await hf.drain()
    await mine.audit.record_edit_proposed("adas-edit", diffs_json=[{"path": "a", "diff": "+1"}])
    outbox_id = await hf.outbox.enqueue({"to": "ada"}, "mail")
    await hf.journal.store.execute(("UPDATE {s}outbox SET user_id = 'ada' WHERE outbox_id = $1", (outbox_id,)))
    named = {"run_id": run_id, "session_id": "adas", "request_id": "adas-edit", "outbox_id": outbox_id}
    return {**named, "provider": "nobodys"}


def operations(app: FastAPI) -> list[tuple[str, str]]:
    paths = app.openapi()["paths"]
    return [(method, path) for path, methods in paths.items() for method in methods]


def body_for(path: str) -> dict[str, Any]:
    return {"message": "hi", "session_id": "bobs"} if path in ("/api/runs", "/api/chat/{session_id}") else {}


@pytest.mark.clause("W-44", "H-W4")
async def test_what_is_anothers_is_not_found_on_any_route(ours: httpx.AsyncClient, many: FastAPI, hf: Holdfast) -> None:
    ids = await things(ours, hf)
    named = [(method, path) for method, path in operations(many) if "{" in path]

    found = {}
    for method, path in named:
        body = None if method == "get" else body_for(path)
        answer = await ours.request(method, path.format(**ids), json=body, headers=BOB)
        found[method, path] = answer.status_code

    assert len(named) >= 20
    assert set(found.values()) == {404}, found
    run = await hf.get_run(ids["run_id"])
    assert run is not None
    assert (run.status, run.cancel_requested_at) == ("done", None), "and nothing was done"
    own = await ours.get(f"/api/runs/{ids['run_id']}", headers=ADA)
    assert own.status_code == 200


@pytest.mark.clause("W-44", "H-W4")
async def test_lists_show_only_ones_own(ours: httpx.AsyncClient, many: FastAPI, hf: Holdfast) -> None:
    ids = await things(ours, hf)
    lists = [path for method, path in operations(many) if method == "get" and "{" not in path and path not in OPEN]

    for path in lists:
        for query in ({}, {"session_id": "adas"}, {"parent_id": ids["run_id"]}):
            text = (await ours.get(path, params=query, headers=BOB)).text
            assert "mine alone" not in text, path
            assert not any(each in text for each in ids.values()), path
    shown = (await ours.get("/api/tool-calls", params={"parent_id": ids["run_id"]}, headers=ADA)).json()["items"]
    assert [call["tool_name"] for call in shown] == ["count"]


@pytest.mark.clause("W-44", "H-W4")
async def test_anothers_session_cannot_be_written_to(ours: httpx.AsyncClient, hf: Holdfast) -> None:
    await things(ours, hf)

    posted = await ours.post("/api/runs", json={"session_id": "adas", "message": "let me in"}, headers=BOB)
    created = await ours.post("/api/sessions", json={"session_id": "adas"}, headers=BOB)

    assert (posted.status_code, created.status_code) == (404, 404)
    assert len((await hf.list_runs()).items) == 1


@pytest.mark.clause("W-44")
async def test_anothers_deleted_run_is_404_not_410(ours: httpx.AsyncClient, hf: Holdfast) -> None:
    ids = await things(ours, hf)
    await hf.delete_run(ids["run_id"])

    path = f"/api/runs/{ids['run_id']}"
    assert (await ours.get(path, headers=BOB)).status_code == 404
    assert (await ours.get(path, headers=ADA)).status_code == 410


@pytest.mark.clause("W-44")
async def test_nobody_gets_401_everywhere(ours: httpx.AsyncClient, many: FastAPI) -> None:
    ids = {"run_id": "r", "session_id": "s", "request_id": "p", "outbox_id": "o", "provider": "nobodys"}

    for method, path in operations(many):
        # Who comes back from a provider is known by the state and the cookie that were given before.
        if path in OPEN or path.endswith("/callback"):
            continue
        body = body_for(path) if method in ("post", "patch") else None
        answer = await ours.request(method, path.format(**ids), json=body)
        assert (answer.status_code, answer.json()["code"]) == (401, "unauthorized"), path
        assert answer.headers["www-authenticate"].startswith("Bearer")


async def test_keys_are_asked_of_whoever_keeps_them(hf: Holdfast) -> None:
    good = (await hf.api_keys.create("ada")).text
    transport = httpx.ASGITransport(create_app(hf, auth="token"))
    async with httpx.AsyncClient(transport=transport, base_url="http://holdfast") as client:
        answers = [
            await client.get("/api/runs", headers=headers)
            for headers in (
                {"Authorization": f"Bearer {good}"},
                {"X-API-Key": good},
                {"Authorization": f"Bearer {good[:-1]}"},
                {},
            )
        ]

    assert [answer.status_code for answer in answers] == [200, 200, 401, 401]


@pytest.mark.clause("H-W4")
async def test_everything_that_belongs_to_a_user_says_to_whom(hf: Holdfast, configuration: str) -> None:
    """`user_id` is the owner's column; what has none belongs to the run or session that it names."""
    store = hf.journal.store
    for table in ("sessions", "runs", "settings", "credentials", "oauth_states", "outbox", "api_keys", "turns"):
        await store.fetch(f"SELECT user_id FROM {{s}}{table} LIMIT 1")

    run = await hf.create_run(session_id="s", clog_id="chat", input={"text": "hi"})
    await hf.outbox.enqueue({"to": "me"}, "mail")

    rows = [await store.fetch(f"SELECT user_id FROM {{s}}{table}") for table in ("sessions", "runs", "outbox")]
    assert rows == [[("local",)]] * 3
    assert await hf.as_user("local").get_run(run.run_id) is not None
    assert await hf.as_user("ada").get_run(run.run_id) is None
