"""Lines of the log say what they are about: the tick, its worker, the request."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider

from holdfast import Context, Done, Holdfast, Retry, tracing
from holdfast.logs import JsonLines, request_id
from holdfast.redaction import logger
from tests.contract.builders import create
from tests.runtime.clogs import on_advance

log = logging.getLogger("tests.of.lines")


@pytest.fixture(params=["memory", "postgres"])
def configuration(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Written:
    """What was written so far, line by line."""

    def __init__(self) -> None:
        self.stream = io.StringIO()

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.stream.getvalue().splitlines()]

    def about(self, message: str) -> dict[str, Any]:
        """What the lines with this message are about, which must all be about the same."""
        (found,) = {
            json.dumps({name: line[name] for name in line if name not in ("at", "level", "logger", "message", "error")})
            for line in self.lines
            if line["message"] == message
        }
        return dict(json.loads(found))


@pytest.fixture
def written() -> Iterator[Written]:
    written = Written()
    handler = logging.StreamHandler(written.stream)
    handler.setFormatter(JsonLines())
    told = [log, logger("holdfast")]
    for each in told:
        each.addHandler(handler)
        each.setLevel(logging.INFO)
    yield written
    for each in told:
        each.removeHandler(handler)
        each.setLevel(logging.NOTSET)


async def test_what_is_said_in_a_tick_is_about_the_tick(hf: Holdfast, written: Written) -> None:
    def blocks() -> None:
        log.info("in a thread")

    async def advance(given: Any, ctx: Context) -> Any:
        log.info("attempt %d", ctx.attempt)
        await asyncio.gather(asyncio.to_thread(blocks), ctx.tool("tool", 1, lambda args: log.info("in a tool")))
        return Retry("again", after=0) if ctx.attempt == 0 else Done()

    on_advance(hf, advance)
    run = await create(hf, user_id="ada", session_id="talk")
    log.info("before")
    for _ in range(2):
        await hf.advance()
    log.info("after")

    known = {"run_id": run.run_id, "session_id": "talk", "user_id": "ada", "worker_id": hf.owner_id}
    assert written.about("attempt 0") == {**known, "attempt": 0}
    assert written.about("attempt 1") == {**known, "attempt": 1}
    assert {line["attempt"] for line in written.lines if line["message"] == "in a thread"} == {0, 1}
    assert {line["run_id"] for line in written.lines if line["message"] == "in a tool"} == {run.run_id}
    assert written.about("before") == written.about("after") == {}


async def test_ticks_side_by_side_each_say_their_own(hf: Holdfast, written: Written) -> None:
    met = asyncio.Barrier(3)

    async def advance(given: Any, ctx: Context) -> Done:
        await met.wait()
        log.info("I am %s", given)
        await met.wait()
        return Done()

    on_advance(hf, advance)
    runs = {name: await create(hf, input=name) for name in ("a", "b", "c")}
    worker = hf.worker(drain_s=5)
    working = asyncio.create_task(worker.run())
    async with asyncio.timeout(20):
        for run in runs.values():
            await hf.result(run.run_id)
    worker.stop()
    await working

    for name, run in runs.items():
        told = written.about(f"I am {name}")
        assert (told["run_id"], told["worker_id"]) == (run.run_id, worker.owner_id)


async def test_what_a_worker_says_of_itself_and_of_a_lost_tick_names_it(
    hf: Holdfast, written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*args: Any, **options: Any) -> Any:
        raise RuntimeError("an accident")

    on_advance(hf, broken)
    worker = hf.worker(drain_s=1)
    monkeypatch.setattr(worker._chores, "turn", broken)
    monkeypatch.setattr(worker._executor, "run", broken)
    run = await create(hf, user_id="ada")
    working = asyncio.create_task(worker.run())
    lost = "cannot look after the database, trying again: an accident"
    async with asyncio.timeout(20):
        while True:
            if len(written.lines) == 2:
                break
            await asyncio.sleep(0.01)
    worker.stop()
    await working

    assert written.about(lost) == {"worker_id": worker.owner_id}
    (tick,) = [line for line in written.lines if line["message"] != lost]
    assert (tick["run_id"], tick["user_id"], tick["attempt"]) == (run.run_id, "ada", 0)
    assert "an accident" in tick["error"]


async def test_a_line_in_a_span_names_it(hf: Holdfast, written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    provider = TracerProvider()
    monkeypatch.setattr(tracing, "_provider", lambda: provider)

    async def advance(given: Any, ctx: Context) -> Done:
        log.info("inside")
        return Done()

    on_advance(hf, advance)
    await create(hf)
    await hf.advance()

    told = written.about("inside")
    assert (len(told["trace_id"]), len(told["span_id"])) == (32, 16)
    provider.shutdown()


def test_what_a_line_says_of_itself_comes_first(written: Written) -> None:
    token = request_id.set("asked")
    log.info("plain")
    log.info("told", extra={"request_id": "other", "run_id": "r", "attempt": 0})
    request_id.reset(token)

    assert written.about("plain") == {"request_id": "asked"}
    assert written.about("told") == {"request_id": "other", "run_id": "r", "attempt": 0}
