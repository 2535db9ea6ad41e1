"""Runs over HTTP: posted, listed, read, ordered about."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from holdfast import Holdfast

FIELDS = {"run_id", "session_id", "input_text", "status", "created_at", "started_at", "finished_at", "error_message"}


async def post(api: httpx.AsyncClient, **body: Any) -> str:
    answer = await api.post("/api/runs", json={"session_id": "s1", "message": "hello you", **body})
    assert answer.status_code == 202, answer.text
    return str(answer.json()["run_id"])


@pytest.mark.clause("W-24", "WB-2", "C-2", "H-W10", "C-15")
async def test_a_posted_run_is_queued_and_says_where_it_is(api: httpx.AsyncClient, hf: Holdfast) -> None:
    answer = await api.post("/api/runs", json={"session_id": "new", "message": "hello", "mood": "calm"})

    run_id = answer.json()["run_id"]
    assert (answer.status_code, answer.json()) == (202, {"run_id": run_id, "status": "queued"})
    assert answer.headers["location"] == f"/api/runs/{run_id}/events"
    assert answer.headers["content-location"] == f"/api/runs/{run_id}"
    run = await hf.get_run(run_id)
    assert run is not None
    assert (run.clog_id, run.session_id, run.lane) == ("chat", "new", "session")
    assert run.pending_input == {"text": "hello", "mood": "calm"}
    await hf.drain()
    ended = (await api.get(f"/api/runs/{run_id}")).json()
    assert (ended["status"], ended["state"], ended["resumable"]) == ("completed", "done", False)


@pytest.mark.clause("WB-2", "W-24")
@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 400),
        (b'{"session_id": "s"}', 422),
        (b'{"session_id": "s", "message": ""}', 422),
        (b'{"message": "m"}', 422),
        (b'{"session_id": "", "message": "m"}', 422),
        (b'{"session_id": "s", "message": 7}', 422),
        (b'{"session_id": "a b", "message": "m"}', 422),
        (b'{"session_id": "s", "input": NaN}', 422),
        (b'{"session_id": "s", "input": ' + b"[" * 70 + b"]" * 70 + b"}", 422),
        (b'{"session_id": "s", "input": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", 422),
        (b"[" * 100_000, 422),
    ],
)
async def test_a_body_that_does_not_fit_is_refused(
    api: httpx.AsyncClient, hf: Holdfast, body: bytes, status: int
) -> None:
    answer = await api.post("/api/runs", content=body, headers={"content-type": "application/json"})

    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json")
    assert answer.json()["status"] == status
    assert answer.json()["code"] in ("malformed", "invalid_value")
    assert (await hf.list_runs()).items == []


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b'{"session_id": "s", "message": "m", "session_id": "t"}', 422, "invalid_value"),
        (b'{"session_id": "s", "input": [{"a": 1, "b": {"c": 1, "c": 2}}]}', 422, "invalid_value"),
        (b'{"session_id": "s", "input": %b}' % (b"9" * 5_000), 422, "invalid_value"),
        (b"[" * 100_000, 422, "invalid_value"),
        (b'{"session_id": "s", "message": "\xff"}', 400, "malformed"),
    ],
)
async def test_what_readers_would_not_agree_on_is_refused(
    api: httpx.AsyncClient, hf: Holdfast, body: bytes, status: int, code: str
) -> None:
    headers = {"content-type": "application/json"}
    answers = [
        await api.post("/api/runs", content=body, headers=headers),
        await api.patch("/api/settings", content=body, headers=headers),
    ]

    assert [(each.status_code, each.json()["code"]) for each in answers] == [(status, code)] * 2
    assert (await hf.list_runs()).items == []


async def test_whatever_is_said_beside_a_message_reaches_the_handler(api: httpx.AsyncClient, hf: Holdfast) -> None:
    body = {"session_id": "s", "message": "hi", "input": {"a": 1}, "mood": "good", "clog_id": "asker"}
    made = (await api.post("/api/runs", json=body)).json()

    run = await hf.get_run(made["run_id"])

    assert run is not None
    assert run.pending_input == {"text": "hi", "input": {"a": 1}, "mood": "good"}


async def test_what_can_be_repaired_is_stored_repaired(api: httpx.AsyncClient, hf: Holdfast) -> None:
    body = b'{"session_id": "s1", "message": "a\\u0000b\\ud800c"}'

    answer = await api.post("/api/runs", content=body, headers={"content-type": "application/json"})

    run_id = answer.json()["run_id"]
    assert (await api.get(f"/api/runs/{run_id}")).json()["input_text"] == "a\ufffdb\ufffdc"
    entries = (await api.get(f"/api/runs/{run_id}/journal")).json()["items"]
    assert entries[0]["data"]["repaired"] is True


@pytest.mark.clause("WB-4", "W-26", "W-10", "C-1", "C-15")
async def test_a_run_has_the_known_fields(api: httpx.AsyncClient, hf: Holdfast) -> None:
    run_id = await post(api)

    queued = (await api.get(f"/api/runs/{run_id}")).json()
    await hf.drain()
    ended = (await api.get(f"/api/runs/{run_id}")).json()

    assert queued.keys() >= FIELDS
    assert (queued["status"], queued["state"], queued["input_text"]) == ("queued", "pending", "hello you")
    assert (queued["started_at"], queued["finished_at"]) == (None, None)
    assert queued["created_at"] <= ended["started_at"] <= ended["finished_at"] < 10**14
    assert (ended["status"], ended["output"]) == ("completed", {"words": 2})


@pytest.mark.clause("WB-4", "C-12", "W-11")
async def test_what_never_was_is_404_and_what_is_gone_is_410(api: httpx.AsyncClient, hf: Holdfast) -> None:
    run_id = await post(api)
    await hf.drain()
    await hf.delete_run(run_id)
    other = await post(api)
    await hf.drain()
    await hf.gc(ttl=0)

    paths = ["", "/events", "/journal", "/inspect", "/explain", "/graph"]
    for gone in (run_id, other):
        assert [(await api.get(f"/api/runs/{gone}{path}")).status_code for path in paths] == [410] * 6
        assert (await api.post(f"/api/runs/{gone}/cancel")).status_code == 410
    assert [(await api.get(f"/api/runs/none{path}")).status_code for path in paths] == [404] * 6
    assert (await api.post("/api/runs/none/cancel")).json()["code"] == "not_found"


@pytest.mark.clause("WB-3", "C-1")
async def test_lists_are_filtered_clamped_and_paged(api: httpx.AsyncClient, hf: Holdfast) -> None:
    first = [await post(api, session_id="s1") for _ in range(3)]
    await hf.drain()
    last = [await post(api, session_id="s1"), await post(api, session_id="s2")]

    async def listed(**query: Any) -> list[str]:
        return [run["run_id"] for run in (await api.get("/api/runs", params=query)).json()["runs"]]

    assert await listed() == [*reversed(last), *reversed(first)]
    assert await listed(session_id="s1") == [last[0], *reversed(first)]
    assert await listed(statuses="queued,running") == [*reversed(last)]
    assert await listed(statuses="completed,nonsense") == [*reversed(first)]
    assert await listed(session_id="nobodys") == []
    assert len(await listed(limit=0)) == 1
    assert len(await listed(limit=100_000)) == 5
    page = (await api.get("/api/runs", params={"limit": 2})).json()
    rest = await api.get("/api/runs", params={"limit": 3, "cursor": page["next"]})
    assert [run["run_id"] for run in page["runs"] + rest.json()["runs"]] == [*reversed(last), *reversed(first)]
    assert rest.json()["next"] is None
    assert (await api.get("/api/runs", params={"cursor": "nonsense"})).status_code == 422


@pytest.mark.clause("W-25", "WB-5", "C-6", "H-W3", "W-03", "WB-31")
async def test_a_queued_run_is_cancelled_at_once_and_the_first_time_stays(api: httpx.AsyncClient, hf: Holdfast) -> None:
    run_id = await post(api)

    answers = [await api.post(f"/api/runs/{run_id}/cancel") for _ in range(2)]

    assert [(answer.status_code, answer.json()) for answer in answers] == [(200, {"ok": True})] * 2
    run = (await api.get(f"/api/runs/{run_id}")).json()
    assert (run["status"], run["state"]) == ("cancelled", "cancelled")
    kinds = [entry.kind for entry in await hf.journal.read(f"run:{run_id}")]
    assert kinds.count("cancel_requested") == 1
    assert kinds[-1] == "run_terminal"


@pytest.mark.clause("W-25", "C-6", "W-18", "W-19")
async def test_cancelling_what_runs_does_not_wait_for_it(api: httpx.AsyncClient, hf: Holdfast) -> None:
    run_id = await post(api, clog_id="slow", input={"times": 1_000}, message=None)
    worker = hf.worker()
    working = asyncio.create_task(worker.run())
    async for _ in hf.events(run_id, follow=True):
        if (await api.get(f"/api/runs/{run_id}")).json()["status"] == "running":
            break

    answer = await api.post(f"/api/runs/{run_id}/cancel", json={"reason": "enough", "actor": "ada"})
    ended = (await api.get(f"/api/runs/{run_id}", params={"wait": 10})).json()

    worker.stop()
    await working
    assert answer.json() == {"ok": True}
    assert ended["status"] == "cancelled"
    assert ended["cancel_requested_at"] <= ended["finished_at"]


async def test_a_run_can_be_waited_for(api: httpx.AsyncClient, hf: Holdfast) -> None:
    run_id = await post(api)

    waited, _ = await asyncio.gather(api.get(f"/api/runs/{run_id}", params={"wait": 10}), hf.drain())
    other = await post(api)
    in_vain = await api.get(f"/api/runs/{other}", params={"wait": 1})

    assert waited.json()["status"] == "completed"
    assert in_vain.json()["status"] == "queued"


@pytest.mark.clause("C-2")
async def test_a_signal_wakes_a_run_that_rests(api: httpx.AsyncClient, hf: Holdfast) -> None:
    run = await hf.create_run(session_id="s1", clog_id="asker")

    accepted = await api.post(f"/api/runs/{run.run_id}/signal", json={"input": {"text": "news"}})
    await hf.drain()
    resting = (await api.get(f"/api/runs/{run.run_id}")).json()
    await hf.cancel(run.run_id)
    late = await api.post(f"/api/runs/{run.run_id}/signal", json={"input": 1})

    assert accepted.json()["accepted"] is True
    assert (resting["status"], resting["state"], resting["resumable"]) == ("completed", "idle", True)
    assert (late.status_code, late.json()["accepted"], late.json()["reason"]) == (200, False, "terminal")


async def test_questions_are_answered_over_http(api: httpx.AsyncClient, hf: Holdfast) -> None:
    @hf.flow("release")
    async def release(ctx: Any, input: Any) -> Any:
        decision = await ctx.approval("go", details={"version": input})
        return {"approved": decision.approved, "by": decision.actor, "comment": decision.comment}

    first, second = [await post(api, clog_id="release", input=n, message=None, session_id=f"s{n}") for n in (1, 2)]
    await hf.drain()

    asked = (await api.get("/api/approvals")).json()["items"]
    yes = await api.post(f"/api/runs/{first}/approve", json={"actor": "ada", "comment": "fine"})
    again = await api.post(f"/api/runs/{first}/approve", json={"actor": "ada"})
    no = await api.post(f"/api/runs/{second}/reject", json={"actor": "bob"})
    resumed = await api.post(f"/api/runs/{second}/resume", json={})
    await hf.drain()

    assert {(each["run_id"], each["step"], each["details"]["version"]) for each in asked} == {
        (first, "go", 1),
        (second, "go", 2),
    }
    assert (yes.status_code, no.status_code) == (200, 200)
    assert (again.status_code, again.json()["code"]) == (409, "stale_manual_resolution")
    assert resumed.status_code == 409
    outputs = [(await api.get(f"/api/runs/{run_id}")).json()["output"] for run_id in (first, second)]
    assert outputs == [
        {"approved": True, "by": "ada", "comment": "fine"},
        {"approved": False, "by": "bob", "comment": None},
    ]


async def test_runs_are_forked_and_replayed(api: httpx.AsyncClient, hf: Holdfast) -> None:
    run_id = await post(api)
    await hf.drain()

    forked = await api.post(f"/api/runs/{run_id}/fork", json={"at_rev": 1})
    replayed = await api.post(f"/api/runs/{run_id}/replay")
    await hf.drain()

    for answer in (forked, replayed):
        assert answer.status_code == 202
        made = (await api.get(f"/api/runs/{answer.json()['run_id']}")).json()
        assert (made["status"], made["output"]) == ("completed", {"words": 2})
    beyond = await api.post(f"/api/runs/{run_id}/fork", json={"at_rev": 10_000})
    assert beyond.status_code == 404


async def test_a_run_shows_its_past_and_why_it_is_where_it_is(api: httpx.AsyncClient, hf: Holdfast) -> None:
    run_id = await post(api)
    await hf.drain()

    past = (await api.get(f"/api/runs/{run_id}", params={"as_of": 1})).json()
    born = (await api.get(f"/api/runs/{run_id}", params={"as_of": past["created_at"]})).json()
    unborn = await api.get(f"/api/runs/{run_id}", params={"as_of": "2020-01-01T00:00:00Z"})
    journal = (await api.get(f"/api/runs/{run_id}/journal", params={"limit": 2})).json()
    rest = (await api.get(f"/api/runs/{run_id}/journal", params={"after": journal["next"], "limit": 1_000})).json()
    inspected = (await api.get(f"/api/runs/{run_id}/inspect")).json()
    explained = (await api.get(f"/api/runs/{run_id}/explain")).json()

    assert (past["state"], past["rev"]) == ("pending", 1)
    assert born["rev"] >= 1, "a time that was answered finds what it was answered for"
    assert unborn.status_code == 404
    revs = [entry["rev"] for entry in journal["items"] + rest["items"]]
    assert revs == list(range(1, inspected["rev"] + 1))
    assert isinstance(inspected["created_at"], int)
    assert "claim_token_hash" not in str(journal) + str(rest)
    assert explained["status"] == "done"
    assert (await api.get(f"/api/runs/{run_id}", params={"as_of": 10_000})).status_code == 404


@pytest.mark.parametrize(
    ("as_of", "status"),
    [
        ("99999999999999999999", 200),
        ("9999-12-31T23:59:59-14:00", 200),
        ("END", 200),
        ("0001-01-01T00:00:00+14:00", 404),
        ("1969-12-31T23:59:59Z", 404),
        ("0", 404),
        ("99999999999", 404),
        ("-1", 422),
        ("2026-11-17", 422),
        ("\x00", 422),
    ],
)
async def test_any_moment_can_be_asked_for(api: httpx.AsyncClient, as_of: str, status: int) -> None:
    made = (await api.post("/api/runs", json={"session_id": "s", "message": "hi"})).json()

    answer = await api.get(f"/api/runs/{made['run_id']}", params={"as_of": as_of})

    assert answer.status_code == status


async def test_whoever_has_no_worker_pokes(api: httpx.AsyncClient) -> None:
    run_id = await post(api)

    nothing = (await api.post("/api/advance", json={"budget_ms": 0})).json()
    poked = (await api.post("/api/advance", json={"budget_ms": 10_000})).json()

    assert (nothing["advanced"], nothing["budget_exhausted"]) == (0, True)
    assert [(each["run_id"], each["status"]) for each in poked["results"]] == [(run_id, "done")]


@pytest.mark.clause("H-W13", "WB-14", "W-19", "W-07")
async def test_a_failed_run_says_why(api: httpx.AsyncClient, hf: Holdfast) -> None:
    run_id = await post(api, clog_id="moody", input={"end": "fail"}, message=None)
    await hf.drain()

    run = (await api.get(f"/api/runs/{run_id}")).json()

    assert (run["status"], run["error_message"]) == ("failed", "it did not work")
    assert run["finished_at"] is not None


@pytest.mark.clause("W-23", "H-W1", "W-10")
async def test_a_run_that_cannot_be_resumed_fails_with_its_reason(api: httpx.AsyncClient, hf: Holdfast) -> None:
    run = await hf.create_run(session_id="s1", clog_id="chat", input={"text": "once"}, resumable=False)
    (claim,) = await hf.claim_next(owner="w1", lease_ms=300)
    held = (await api.get(f"/api/runs/{run.run_id}")).json()
    await asyncio.sleep(0.4)
    await hf.drain()

    lost = (await api.get(f"/api/runs/{run.run_id}")).json()

    assert (held["status"], held["owner_id"], held["deliveries"]) == ("running", "w1", 1)
    assert held["lease_until"] == int(claim.lease_until.timestamp() * 1_000)
    assert (lost["status"], lost["error_kind"], lost["owner_id"]) == ("failed", "worker_lost", None)
    assert lost["error_message"]


@pytest.mark.clause("C-6", "WB-5", "W-25")
async def test_what_is_paused_rests_or_is_over_can_be_cancelled_too(api: httpx.AsyncClient, hf: Holdfast) -> None:
    paused = await post(api, session_id="s1")
    await hf.pause(paused, "hold", "pause")
    resting = (await hf.create_run(session_id="s2", clog_id="asker")).run_id
    over = await post(api, session_id="s3")
    await hf.drain()
    before = {run_id: (await api.get(f"/api/runs/{run_id}")).json() for run_id in (paused, resting, over)}

    answers = [await api.post(f"/api/runs/{run_id}/cancel") for run_id in (paused, resting, over)]

    after = {run_id: (await api.get(f"/api/runs/{run_id}")).json() for run_id in (paused, resting, over)}
    assert [answer.json() for answer in answers] == [{"ok": True}] * 3
    assert [before[run_id]["state"] for run_id in before] == ["paused", "idle", "done"]
    assert [after[run_id]["state"] for run_id in after] == ["cancelled", "cancelled", "done"]
    assert after[over] == before[over], "what is over stays as it was"
    for run_id in (paused, resting):
        ends = [event.type async for event in hf.events(run_id)][-2:]
        assert ends == ["cancel_requested", "done"]
