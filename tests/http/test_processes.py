"""Real processes on one Postgres: API and workers are killed while runs and streams are under way."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path

import httpx
import pytest

from holdfast import Holdfast
from tests.crash.cut_proxy import CutProxy
from tests.http.households import Process, start
from tests.http.readers import Seen, frames, opened, read, types

APP = "tests.http.programs:make"
Serve = Callable[..., Awaitable[Process]]


@pytest.fixture(params=["postgres"])
def configuration(request: pytest.FixtureRequest) -> str:
    """Several machines mean Postgres."""
    return str(request.param)


@pytest.fixture
def schema(own_schema: str) -> str:
    return own_schema


@pytest.fixture
async def hf(database_url: str, schema: str) -> AsyncIterator[Holdfast]:
    async with Holdfast(database_url, schema=schema) as holdfast:
        yield holdfast
        report = await holdfast.fsck()
        assert report.ok, report.problems


@pytest.fixture
async def serve(hf: Holdfast, database_url: str, schema: str) -> AsyncIterator[Serve]:
    made: list[Process] = []

    async def served(role: str, *arguments: str, url: str = database_url, **environment: str) -> Process:
        given = {"HOLDFAST_DATABASE_URL": url, "HOLDFAST_SCHEMA": schema, **environment}
        made.append(await start("serve", APP, "--role", role, "--port", "0", *arguments, **given))
        return await made[-1].ready()

    yield served
    for process in made:
        await process.kill()


async def stored(hf: Holdfast, run_id: str) -> list[int]:
    return [event.seq async for event in hf.events(run_id)]


def joined(*parts: Sequence[Seen]) -> list[int]:
    return [each.seq for part in parts for each in part]


@pytest.mark.clause("W-05", "W-06", "W-50", "W-52", "W-01", "W-04", "W-20", "W-17")
async def test_a_stream_goes_on_at_another_process_after_the_first_is_killed(serve: Serve, hf: Holdfast) -> None:
    a, b, *_ = await asyncio.gather(serve("api"), serve("api"), serve("worker"), serve("worker"))
    run_id = await a.start(clog_id="slow", input={"times": 60, "pace_s": 0.03})
    path = f"/api/runs/{run_id}/events"
    first = await read_until_cut(a, path, at=10)
    rest = await read(b.client, path, first[-1].id)

    assert joined(first, rest) == await stored(hf, run_id)
    assert types(rest).count("done") == 1
    assert "done" not in types(first)
    numbers = [each.data["number"] for each in first + rest if each.type == "number"]
    assert numbers == list(range(60))


async def read_until_cut(api: Process, path: str, *, at: int) -> list[Seen]:
    """What came before the process was killed, which happens when this number was seen."""
    found: list[Seen] = []
    try:
        async with asyncio.timeout(20), opened(api.client, path) as response:
            async for each in frames(response):
                if isinstance(each, Seen):
                    found.append(each)
                    if each.data.get("number") == at:
                        api.send(signal.SIGKILL)
    except httpx.HTTPError:
        return found
    raise AssertionError("the stream ended in order")


@pytest.mark.clause("W-51", "W-21", "W-22", "H-W1", "H-W2", "WB-31", "W-07", "W-13", "W-14")
async def test_a_worker_killed_in_mid_answer_leaves_the_answer_once(serve: Serve, hf: Holdfast) -> None:
    api, first = await asyncio.gather(serve("api"), serve("worker"))
    run_id = await api.start(session_id="talk", clog_id="slow", input={"times": 30, "pace_s": 0.05, "text": "count"})
    path = f"/api/runs/{run_id}/events"
    seen = await read(api.client, path, until=lambda each: each.data.get("number") == 5)

    await first.kill()
    await serve("worker")
    seen += await read(api.client, path, seen[-1].id, within_s=40)

    assert types(seen).count("tick_abandoned") == 1
    assert (types(seen).count("final"), types(seen).count("done")) == (1, 1)
    kept = without_abandoned(seen)
    assert [each.data["number"] for each in kept if each.type == "number"] == list(range(30))
    messages = (await api.client.get("/api/sessions/talk")).json()["messages"]
    assert [(each["role"], each["content"]) for each in messages] == [("user", "count"), ("assistant", "done counting")]
    run = (await api.client.get(f"/api/runs/{run_id}")).json()
    started = [each.data["ts"] for each in seen if each.type == "run_started"]
    assert (run["started_at"], len(started)) == (started[0], 2), "the first start is kept"


def without_abandoned(seen: Sequence[Seen]) -> list[Seen]:
    """What a reader shows: the events of a tick that was given up are dropped."""
    kept = list(seen)
    for gone in (each.data for each in seen if each.type == "tick_abandoned"):
        kept = [
            each
            for each in kept
            if each.data["tick_id"] != gone["tick_id"] or each.seq < gone["from_seq"] or each.type != "number"
        ]
    return kept


@pytest.mark.clause("C-6", "H-W3", "W-03", "WB-31")
async def test_a_queued_run_is_cancelled_although_no_worker_lives(serve: Serve) -> None:
    api = await serve("api")
    run_id = await api.start(message="nobody will hear")

    answer = await api.client.post(f"/api/runs/{run_id}/cancel")
    seen = await read(api.client, f"/api/runs/{run_id}/events")

    assert answer.json() == {"ok": True}
    assert types(seen) == ["run_queued", "cancel_requested", "done"]
    assert seen[-1].data["status"] == "cancelled"


@pytest.mark.clause("W-05", "WB-16")
async def test_sigterm_ends_streams_at_once_and_the_process_in_order(serve: Serve) -> None:
    api = await serve("api")
    run_id = await api.start(message="nobody works")
    loop = asyncio.get_running_loop()
    readers = [asyncio.create_task(read(api.client, f"/api/runs/{run_id}/events")) for _ in range(20)]
    await asyncio.sleep(1)

    since = loop.time()
    api.send(signal.SIGTERM)
    told = await asyncio.gather(*readers)
    streams_s = loop.time() - since
    code = await api.ended()

    assert [types(each) for each in told] == [["run_queued"]] * 20
    assert streams_s < 2
    assert loop.time() - since < 4
    assert code == 0


@pytest.mark.clause("W-05", "W-51")
async def test_one_process_of_both_roles_lets_its_ticks_end(serve: Serve, hf: Holdfast) -> None:
    both = await serve("all", "--drain-s", "10")
    run_id = await both.start(clog_id="slow", input={"times": 30, "pace_s": 0.05})
    await read(both.client, f"/api/runs/{run_id}/events", until=lambda each: each.type == "number")

    both.send(signal.SIGTERM)
    code = await both.ended()

    run = await hf.get_run(run_id)
    assert run is not None
    assert (code, run.status, run.deliveries) == (0, "done", 0)


async def test_a_second_signal_ends_it_at_once(serve: Serve, hf: Holdfast) -> None:
    both = await serve("all", "--drain-s", "60")
    run_id = await both.start(clog_id="slow", input={"times": 1_000, "pace_s": 0.05})
    await read(both.client, f"/api/runs/{run_id}/events", until=lambda each: each.type == "number")

    both.send(signal.SIGTERM)
    await asyncio.sleep(0.5)
    both.send(signal.SIGTERM)
    code = await both.ended(within_s=10)

    run = await hf.get_run(run_id)
    assert run is not None
    assert code == 0
    assert (run.status, run.locked_by) == ("pending", None), "its claim was given back"


@pytest.mark.clause("WB-16", "W-05")
async def test_roles_come_from_the_environment_and_a_worker_shows_its_health_only(
    hf: Holdfast, database_url: str, schema: str
) -> None:
    given = {"HOLDFAST_DATABASE_URL": database_url, "HOLDFAST_SCHEMA": schema, "HOLDFAST_APP": APP}
    process = await (await start("serve", "--port", "0", HOLDFAST_ROLE="worker", **given)).ready()

    health = (await process.client.get("/api/health")).json()
    nothing = await process.client.get("/api/runs")
    process.send(signal.SIGTERM)

    assert await process.ended() == 0
    assert (health["run_role"], health["run_backend"], nothing.status_code) == ("worker", "postgres", 404)
    await process.kill()


async def test_whoever_serves_everybody_must_ask_who_they_are(database_url: str, schema: str) -> None:
    process = await start(
        *("serve", "--host", "0.0.0.0", "--port", "0"), HOLDFAST_DATABASE_URL=database_url, HOLDFAST_SCHEMA=schema
    )

    code = await process.ended()

    assert code == 2
    assert b"HOLDFAST_AUTH" in b"".join(process.log)
    await process.kill()


async def test_a_served_process_writes_json_that_says_what_it_is_about(serve: Serve) -> None:
    api = await serve("api")
    run_id = await api.start(message="hello")
    await api.client.get(f"/api/runs/{run_id}", headers={"X-Request-ID": "mine"})
    api.send(signal.SIGTERM)
    await api.ended()

    lines = [json.loads(line) for line in api.log if line.startswith(b"{")]

    (told,) = [line for line in lines if line.get("request_id") == "mine"]
    assert (told["run_id"], told["user_id"], told["level"]) == (run_id, "local", "info")
    assert told["message"].startswith(f"GET /api/runs/{run_id} 200 in ")


async def test_a_port_that_is_taken_is_said_in_a_sentence(serve: Serve, database_url: str, schema: str) -> None:
    first = await serve("api")
    port = str(first.client.base_url.port)

    second = await start("serve", APP, "--port", port, HOLDFAST_DATABASE_URL=database_url, HOLDFAST_SCHEMA=schema)
    code = await second.ended()

    assert code == 2
    assert b"is it in use?" in b"".join(second.log)
    assert b"Traceback" not in b"".join(second.log)
    await second.kill()


async def test_everything_in_one_process_needs_nothing_but_a_file(tmp_path: Path) -> None:
    dev = await (await start("dev", "--port", "0", "--db", str(tmp_path / "dev.db"))).ready()

    page = await dev.client.get("/")
    run_id = await dev.start(session_id="demo", message="please publish this")
    asked = await read(dev.client, f"/api/runs/{run_id}/events", until=lambda each: each.type == "approval_requested")
    await dev.client.post(f"/api/runs/{run_id}/approve", json={})
    rest = await read(dev.client, f"/api/runs/{run_id}/events", asked[-1].id)
    messages = (await dev.client.get("/api/sessions/demo")).json()["messages"]
    dev.send(signal.SIGINT)

    assert await dev.ended() == 0
    assert "<title>Holdfast</title>" in page.text
    assert {"tool_call", "tool_result"} <= set(types(asked))
    assert types(rest)[-1] == "done"
    streamed = "".join(each.data["content"] for each in rest if each.type == "text")
    assert messages[-1]["content"] == streamed
    await dev.kill()


class Away(CutProxy):
    """A database that can go away for a while."""

    is_away = False

    def go(self) -> None:
        self.is_away = True
        self.cut_all()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.is_away:
            writer.close()
            return
        await super()._serve(reader, writer)


async def live_through(serve: Serve, postgres_url: str, hf: Holdfast, *, away_s: float, runs: int) -> None:
    async with Away(postgres_url) as proxy:
        api, worker = await asyncio.gather(serve("api", url=proxy.url), serve("worker", url=proxy.url))
        told = {"clog_id": "slow", "input": {"times": 80, "pace_s": 0.05}}
        run_ids = [await api.start(session_id=f"s{n}", **told) for n in range(runs)]
        reading = [asyncio.create_task(_all_of(api, run_id, within_s=away_s + 150)) for run_id in run_ids]
        await asyncio.sleep(1)

        # On a machine that has much to do the first of them may be over by now.
        open_ones = [task for task in reading if not task.done()]
        proxy.go()
        answers = [await _refused(api, away_s) for _ in range(2)]
        still_reading = [not task.done() for task in open_ones]
        proxy.is_away = False
        seen = await asyncio.gather(*reading)

        for answer in answers:
            assert (answer.status_code, answer.headers["content-type"]) == (503, "application/problem+json")
            assert int(answer.headers["retry-after"]) >= 1
        assert len(still_reading) >= runs / 2
        assert all(still_reading), "open streams wait"
        assert (await api.client.get("/readyz")).status_code == 200
        for run_id, each in zip(run_ids, seen, strict=True):
            assert joined(each) == await stored(hf, run_id)
            assert types(each)[-1] == "done"
        assert worker.pid > 0


async def _all_of(api: Process, run_id: str, *, within_s: float) -> list[Seen]:
    """One connection, for as long as it takes: nobody comes back here."""
    return await read(api.client, f"/api/runs/{run_id}/events", within_s=within_s)


async def _refused(api: Process, away_s: float) -> httpx.Response:
    async with asyncio.timeout(away_s + 20):
        while True:
            answer = await api.client.get("/api/runs")
            if answer.status_code != 200:
                break
    await asyncio.sleep(away_s / 2)
    return answer


@pytest.mark.clause("W-02", "W-52")
async def test_a_database_that_goes_away_is_lived_through(serve: Serve, postgres_url: str, hf: Holdfast) -> None:
    await live_through(serve, postgres_url, hf, away_s=2, runs=2)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.clause("W-02", "W-52")
async def test_a_database_that_is_away_for_half_a_minute_under_load_is_lived_through(
    serve: Serve, postgres_url: str, hf: Holdfast
) -> None:
    await live_through(serve, postgres_url, hf, away_s=30, runs=20)
