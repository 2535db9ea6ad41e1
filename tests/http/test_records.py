"""What is on record over HTTP: the outbox, tool calls and proposals."""

from __future__ import annotations

import httpx

from holdfast import DeadLetter, Holdfast


async def test_dead_letters_are_shown_and_tried_again(api: httpx.AsyncClient, hf: Holdfast) -> None:
    @hf.deliver("mail")
    async def mail(payload: object, **_: object) -> None:
        raise DeadLetter("no such address")

    made = [await hf.outbox.enqueue({"n": n}, "mail") for n in range(3)]
    waiting = await hf.outbox.enqueue({"n": 3}, "elsewhere")
    await hf.outbox.flush_once()

    dead = (await api.get("/api/outbox", params={"status": "dead"})).json()
    first = (await api.get("/api/outbox", params={"limit": 2})).json()
    rest = (await api.get("/api/outbox", params={"limit": 2, "cursor": first["next"]})).json()
    again = await api.post(f"/api/outbox/{made[0]}/requeue")
    alive = await api.post(f"/api/outbox/{waiting}/requeue")
    unknown = await api.post("/api/outbox/none/requeue")

    assert {each["outbox_id"] for each in dead["items"]} == set(made)
    assert [each["outbox_id"] for each in first["items"] + rest["items"]] == [waiting, *reversed(made)]
    assert rest["next"] is None
    assert again.json()["outbox_id"] not in made
    assert (alive.status_code, alive.json()["code"]) == (409, "not_dead")
    assert unknown.status_code == 404


async def test_tool_calls_are_shown_as_of_an_instant(api: httpx.AsyncClient, hf: Holdfast) -> None:
    answer = await api.post("/api/runs", json={"session_id": "s1", "message": "one two"})
    run_id = answer.json()["run_id"]
    await hf.drain()

    now = (await api.get("/api/tool-calls", params={"parent_id": run_id})).json()["items"]
    past = (await api.get("/api/tool-calls", params={"parent_id": run_id, "at": "2020-01-01T00:00:00Z"})).json()
    by_status = (await api.get("/api/tool-calls", params={"status": "completed"})).json()["items"]
    odd = await api.get("/api/tool-calls", params={"at": "yesterday"})

    assert [(each["tool_name"], each["status"], each["run_id"]) for each in now] == [("count", "completed", run_id)]
    assert now[0]["done"]["status"] == "completed"
    assert past["items"] == []
    assert len(by_status) == 1
    assert odd.status_code == 422


async def test_a_proposal_is_decided_once_and_applied(api: httpx.AsyncClient, hf: Holdfast) -> None:
    for name in ("p1", "p2"):
        await hf.as_user("local").audit.record_edit_proposed(name, diffs_json=[{"path": "a", "diff": "+1"}])

    pending = (await api.get("/api/proposals", params={"status": "pending"})).json()["items"]
    too_soon = await api.post("/api/proposals/p1/apply", json={})
    approved = await api.post("/api/proposals/p1/approve", json={"actor": "ada"})
    denied = await api.post("/api/proposals/p2/deny")
    changed = await api.post("/api/proposals/p2/approve")
    applied = await api.post("/api/proposals/p1/apply", json={"results": {"lines": 1}, "commit_hash": "abc"})
    reverted = await api.post("/api/proposals/p1/revert")
    unknown = await api.post("/api/proposals/none/approve")

    assert {each["request_id"] for each in pending} == {"p1", "p2"}
    assert (too_soon.status_code, changed.status_code) == (409, 409)
    assert (approved.json()["status"], approved.json()["actor"]) == ("approved", "ada")
    assert (denied.json()["status"], denied.json()["actor"]) == ("denied", "local")
    assert (applied.json()["status"], applied.json()["commit_hash"]) == ("applied", "abc")
    assert reverted.json()["status"] == "reverted"
    assert unknown.status_code == 404
