"""`/metrics`: what a process counts, what it asks of the database, and that Prometheus can read both."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from holdfast import Clog, Context, Done, FlowContext, Holdfast, LeaseLost, RunFailed, Workflow
from holdfast.http import create_app
from holdfast.http.counting import OTHER, TOOLS_MAX
from holdfast.http.metrics import _OPEN, _QUESTIONS, _UNSENT
from tests.audit.test_plans import SERIES
from tests.conftest import FakeClock
from tests.contract.builders import claim_one
from tests.crash.programs import require
from tests.http.clogs import register
from tests.http.households import start
from tests.worker.places import working
from tests.worker.test_new_runs import made_together, sated

LEASE_S = 30
OPENMETRICS = "application/openmetrics-text; version=1.0.0"


@pytest.fixture
async def hf(database_url: str, schema: str, clock: FakeClock) -> AsyncIterator[Holdfast]:
    """A runtime whose time only the test moves, so that every duration is exact."""
    async with Holdfast(database_url, schema=schema, clock=clock, lease_ms=LEASE_S * 1_000) as holdfast:
        register(holdfast)
        yield holdfast
        report = await holdfast.fsck()
        assert report.ok, report.problems


class Told:
    """One scrape: the value of a sample by its name and labels; 0 where it has none yet."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.samples: list[Sample] = [
            sample for family in text_string_to_metric_families(text) for sample in family.samples
        ]

    def __call__(self, name: str, **labels: str) -> float:
        found = [each.value for each in self.samples if each.name == f"holdfast_{name}" and each.labels == labels]
        return found[0] if found else 0

    def labels(self, name: str, label: str) -> set[str]:
        return {each.labels[label] for each in self.samples if each.name == f"holdfast_{name}"}


async def scrape(client: httpx.AsyncClient) -> Told:
    answer = await client.get("/metrics")
    assert answer.status_code == 200, answer.text
    return Told(answer.text)


async def until(client: httpx.AsyncClient, is_there: Callable[[Told], bool]) -> Told:
    async with asyncio.timeout(20):
        while True:
            told = await scrape(client)
            if is_there(told):
                return told
            await asyncio.sleep(0.05)


async def test_every_run_is_counted_once_with_its_end_and_its_time(
    api: httpx.AsyncClient, hf: Holdfast, clock: FakeClock
) -> None:
    await hf.create_run(session_id="s", clog_id="chat", input={"text": "two words"})
    await hf.create_run(session_id="s", clog_id="moody", input={"end": "fail"})
    doomed = await hf.create_run(session_id="s", clog_id="moody", input={"end": "ok"}, queue="nobody")
    await hf.create_runs([{"session_id": "s", "clog_id": "elsewhere", "input": 1, "queue": "nobody"}] * 2)
    clock.advance(7)
    await hf.advance(queues=["default"])
    await hf.cancel(doomed.run_id)
    stranger = await claim_one(hf, "nobody")
    await hf.complete(stranger, "done")
    await hf.complete(stranger, "done")
    told = await scrape(api)

    ends = {("chat", "done"), ("moody", "failed"), ("moody", "cancelled"), (OTHER, "done")}
    assert {(s.labels["clog"], s.labels["outcome"]) for s in told.samples if s.name == "holdfast_runs_total"} == ends
    for clog, outcome in ends:
        assert told("runs_total", clog=clog, outcome=outcome) == 1
        assert told("run_duration_seconds_sum", clog=clog, outcome=outcome) == 7
        assert told("run_duration_seconds_bucket", clog=clog, outcome=outcome, le="5.0") == 0
        assert told("run_duration_seconds_bucket", clog=clog, outcome=outcome, le="10.0") == 1
    assert (told("run_queue_wait_seconds_count"), told("run_queue_wait_seconds_sum")) == (3, 21)
    assert told("claims_total", result="claimed") == 3
    assert told("claims_total", result="empty") == 1
    assert told("runs_open", status="pending") == 1
    assert told("queue_oldest_age_seconds") == 7


async def test_every_event_that_a_stream_shows_is_counted(api: httpx.AsyncClient, hf: Holdfast) -> None:
    graph = Workflow("graph")

    @graph.step()
    async def first(ctx: Context, input: Any) -> int:
        return 1

    @graph.step(after=["first"])
    async def second(ctx: Context, first: int) -> int:
        return 2

    @hf.flow("flow")
    async def flow(ctx: FlowContext, input: Any) -> int:
        await ctx.step("one", lambda: 1)
        await ctx.tool("tool", 1, lambda args: args)
        await ctx.now()
        await ctx.sleep(1)
        return 3

    hf.register(graph)
    runs = [await hf.create_run(session_id="s", clog_id="chat", input={"text": "a b c"}, queue="q")]
    runs += [await hf.create_run(session_id="s", clog_id="moody", input={"end": "retry"}, queue="q")]
    runs += await hf.create_runs([{"session_id": "s", "clog_id": "asker", "input": 1, "queue": "q"}] * 3)
    await hf.signal(runs[-1].run_id, {"more": 1}, name="again")
    runs += [await hf.start(each, 1, session_id="s", queue="q") for each in (graph, flow)]
    await hf.drain()
    shown = 0
    for run in runs:
        shown += len([event async for event in hf.events(run.run_id)])

    assert (await scrape(api))("events_appended_total") == shown > 20


async def test_a_run_that_is_taken_as_it_is_created_counts_like_any_other(api: httpx.AsyncClient, hf: Holdfast) -> None:
    async with working(hf) as worker:
        await sated(worker)
        run = await hf.create_run(session_id="s", clog_id="moody", input={"end": "fail"})
        with pytest.raises(RunFailed):
            await hf.result(run.run_id, timeout=10)
    shown = [event async for event in hf.events(run.run_id)]
    told = await scrape(api)

    assert await made_together(hf, run.run_id) == ["run_created", "attempt_claimed"]
    assert (told("claims_total", result="claimed"), told("run_queue_wait_seconds_count")) == (1, 1)
    assert told("events_appended_total") == len(shown) == 4
    assert told("runs_total", clog="moody", outcome="failed") == 1


@pytest.mark.clause("S-37")
async def test_a_lost_lease_and_what_its_holder_still_wrote_are_counted(
    api: httpx.AsyncClient, hf: Holdfast, clock: FakeClock
) -> None:
    await hf.create_run(session_id="s", clog_id="asker", input=1)
    late = await claim_one(hf)
    clock.advance(LEASE_S)
    other = await claim_one(hf)
    for write in (hf.emit(late, "text", "too late"), hf.complete(late, 1), hf.complete(late, 1)):
        with pytest.raises(LeaseLost):
            await write
    await hf.complete(other, 2)
    with pytest.raises(LeaseLost):
        await hf.emit(late, "text", "much too late")
    told = await scrape(api)

    assert told("lease_expired_total") == 1
    assert told("fenced_writes_total") == 4
    assert (told("claims_total", result="claimed"), told("claims_total", result="taken_over")) == (1, 1)
    assert told("anomalies_total", reason="stale_claim") >= 1


async def test_a_lease_that_nobody_gets_is_counted_too(api: httpx.AsyncClient, hf: Holdfast, clock: FakeClock) -> None:
    await hf.create_run(session_id="s", clog_id="asker", input=1, max_deliveries=1)
    await claim_one(hf)
    clock.advance(LEASE_S)
    nothing = await hf.claim_next()
    told = await scrape(api)

    assert nothing == []
    assert told("lease_expired_total") == 1
    assert told("runs_total", clog="asker", outcome="failed") == 1


async def test_tools_are_counted_by_name_as_far_as_names_are_bounded(
    api: httpx.AsyncClient, hf: Holdfast, clock: FakeClock
) -> None:
    many = Clog("many")

    def slow(args: Any) -> int:
        clock.advance(2)
        return 1

    def broken(args: Any) -> None:
        raise ValueError("no")

    @many.on_advance
    async def advance(input: Any, ctx: Context) -> Done:
        for _ in range(2):
            await ctx.tool("slow", 1, slow)
        with pytest.raises(ValueError, match="no"):
            await ctx.tool("broken", 1, broken)
        for number in range(TOOLS_MAX):
            await ctx.tool(f"made-up-{number}", number, lambda args: args)
        return Done()

    hf.register(many)
    await hf.create_run(session_id="s", clog_id="many", input=1)
    await hf.advance()
    told = await scrape(api)

    assert told("tool_calls_total", tool="slow", status="completed") == 2
    assert told("tool_calls_total", tool="broken", status="failed") == 1
    assert (
        told("tool_call_duration_seconds_count", tool="slow"),
        told("tool_call_duration_seconds_sum", tool="slow"),
    ) == (
        2,
        4,
    )
    assert told("tool_calls_total", tool=OTHER, status="completed") == 2
    assert len(told.labels("tool_calls_total", "tool")) == TOOLS_MAX + 1


async def test_how_long_people_took_is_told_by_what_they_said(
    api: httpx.AsyncClient, hf: Holdfast, clock: FakeClock
) -> None:
    for action, wait_s in (("approve", 90), ("reject", 30)):
        run = await hf.create_run(session_id="s", clog_id="asker")
        await hf.pause(run.run_id, "go", kind="approval")
        await hf.signal(run.run_id, "meanwhile")
        clock.advance(wait_s)
        await getattr(hf, action)(run.run_id, actor="ada")
    asked = await hf.create_run(session_id="s", clog_id="asker")
    await hf.pause(asked.run_id, "go", kind="approval")
    await hf.journal.close()
    told = await scrape(api)

    for action, wait_s in (("approve", 90), ("reject", 30)):
        assert told("approval_wait_seconds_sum", action=action) == wait_s
        assert told("approval_wait_seconds_count", action=action) == 1
    assert (told("approvals_pending"), told("runs_open", status="paused")) == (1, 1)


async def test_deliveries_are_counted_by_their_result_codes(api: httpx.AsyncClient, hf: Holdfast) -> None:
    @hf.deliver("moody")
    async def moody(payload: Any, **_: Any) -> None:
        if payload["fails"]:
            raise ConnectionError("not now")

    await hf.outbox.enqueue({"fails": False}, "moody")
    await hf.outbox.flush_once()
    await hf.outbox.enqueue({"fails": False}, "moody")
    await hf.outbox.enqueue({"fails": True}, "moody")
    await hf.outbox.enqueue({"fails": True, "for": "good"}, "moody", max_retries=1)
    await hf.outbox.flush_once()
    told = await scrape(api)

    codes = {code: told("outbox_deliveries_total", code=f"outbox_flush_{code}") for code in ("success", "dedup_hit")}
    codes |= {code: told("outbox_deliveries_total", code=f"outbox_flush_{code}") for code in ("retry", "dead")}
    assert codes == {"success": 1, "dedup_hit": 1, "retry": 1, "dead": 1}
    assert (told("outbox_rows", status="pending"), told("outbox_rows", status="dead")) == (1, 1)


async def test_two_apps_of_one_runtime_tell_the_same_and_nobody_is_told_without_one(
    database_url: str, schema: str
) -> None:
    async with Holdfast(database_url, schema=schema) as hf:
        register(hf)
        assert hf.journal.observer is None
        apps = [create_app(hf), create_app(hf)]
        await hf.create_run(session_id="s", clog_id="asker", input=1)
        texts = [(await app.state.holdfast.metrics.scrape(hf.journal))[0].decode() for app in apps]

    assert [Told(text)("events_appended_total") for text in texts] == [1, 1]
    assert [Told(text).labels("worker_slots", "state") for text in texts] == [set(), set()], "nobody works here"


ENDED = """
    INSERT INTO {s}runs (run_id, session_id, user_id, clog_id, queue, mode, priority, max_attempts, backoff_us,
        backoff_max_us, max_deliveries, resumable, created_at, status, rev, at, attempt, deliveries)
    SELECT 'ended' || n, 's', 'local', 'asker', 'default', 'session', 0, 3, 1, 1, 5, 1, n, 'done', 3, n, 0, 0
    FROM ({series}) y
"""
SENT = """
    INSERT INTO {s}outbox (outbox_id, user_id, target_space, payload, payload_sha, status, retry_count,
        next_attempt_at, created_at, settled_at, deliveries, attempts_made)
    SELECT 'sent' || n, 'local', 'post', '1', 'sha', 'sent', 0, n, n, n, 1, 1
    FROM ({series}) y
"""


async def test_a_scrape_reads_what_is_open_and_not_what_is_over(
    database_url: str, schema: str, configuration: str
) -> None:
    dialect = "postgres" if configuration == "postgres" else "sqlite"
    async with Holdfast(database_url, schema=schema) as hf:
        store = hf.journal.store
        await hf.create_run(session_id="s", clog_id="asker", input=1)
        for text in (ENDED, SENT):
            await store.execute((text.replace("{series}", SERIES[dialect]), (1, 20_000)))
        await store.execute(("ANALYZE", ()))
        word = "EXPLAIN QUERY PLAN" if dialect == "sqlite" else "EXPLAIN"
        plans = [[str(row[-1]) for row in await store.fetch(f"{word} {text}")] for text in (_OPEN, _QUESTIONS, _UNSENT)]
        counts: dict[str, int] = dict(await store.fetch(_OPEN))

    # Work is the table of what is open: all of it is counted.
    steps = [step for plan in plans for step in plan if "work" not in step and "SCAN w" not in step]
    assert [step for step in steps if "Seq Scan" in step or ("SCAN" in step and "INDEX" not in step)] == []
    assert counts == {"pending": 1}


async def busy(hf: Holdfast) -> None:
    """Something of every kind, so that no family is empty."""
    for clog, given in (("chat", {"text": "a b"}), ("moody", {"end": "fail"})):
        await hf.create_run(session_id="s", clog_id=clog, input=given)
    await hf.advance()
    run = await hf.create_run(session_id="s", clog_id="asker")
    await hf.pause(run.run_id, "go", kind="approval")
    await hf.approve(run.run_id, actor="ada")
    with pytest.raises(LeaseLost):
        await hf.complete((await _given_back(hf)), 1)
    await hf.journal.close()


async def _given_back(hf: Holdfast) -> Any:
    await hf.create_run(session_id="s", clog_id="asker", input=1, queue="other")
    claim = await claim_one(hf, "other")
    await hf.release(claim)
    return claim


async def test_promtool_finds_nothing_to_say(api: httpx.AsyncClient, hf: Holdfast) -> None:
    promtool = require("promtool")
    await busy(hf)
    text = (await scrape(api)).text

    pipe = asyncio.subprocess.PIPE
    checking = await asyncio.create_subprocess_exec(
        *(promtool, "check", "metrics"), stdin=pipe, stdout=pipe, stderr=pipe
    )
    said = await asyncio.wait_for(checking.communicate(text.encode()), 30)

    assert (checking.returncode, said) == (0, (b"", b""))


async def test_who_accepts_openmetrics_gets_it(api: httpx.AsyncClient, hf: Holdfast) -> None:
    await busy(hf)
    answer = await api.get("/metrics", headers={"accept": f"{OPENMETRICS};q=0.9,text/plain;q=0.1"})
    plain = await api.get("/metrics")

    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert plain.headers["content-type"].startswith("text/plain")
    parsed = openmetrics.text_string_to_metric_families(answer.text)  # type: ignore[no-untyped-call]
    families = {family.name: family for family in parsed}
    assert families["holdfast_runs"].type == "counter"
    assert families["holdfast_run_duration_seconds"].type == "histogram"
    assert families["holdfast_runs_open"].type == "gauge"
    assert all(family.documentation for family in families.values())


async def test_the_page_names_every_metric_and_no_other(api: httpx.AsyncClient) -> None:
    page = (Path(__file__).parents[2] / "docs/observability.md").read_text(encoding="utf-8")
    text = (await scrape(api)).text

    served = set(re.findall(r"^# TYPE (holdfast_\w+)", text, re.MULTILINE))
    created = {name for name in served if name.endswith("_created")}
    assert set(re.findall(r"`(holdfast_\w+)", page)) == served - created


async def test_labels_never_hold_ids(api: httpx.AsyncClient, hf: Holdfast) -> None:
    await busy(hf)
    ids = [run.run_id for run in (await hf.list_runs()).items]
    text = (await scrape(api)).text

    assert ids
    assert [name for name in (*ids, hf.owner_id, '"s"', "ada", "local") if name in text] == []


@pytest.mark.parametrize(("configuration", "clock"), [("postgres", None)])
async def test_a_worker_tells_what_it_is_doing_while_it_does_it(hf: Holdfast, database_url: str, schema: str) -> None:
    given = {"HOLDFAST_DATABASE_URL": database_url, "HOLDFAST_SCHEMA": schema, "TEST_LEASE_MS": "600"}
    process = await start(
        *("serve", "tests.http.programs:make", "--role", "worker", "--port", "0", "--concurrency", "3"), **given
    )
    try:
        await process.ready()
        slow = {"session_id": "s", "clog_id": "slow", "input": {"times": 8, "pace_s": 0.1}}
        await hf.create_runs([slow] * 4)
        # The database is asked before the slots are looked at, so one scrape may see a little of both.
        working = await until(
            process.client,
            lambda told: told("worker_slots", state="busy") == told("runs_open", status="active") == 3,
        )
        rested = await until(process.client, lambda told: told("runs_total", clog="slow", outcome="done") == 4)
    finally:
        await process.kill()

    assert working("worker_slots", state="free") == 0
    assert working("runs_open", status="pending") == 1
    assert rested("claims_total", result="claimed") == 4
    assert rested("run_queue_wait_seconds_count") == 4
    assert rested("heartbeat_lag_seconds_count") >= 1
    assert rested("events_appended_total") == 4 * (1 + 8 + 1 + 1), "run_started, numbers, final, done"
