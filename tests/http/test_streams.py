"""Event streams on a real socket: frames, cursors, the end, those who come back, and those who do not keep up."""

from __future__ import annotations

import asyncio
import json
import socket
from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.errors import DatabaseError
from holdfast.http import Limits, streams
from holdfast.http import following as chunks
from holdfast.http import readers as readers_module
from holdfast.http import tails as tails_module
from holdfast.http.frames import frame
from holdfast.http.readers import Reader
from holdfast.runtime import Event
from holdfast.runtime import following as stored
from holdfast.store.hints import Listener
from tests.http.conftest import Serve, known_user
from tests.http.readers import Seen, frames, opened, read, types, until


@pytest.fixture
async def worker(hf: Holdfast) -> AsyncIterator[object]:
    """A worker beside the API for as long as the test runs."""
    found = hf.worker()
    task = asyncio.create_task(found.run())
    yield found
    found.stop()
    await task


@pytest.mark.clause("W-27", "W-28", "W-29", "WB-6", "H-W5", "C-15", "W-15", "W-16")
async def test_a_stream_tells_everything_once_and_ends_with_done(serve: Serve, worker: object) -> None:
    api = await serve()
    run_id = await api.start(message="one two three")

    seen = await read(api.client, f"/api/runs/{run_id}/events")

    expected = ["run_queued", "run_started", "message_start", "text", "message_end", "tool_call", "tool_result"]
    assert types(seen) == [*expected, "final", "done"]
    assert [each.seq for each in seen] == sorted({each.seq for each in seen})
    assert seen[0].seq > 0
    for each in seen:
        assert (each.data["seq"], each.data["type"], each.data["run_id"]) == (each.seq, each.type, run_id)
        assert isinstance(each.data["ts"], int)
    assert seen[-1].data["status"] == "completed"
    assert seen[3].data["content"] == "onetwothree"


@pytest.mark.clause("WB-6", "W-27")
async def test_the_first_bytes_come_at_once_with_the_headers_that_proxies_need(serve: Serve) -> None:
    api = await serve()
    run_id = await api.start(message="hello")

    async with asyncio.timeout(5), opened(api.client, f"/api/runs/{run_id}/events") as response:
        first = await anext(response.aiter_raw())

    assert first.startswith(b": stream open\nretry: 1000\n\n")
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert {"no-cache", "no-store", "no-transform"} <= set(response.headers["cache-control"].split(", "))
    assert response.headers["x-accel-buffering"] == "no"
    assert "content-length" not in response.headers
    assert b"\r" not in first


@pytest.mark.clause("W-27", "W-33", "W-52", "H-W12")
async def test_a_stream_goes_on_after_any_cursor_without_loss_or_repeat(serve: Serve, hf: Holdfast) -> None:
    api = await serve()
    run_id = await api.start(clog_id="counter", input={"times": 200})
    await hf.drain()
    path = f"/api/runs/{run_id}/events"
    whole = await read(api.client, path)

    for place in (0, 1, 57, 150, len(whole) - 2):
        rest = await read(api.client, path, whole[place].id)
        assert rest == whole[place + 1 :]
    between = whole[50].seq
    by_query = await read(api.client, f"{path}?cursor={between}")
    header_wins = await read(api.client, f"{path}?cursor={between}", whole[100].id)
    assert by_query == whole[51:]
    assert header_wins == whole[101:]
    assert len([each for each in whole if each.type == "number"]) == 200


@pytest.mark.clause("H-W12", "WB-6")
@pytest.mark.parametrize("cursor", ["garbage", "0", "-5", "1.5", "", "٣", "0x10"])
async def test_an_odd_cursor_means_from_the_start(serve: Serve, hf: Holdfast, cursor: str) -> None:
    api = await serve()
    run_id = await api.start(message="hello")
    await hf.drain()

    seen = await read(api.client, f"/api/runs/{run_id}/events?cursor={cursor}")

    assert (seen[0].seq, seen[-1].type) == (1, "done")


@pytest.mark.clause("H-W5", "WB-31", "H-W12")
async def test_whoever_has_seen_the_end_is_told_not_to_come_back(serve: Serve, hf: Holdfast) -> None:
    api = await serve()
    run_id = await api.start(message="hello")
    await hf.drain()
    path = f"/api/runs/{run_id}/events"
    done = (await read(api.client, path))[-1]

    at_the_end = await api.get(path, headers={"Last-Event-ID": str(done.seq)})
    beyond = await api.get(path, headers={"Last-Event-ID": str(done.seq + 1_000)})
    just_before = await read(api.client, path, done.seq - 1)

    assert (at_the_end.status_code, at_the_end.content) == (204, b"")
    assert beyond.status_code == 204
    assert just_before == [done]


@pytest.mark.clause("H-W12")
async def test_a_cursor_ahead_of_a_live_run_gets_a_reset_and_then_everything(serve: Serve, hf: Holdfast) -> None:
    api = await serve()
    run_id = await api.start(message="hello")
    head = (await hf.get_run(run_id)).rev  # type: ignore[union-attr]

    seen, _ = await asyncio.gather(read(api.client, f"/api/runs/{run_id}/events", 99_999), _soon(hf))

    assert (seen[0].id, seen[0].type, seen[0].data["head"]) == (None, "reset", head)
    assert (seen[1].seq, seen[1].type, seen[-1].type) == (1, "run_queued", "done")


async def _soon(hf: Holdfast) -> None:
    await asyncio.sleep(0.3)
    await hf.drain()


@pytest.mark.clause("W-02", "W-16", "W-30", "C-2")
async def test_what_happens_arrives_while_it_happens(serve: Serve, worker: object) -> None:
    api = await serve()
    run_id = await api.start(clog_id="slow", input={"times": 20, "pace_s": 0.02})
    loop = asyncio.get_running_loop()
    came: list[float] = []

    async with asyncio.timeout(20), opened(api.client, f"/api/runs/{run_id}/events") as response:
        async for each in frames(response):
            if isinstance(each, Seen) and each.type == "number":
                came.append(loop.time())

    assert len(came) == 20
    assert came[-1] - came[0] > 0.2, "they came one by one"


@pytest.mark.clause("W-02", "W-06", "W-30")
async def test_without_any_hint_everything_still_arrives(
    serve: Serve, worker: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Listener, "tell", lambda self, topics: None)
    api = await serve()
    run_id = await api.start(clog_id="slow", input={"times": 10})

    seen = await read(api.client, f"/api/runs/{run_id}/events")

    assert [each.data["number"] for each in seen if each.type == "number"] == list(range(10))
    assert types(seen)[-1] == "done"


@pytest.mark.clause("W-02", "W-30")
async def test_a_lost_hint_is_made_up_for_while_others_are_busy(
    serve: Serve, worker: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = await serve()
    busy = await api.start(session_id="busy", clog_id="slow", input={"times": 400, "pace_s": 0.01})
    quiet = await api.start(session_id="quiet", clog_id="slow", input={"times": 3, "pace_s": 0.5})
    tell = Listener.tell
    monkeypatch.setattr(Listener, "tell", lambda self, topics: tell(self, topics - {f"run:{quiet}"}))
    others = asyncio.create_task(read(api.client, f"/api/runs/{busy}/events"))

    seen = await read(api.client, f"/api/runs/{quiet}/events")

    assert types(seen)[-1] == "done"
    assert not others.done(), "the other one was busy all the time"
    others.cancel()


@pytest.mark.clause("C-2")
async def test_a_run_that_rests_keeps_its_stream_open(serve: Serve, hf: Holdfast) -> None:
    api = await serve()
    run = await hf.create_run(session_id="s", clog_id="asker", input="first")
    reading = asyncio.create_task(read(api.client, f"/api/runs/{run.run_id}/events"))
    await hf.drain()

    await hf.signal(run.run_id, "second")
    await hf.drain()
    await hf.cancel(run.run_id)
    seen = await reading

    assert types(seen).count("run_idle") == 2
    assert types(seen).count("done") == 1
    assert seen[-1].data["status"] == "cancelled"


@pytest.mark.clause("H-W13", "WB-14")
async def test_a_failing_run_ends_with_error_and_then_done(serve: Serve, hf: Holdfast) -> None:
    api = await serve()
    run_id = await api.start(clog_id="moody", input={"end": "fail"})
    await hf.drain()

    seen = await read(api.client, f"/api/runs/{run_id}/events")

    assert types(seen)[-2:] == ["error", "done"]
    assert types(seen).count("error") == 1
    assert seen[-1].data["status"] == "error"
    assert (seen[-1].data["run_status"], seen[-1].data["error"]) == ("failed", "it did not work")


async def test_a_quiet_stream_says_that_it_is_still_there(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers_module, "COMMENT_S", 0.05)
    api = await serve()
    run_id = await api.start(message="nobody works here")
    comments = 0

    async with asyncio.timeout(10), opened(api.client, f"/api/runs/{run_id}/events") as response:
        async for each in frames(response):
            comments += each == "still here"
            if comments == 3:
                break

    assert comments == 3


@pytest.mark.clause("W-02")
async def test_one_tail_feeds_all_readers_of_a_run(serve: Serve, hf: Holdfast) -> None:
    api = await serve()
    run_id = await api.start(clog_id="counter", input={"times": 300})
    tails = api.server._service.tails
    reading = [asyncio.create_task(read(api.client, f"/api/runs/{run_id}/events")) for _ in range(20)]
    await until(lambda: tails.readers_of(run_id) == 20)

    assert len(tails._tails) == 1
    await hf.drain()
    told = await asyncio.gather(*reading)

    assert all(each == told[0] for each in told)
    assert len(told[0]) == 303
    assert tails._tails == {}


@pytest.mark.clause("W-29", "W-27")
async def test_closing_a_stream_cancels_nothing(serve: Serve, hf: Holdfast, worker: object) -> None:
    api = await serve()
    run_id = await api.start(clog_id="slow", input={"times": 20})

    await read(api.client, f"/api/runs/{run_id}/events", until=lambda seen: seen.type == "number")
    ended = await api.get(f"/api/runs/{run_id}", params={"wait": 20})

    assert (ended.json()["status"], ended.json()["cancel_requested_at"]) == ("completed", None)
    tails = api.server._service.tails
    await until(lambda: not tails._tails)


@pytest.mark.clause("W-52", "H-W5")
async def test_a_stream_that_begins_while_it_is_asked_which_runs_are_gone_goes_on(
    serve: Serve, hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, answer = asyncio.Event(), asyncio.Event()

    async def slowly(*told: Any) -> Any:
        found = await stored.standings(*told)
        asked.set()
        await answer.wait()
        return found

    monkeypatch.setattr(tails_module, "standings", slowly)
    api = await serve()
    first, second = [await api.start(session_id=name, message="nobody works here") for name in ("s1", "s2")]
    paths = [f"/api/runs/{run_id}/events" for run_id in (first, second)]
    reading = [asyncio.create_task(read(api.client, paths[0]))]
    await asyncio.wait_for(asked.wait(), 10)
    reading.append(asyncio.create_task(read(api.client, paths[1])))
    await until(lambda: api.server._service.tails.readers_of(second) == 1)

    answer.set()
    for run_id in (first, second):
        await hf.cancel(run_id)
    told = await asyncio.gather(*reading)

    assert [types(each) for each in told] == [["run_queued", "cancel_requested", "done"]] * 2


async def test_a_leaving_process_ends_its_streams_within_two_seconds(serve: Serve, hf: Holdfast) -> None:
    api = await serve()
    run_id = await api.start(message="nobody works here")
    loop = asyncio.get_running_loop()
    reading = [asyncio.create_task(read(api.client, f"/api/runs/{run_id}/events")) for _ in range(10)]
    await until(lambda: api.server._service.tails.readers_of(run_id) == 10)

    since = loop.time()
    api.server.drain()
    ready = await api.get("/readyz")
    told = await asyncio.gather(*reading)

    assert loop.time() - since < 2
    assert (ready.status_code, ready.json()["checks"]["draining"]) == (503, "yes")
    assert all(types(each)[-1] != "done" for each in told)
    await asyncio.wait_for(asyncio.shield(api.task), 3)


@pytest.mark.clause("W-02")
async def test_a_reader_that_stops_costs_a_bounded_queue_and_loses_its_connection(
    serve: Serve, hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Reader.__init__, "__kwdefaults__", {"frames_max": 100, "bytes_max": 1 << 20})
    api = await serve()
    run_id = await api.start(clog_id="counter", input={"times": 3_000, "size": 4_000})
    tails = api.server._service.tails
    stopped = socket.create_connection(api.server.address)
    stopped.sendall(f"GET /api/runs/{run_id}/events HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    await until(lambda: bool(tails.readers_of(run_id)))

    await hf.drain()
    await until(lambda: not tails.readers_of(run_id))
    whole = await read(api.client, f"/api/runs/{run_id}/events")

    assert api.server._service.metrics.dropped._value.get() == 1
    assert types(whole).count("number") == 3_000, "the events themselves are all there"
    stopped.close()


async def test_a_queue_that_is_full_is_lost_whole() -> None:
    reader = Reader(frames_max=3, bytes_max=1 << 20)
    made = [frame("r", _event(seq), is_end=False) for seq in range(1, 6)]

    for each in made:
        reader.put([each], len(each.whole))

    assert reader.is_lost
    assert reader.stopped.done()
    assert await reader.take() == []


async def test_a_reader_is_told_that_time_has_passed_only_when_nothing_else_came() -> None:
    reader = Reader()
    taking = asyncio.create_task(reader.take())
    await asyncio.sleep(0)

    reader.tick()
    reader.put([frame("r", _event(1), is_end=False)], 10)
    first = await taking
    taking = asyncio.create_task(reader.take())
    await asyncio.sleep(0)
    reader.tick()
    await asyncio.sleep(0)
    is_early = taking.done()
    reader.tick()
    second = await taking

    assert first is not None
    assert [each.seq for each in first] == [1]
    assert not is_early
    assert second is None


def _event(seq: int) -> Event:
    return Event(seq=seq, type="n", data={"n": seq}, at=datetime(2030, 1, 1, tzinfo=UTC))


@pytest.mark.clause("WB-7", "W-32")
async def test_the_old_chat_endpoint_streams_its_run(serve: Serve, worker: object) -> None:
    api = await serve()

    seen: list[Seen] = []
    async with (
        asyncio.timeout(20),
        api.client.stream("POST", "/api/chat/s1", json={"message": "hello there"}) as response,
    ):
        seen += [each async for each in frames(response) if isinstance(each, Seen)]

    assert (types(seen)[0], types(seen)[-1]) == ("run_queued", "done")
    assert response.headers["location"].endswith("/events")
    assert [each.data["content"] for each in seen if each.type == "final"] == ["2 words: hello there"]


@pytest.mark.clause("W-50", "W-52")
async def test_a_session_streams_all_its_runs_and_resumes(serve: Serve, hf: Holdfast, worker: object) -> None:
    api = await serve()
    first = await api.start(session_id="s1", message="one")
    path = "/api/sessions/s1/events"
    part = await read(api.client, path, until=lambda seen: seen.type == "tool_call")

    second = await api.start(session_id="s1", message="two")
    other = await api.start(session_id="s2", message="elsewhere")
    rest = await read(
        api.client, path, part[-1].id, until=lambda seen: seen.type == "done" and seen.data["run_id"] == second
    )

    for run_id in (first, second):
        whole = await read(api.client, f"/api/runs/{run_id}/events")
        told = [each.data for each in part + rest if each.data["run_id"] == run_id]
        assert told == [each.data for each in whole]
    assert other not in {each.data["run_id"] for each in part + rest}
    again = asyncio.create_task(read(api.client, path, rest[-1].id, until=lambda seen: True))
    third = await api.start(session_id="s1", message="three")
    assert (await again)[0].data["run_id"] == third


@pytest.mark.clause("H-W5", "WB-31")
async def test_nothing_comes_after_done_whatever_happens_to_the_run_later(serve: Serve, hf: Holdfast) -> None:
    api = await serve()
    run_id = await api.start(message="hello")
    await hf.drain()
    await hf.signal(run_id, "too late")

    seen = await read(api.client, f"/api/runs/{run_id}/events")
    of_session = await read(api.client, "/api/sessions/s/events", until=lambda each: each.type == "done")

    run = await hf.get_run(run_id)
    assert run is not None
    assert run.rev > seen[-1].seq
    assert types(seen)[-1] == "done"
    assert [each.data for each in of_session] == [each.data for each in seen]


@pytest.mark.clause("W-44", "H-W4")
async def test_a_forged_cursor_of_a_session_opens_no_other(serve: Serve, hf: Holdfast) -> None:
    api = await serve(authenticate=known_user)
    theirs = await hf.as_user("ada").create_run(session_id="adas", clog_id="chat", input={"text": "secret"})
    other = await hf.as_user("bob").create_run(session_id="bobs-other", clog_id="chat", input={"text": "elsewhere"})
    await hf.as_user("bob").create_run(session_id="bobs", clog_id="chat", input={"text": "mine"})
    await hf.drain()
    forged = chunks.SessionCursor(runs={theirs.run_id: 0, other.run_id: 0}).text
    api.client.headers["x-user"] = "bob"

    seen = await read(api.client, "/api/sessions/bobs/events", forged, until=lambda each: each.type == "done")

    assert theirs.run_id not in str(seen)
    assert other.run_id not in str(seen)
    assert seen[0].type == "run_queued"


@pytest.mark.parametrize("runs", ['{"a b": 1}', '{"r": -1}', '{"r": 99999999999999999999}', '["r"]'])
async def test_an_odd_cursor_of_a_session_means_from_the_start(runs: str) -> None:
    text = urlsafe_b64encode(f'{{"settled_us": 0, "runs": {runs}}}'.encode()).decode()

    assert chunks.SessionCursor.parsed(text) == chunks.SessionCursor()
    assert chunks.SessionCursor.parsed("garbage!") == chunks.SessionCursor()
    assert chunks.SessionCursor.parsed(chunks.SessionCursor(5, {"r": 7}).text) == chunks.SessionCursor(5, {"r": 7})


async def test_a_stream_that_nobody_can_feed_waits(serve: Serve, hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    api = await serve()
    run_id = await api.start(message="hello")
    await hf.drain()
    real = stored.happened
    away = [True, True, True]

    async def happened(*args: object, **options: object) -> object:
        if away:
            away.pop()
            raise DatabaseError("the database is away")
        return await real(*args, **options)  # type: ignore[arg-type]

    async def standing(*args: object) -> object:
        raise DatabaseError("the database is away")

    monkeypatch.setattr(chunks, "AWAY_S", 0.01)
    monkeypatch.setattr(chunks, "happened", happened)
    monkeypatch.setattr(streams, "standing", standing)

    seen = await read(api.client, f"/api/runs/{run_id}/events")

    assert (types(seen)[0], types(seen)[-1], away) == ("run_queued", "done", [])


async def test_a_stream_ends_after_a_while_and_its_reader_comes_back(serve: Serve, hf: Holdfast) -> None:
    api = await serve(limits=Limits(stream_s=0.2))
    run_id = await api.start(message="hello")

    seen = await read(api.client, f"/api/runs/{run_id}/events")
    await hf.drain()
    rest = await read(api.client, f"/api/runs/{run_id}/events", seen[-1].id)

    assert types(seen) == ["run_queued"]
    assert types(rest)[-1] == "done"


async def test_a_stream_of_a_run_that_is_purged_ends(
    serve: Serve, hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tails_module, "GONE_S", 0.0)
    api = await serve()
    run = await hf.create_run(session_id="s", clog_id="asker")
    reading = asyncio.create_task(read(api.client, f"/api/runs/{run.run_id}/events"))
    await until(lambda: bool(api.server._service.tails.readers_of(run.run_id)))

    await hf.purge(run.run_id)

    await asyncio.wait_for(reading, 10)
    assert (await api.get(f"/api/runs/{run.run_id}/events")).status_code == 410


async def test_data_is_one_line_whatever_was_said(serve: Serve, hf: Holdfast) -> None:
    api = await serve()
    run_id = await api.start(message="two\r\nlines\u2028here: data: x")
    await hf.drain()

    raw = (await api.get(f"/api/runs/{run_id}/events")).text

    told = [json.loads(line[6:]) for line in raw.split("\n") if line.startswith("data: ")]
    assert told[-1]["type"] == "done"
    assert told[-2]["content"].endswith("two\r\nlines\u2028here: data: x")


async def test_ten_thousand_stored_events_do_not_hold_up_others(serve: Serve, hf: Holdfast) -> None:
    api = await serve()
    run_id = await api.start(clog_id="counter", input={"times": 10_000})
    await hf.drain()
    loop = asyncio.get_running_loop()
    slowest = 0.0

    async def poke() -> None:
        nonlocal slowest
        while True:
            since = loop.time()
            await api.get("/livez")
            slowest = max(slowest, loop.time() - since)

    poking = asyncio.create_task(poke())
    began = loop.time()
    seen = await read(api.client, f"/api/runs/{run_id}/events", within_s=60)
    took = loop.time() - began
    poking.cancel()

    assert len(seen) == 10_003
    # On a busy machine everything takes longer; what is held up takes as long as the reading.
    assert slowest < max(1.0, 0.7 * took)


async def test_too_many_streams_of_one_user_are_refused(serve: Serve, hf: Holdfast) -> None:
    api = await serve(limits=Limits(streams_per_user=2))
    run_id = await api.start(message="hello")
    path = f"/api/runs/{run_id}/events"

    async with opened(api.client, path), opened(api.client, path):
        refused = await api.get(path)
    await asyncio.sleep(0.2)
    await hf.drain()
    again = await read(api.client, path)

    assert (refused.status_code, refused.json()["code"]) == (429, "too_many_requests")
    assert "retry-after" in refused.headers
    assert again[-1].type == "done"
