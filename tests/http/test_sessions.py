"""Sessions over HTTP: listed, created, read as a conversation, deleted and cancelled."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from holdfast import Holdfast


async def post(api: httpx.AsyncClient, session_id: str = "s1", **body: Any) -> str:
    answer = await api.post("/api/runs", json={"session_id": session_id, "message": "hello you", **body})
    assert answer.status_code == 202, answer.text
    return str(answer.json()["run_id"])


@pytest.mark.clause("WB-8", "W-31", "W-12")
async def test_an_empty_session_is_kept_at_once(api: httpx.AsyncClient) -> None:
    made = (await api.post("/api/sessions")).json()
    named = (await api.post("/api/sessions", json={"session_id": "mine", "title": "Plans"})).json()

    listed = (await api.get("/api/sessions")).json()
    found = (await api.get(f"/api/sessions/{made['session_id']}")).json()

    assert len(made["session_id"]) >= 8
    assert {each["session_id"] for each in listed} == {made["session_id"], "mine"}
    assert named["title"] == "Plans"
    assert (found["schema_version"], found["messages"]) == (1, [])
    assert isinstance(found["updated_at"], int)


@pytest.mark.clause("WB-8", "C-14", "W-12", "WB-15", "C-15")
async def test_a_conversation_is_what_was_asked_done_and_answered(api: httpx.AsyncClient, hf: Holdfast) -> None:
    first = await post(api, message="hello you")
    await hf.drain()
    second = await post(api, message="and again")
    await hf.drain()

    messages = (await api.get("/api/sessions/s1")).json()["messages"]

    assert [(each["role"], each["content"]) for each in messages] == [
        ("user", "hello you"),
        ("assistant", ""),
        ("tool", "2"),
        ("assistant", "2 words: hello you"),
        ("user", "and again"),
        ("assistant", ""),
        ("tool", "2"),
        ("assistant", "2 words: and again"),
    ]
    assert [each["run_id"] for each in messages] == [first] * 4 + [second] * 4
    call = messages[1]["tool_calls"][0]
    assert (call["function"]["name"], call["id"]) == ("count", messages[2]["tool_call_id"])


@pytest.mark.clause("C-14", "H-W1", "WB-31")
async def test_an_answer_that_was_taken_back_is_not_in_the_conversation(api: httpx.AsyncClient, hf: Holdfast) -> None:
    await post(api, clog_id="moody", input={"end": "retry", "text": "well?"}, message=None)
    await hf.drain()

    messages = (await api.get("/api/sessions/s1")).json()["messages"]
    turns = (await api.get("/api/turns", params={"session_id": "s1"})).json()["items"]

    assert [(each["role"], each["content"]) for each in messages] == [("user", "well?"), ("assistant", "whole answer")]
    assert [(each["kind"], each["content"]) for each in turns] == [("user", "well?"), ("assistant", "whole answer")]


@pytest.mark.clause("C-14")
async def test_turns_can_be_seen_as_they_were(api: httpx.AsyncClient, hf: Holdfast) -> None:
    await post(api)
    await hf.drain()
    await hf.as_user("local").audit.upsert_conversation_turn(
        "t1", message_id="m1", kind="system", content="be kind", thread_id="s1"
    )

    now = (await api.get("/api/turns", params={"session_id": "s1"})).json()["items"]
    before = now[0]["created_at"] * 1_000 + 999
    past = (await api.get("/api/turns", params={"session_id": "s1", "at": str(before)})).json()["items"]

    assert [each["kind"] for each in now] == ["user", "assistant", "system"]
    assert [each["kind"] for each in past] == ["user"]
    newest_first = await hf.audit.list_conversation(2, thread_id="s1")
    assert [turn.kind for turn in newest_first] == ["system", "assistant"]
    assert await hf.as_user("bob").audit.list_conversation(thread_id="s1") == []


@pytest.mark.clause("C-14")
async def test_a_fork_adds_only_what_it_did_itself(api: httpx.AsyncClient, hf: Holdfast) -> None:
    run_id = await post(api)
    await hf.drain()

    await api.post(f"/api/runs/{run_id}/fork", json={"at_rev": 1})
    await hf.drain()
    messages = (await api.get("/api/sessions/s1")).json()["messages"]

    its_own = ["assistant", "tool", "assistant"]
    assert [each["role"] for each in messages] == ["user", *its_own, *its_own]


@pytest.mark.clause("WB-8", "W-31")
async def test_sessions_that_moved_last_come_first_page_by_page(api: httpx.AsyncClient, hf: Holdfast) -> None:
    for n in range(5):
        await post(api, f"s{n}", message=f"message {n}")
    await hf.drain()
    last = await post(api, "s1", message="once more")

    whole = (await api.get("/api/sessions")).json()
    pages = [await api.get("/api/sessions", params={"limit": 2})]
    while "link" in pages[-1].headers:
        pages.append(await api.get(pages[-1].headers["link"].partition(">")[0].removeprefix("<")))

    assert whole[0]["session_id"] == "s1"
    assert (whole[0]["run_id"], whole[0]["last_user_message"]) == (last, "once more")
    times = [each["updated_at"] for each in whole]
    assert times == sorted(times, reverse=True)
    assert [len(page.json()) for page in pages] == [2, 2, 1], "the next page is as long as this one"
    assert [each for page in pages for each in page.json()] == whole
    assert whole[1]["message_count"] == 4
    assert whole[1]["run_id"] is None


@pytest.mark.clause("C-24", "H-W10", "WB-8")
async def test_a_session_goes_with_its_runs_unless_one_is_active(api: httpx.AsyncClient, hf: Holdfast) -> None:
    run_id = await post(api, clog_id="slow", input={"times": 1_000}, message=None)
    (claim,) = await hf.claim_next(owner="w1")

    refused = await api.delete("/api/sessions/s1")
    forced = await api.delete("/api/sessions/s1", params={"force": True})

    assert claim.run_id == run_id
    assert (refused.status_code, refused.json()["code"]) == (409, "session_active")
    assert forced.json() == {"ok": True}
    assert (await api.get("/api/sessions/s1")).status_code == 404
    assert (await api.get(f"/api/runs/{run_id}")).status_code == 410
    assert (await api.delete("/api/sessions/s1")).status_code == 404


@pytest.mark.clause("C-14", "H-W10")
async def test_a_session_that_is_made_anew_has_forgotten_the_old_one(api: httpx.AsyncClient, hf: Holdfast) -> None:
    await post(api, message="secret of old")
    await hf.drain()
    await api.delete("/api/sessions/s1")

    await post(api, message="new")

    messages = (await api.get("/api/sessions/s1")).json()["messages"]
    assert [each["content"] for each in messages] == ["new"]


@pytest.mark.clause("WB-8")
async def test_cancelling_a_session_cancels_what_is_open(api: httpx.AsyncClient, hf: Holdfast) -> None:
    runs = [await post(api) for _ in range(3)]

    first = await api.post("/api/sessions/s1/cancel")
    again = await api.post("/api/sessions/s1/cancel")

    assert (first.json(), again.json()) == ({"ok": True}, {"ok": False})
    states = [(await api.get(f"/api/runs/{run_id}")).json()["state"] for run_id in runs]
    assert states == ["cancelled"] * 3
    assert (await api.post("/api/sessions/none/cancel")).status_code == 404


@pytest.mark.clause("H-W7", "WB-15")
async def test_two_messages_of_one_session_go_one_after_the_other(api: httpx.AsyncClient, hf: Holdfast) -> None:
    told = {"clog_id": "slow", "input": {"times": 10, "pace_s": 0.01}, "message": None}
    same = await asyncio.gather(*(post(api, "s1", **told) for _ in range(2)))
    other = await post(api, "s2", **told)
    worker = hf.worker()
    working = asyncio.create_task(worker.run())

    runs = [(await api.get(f"/api/runs/{each}", params={"wait": 20})).json() for each in (*same, other)]

    worker.stop()
    await working
    first, second = sorted(runs[:2], key=lambda run: int(run["started_at"]))
    assert first["finished_at"] <= second["started_at"]
    assert runs[2]["started_at"] < first["finished_at"], "another session does not wait"


async def test_turns_and_messages_are_there_for_children_and_signals_only_where_people_spoke(
    api: httpx.AsyncClient, hf: Holdfast
) -> None:
    run = await hf.create_run(session_id="s1", clog_id="asker")
    await hf.signal(run.run_id, {"text": "spoken"})
    await hf.drain()
    await hf.signal(run.run_id, {"number": 7})
    await hf.drain()

    messages = (await api.get("/api/sessions/s1")).json()["messages"]

    assert [each["role"] for each in messages] == ["user", "assistant", "assistant"]
