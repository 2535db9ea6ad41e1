"""Requests with a key: carried out once, whoever gets them, whatever dies in between."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import httpx
import pytest

from holdfast import Holdfast
from holdfast.http import create_app
from holdfast.runtime import kept_answers
from holdfast.runtime.kept_answers import Answer, KeptAnswers, Place, Turn
from tests.http.households import start

BODY = {"session_id": "s1", "message": "hello"}


def keyed(key: str) -> dict[str, str]:
    return {"Idempotency-Key": key}


@pytest.mark.clause("C-26")
async def test_the_same_request_again_is_answered_as_before(api: httpx.AsyncClient, hf: Holdfast) -> None:
    first = await api.post("/api/runs", json=BODY, headers=keyed("k"))
    again = await api.post("/api/runs", json={"message": "hello", "session_id": "s1"}, headers=keyed("k"))

    assert (again.status_code, again.json()) == (first.status_code, first.json())
    assert again.headers["location"] == first.headers["location"]
    assert again.headers["idempotency-replayed"] == "true"
    assert "idempotency-replayed" not in first.headers
    assert len((await hf.list_runs()).items) == 1


@pytest.mark.clause("C-26")
async def test_another_body_under_the_same_key_is_refused(api: httpx.AsyncClient, hf: Holdfast) -> None:
    await api.post("/api/runs", json=BODY, headers=keyed("k"))

    other = await api.post("/api/runs", json={**BODY, "message": "other"}, headers=keyed("k"))

    assert (other.status_code, other.json()["code"]) == (422, "key_reused")
    assert len((await hf.list_runs()).items) == 1


async def test_keys_are_per_user_and_route(ours: httpx.AsyncClient, hf: Holdfast) -> None:
    answers = [
        await ours.post("/api/runs", json={**BODY, "session_id": user}, headers={**keyed("k"), "x-user": user})
        for user in ("ada", "bob")
    ]
    session = await ours.post("/api/sessions", json={}, headers={**keyed("k"), "x-user": "ada"})

    assert len({answer.json()["run_id"] for answer in answers}) == 2
    assert session.status_code == 200
    assert len((await hf.list_runs()).items) == 2


async def test_many_at_once_make_one_run(hf: Holdfast) -> None:
    """Each request comes to another app, as it would behind a balancer."""
    clients = [
        httpx.AsyncClient(transport=httpx.ASGITransport(create_app(hf)), base_url="http://holdfast") for _ in range(10)
    ]

    answers = await asyncio.gather(*(client.post("/api/runs", json=BODY, headers=keyed("k")) for client in clients))
    last = await clients[0].post("/api/runs", json=BODY, headers=keyed("k"))

    assert {answer.status_code for answer in answers} <= {202, 409}
    assert {answer.json()["code"] for answer in answers if answer.status_code == 409} <= {"request_in_flight"}
    assert all("retry-after" in answer.headers for answer in answers if answer.status_code == 409)
    assert {answer.json()["run_id"] for answer in answers if answer.status_code == 202} == {last.json()["run_id"]}
    assert len((await hf.list_runs()).items) == 1
    for client in clients:
        await client.aclose()


async def test_what_was_refused_may_be_tried_again(api: httpx.AsyncClient, hf: Holdfast) -> None:
    refused = await api.post("/api/runs/later/cancel", headers=keyed("k"))
    await hf.create_run(session_id="s1", clog_id="chat", input={"text": "x"}, run_id="later")

    accepted = await api.post("/api/runs/later/cancel", headers=keyed("k"))

    assert (refused.status_code, accepted.json()) == (404, {"ok": True})


@pytest.mark.parametrize("path", ["signal", "approve", "reject", "fork", "replay", "cancel"])
async def test_orders_with_a_key_have_one_effect(api: httpx.AsyncClient, hf: Holdfast, path: str) -> None:
    @hf.flow("asks")
    async def asks(ctx: Any, input: Any) -> bool:
        return bool((await ctx.approval("go")).approved)

    run = await hf.create_run(session_id="s1", clog_id="asks", input=None)
    await hf.drain()

    first, again = [await api.post(f"/api/runs/{run.run_id}/{path}", json={}, headers=keyed("k")) for _ in range(2)]

    assert first.status_code in (200, 202), first.text
    assert (again.status_code, again.content) == (first.status_code, first.content)
    assert len((await hf.list_runs()).items) == (2 if path in ("fork", "replay") else 1)


@pytest.mark.parametrize("path", ["runs", "sessions"])
async def test_a_process_lost_after_the_effect_is_taken_over_without_a_second_one(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    app = create_app(hf)
    body = BODY if path == "runs" else {}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://holdfast") as client:

        async def die(self: KeptAnswers, turn: Turn, answer: Answer) -> None:
            raise asyncio.CancelledError("this process is gone")

        monkeypatch.setattr(KeptAnswers, "keep", die)
        with pytest.raises(asyncio.CancelledError):
            await client.post(f"/api/{path}", json=body, headers=keyed("k"))
        monkeypatch.undo()
        busy = await client.post(f"/api/{path}", json=body, headers=keyed("k"))
        monkeypatch.setattr(kept_answers, "HELD_US", 0)
        taken_over = await client.post(f"/api/{path}", json=body, headers=keyed("k"))
        again = await client.post(f"/api/{path}", json=body, headers=keyed("k"))

    assert (busy.status_code, busy.json()["code"]) == (409, "request_in_flight")
    assert taken_over.status_code in (200, 202)
    assert again.json() == taken_over.json()
    count = (await hf.list_runs()).items if path == "runs" else (await hf.sessions.list()).items
    assert len(count) == 1


@pytest.mark.clause("C-26")
@pytest.mark.parametrize("place", ["kept", "sent"])
async def test_whoever_asks_again_after_a_kill_is_answered_with_the_first_run(
    hf: Holdfast, api: httpx.AsyncClient, database_url: str, schema: str, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    given = {"HOLDFAST_DATABASE_URL": database_url, "HOLDFAST_SCHEMA": schema, "TEST_DIES_BEFORE_IT_IS": place}
    doomed = await start("serve", "tests.http.programs:make", "--role", "api", "--port", "0", **given)
    try:
        await doomed.ready()
        with pytest.raises(httpx.TransportError):
            await doomed.client.post("/api/runs", json=BODY, headers=keyed("k"))
        assert await doomed.ended() == -signal.SIGKILL
    finally:
        await doomed.kill()
    (made,) = (await hf.list_runs()).items
    # Whoever died holds the key for a minute; nobody waits for that here.
    monkeypatch.setattr(kept_answers, "HELD_US", 0)
    answers = [await api.post("/api/runs", json=BODY, headers=keyed("k")) for _ in range(2)]

    assert [(each.status_code, each.json()["run_id"]) for each in answers] == [(202, made.run_id)] * 2
    assert [each.headers["location"] for each in answers] == [f"/api/runs/{made.run_id}/events"] * 2
    assert len((await hf.list_runs()).items) == 1


async def test_an_answer_is_kept_for_a_day(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = KeptAnswers(hf.journal.store)
    place = Place("ada", "POST /api/runs", "k")
    turn = await kept.begin(place, "one")
    assert isinstance(turn, Turn)
    await kept.keep(turn, Answer(202, {"location": "/x"}, b"{}"))

    known = await kept.begin(place, "one")
    monkeypatch.setattr(kept_answers, "KEPT_US", 0)
    forgotten = await kept.begin(place, "another body")

    assert known == Answer(202, {"location": "/x"}, b"{}")
    assert isinstance(forgotten, Turn)
    assert forgotten.nonce != turn.nonce


async def test_the_old_chat_endpoint_starts_one_run_for_a_key(api: httpx.AsyncClient, hf: Holdfast) -> None:
    worker = hf.worker()
    working = asyncio.create_task(worker.run())

    told = [await api.post("/api/chat/s1", json={"message": "hi"}, headers=keyed("k")) for _ in range(2)]
    other = await api.post("/api/chat/s1", json={"message": "other"}, headers=keyed("k"))

    worker.stop()
    await working
    assert told[0].text == told[1].text
    assert other.json()["code"] == "key_reused"
    assert len((await hf.list_runs()).items) == 1
