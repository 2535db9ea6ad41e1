"""Attempts and tools as spans of OpenTelemetry: what they say, what they follow, and what they never tell."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, Sampler

from holdfast import Context, Continue, Done, Fail, Holdfast, Retry, Wait, Workflow, tracing
from tests.conftest import FakeClock, Opener
from tests.contract.builders import LEASE_S, create, entries, look
from tests.runtime.clogs import answering, on_advance, shared

Spans = Callable[[], list[ReadableSpan]]


def collect(monkeypatch: pytest.MonkeyPatch, sampler: Sampler | None = None) -> Spans:
    """A provider for this test alone, and the spans that have ended."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(sampler=sampler)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    return lambda: list(exporter.get_finished_spans())


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Spans:
    return collect(monkeypatch)


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def context(span: ReadableSpan) -> trace.SpanContext:
    found = span.get_span_context()
    assert found is not None
    return found


def links(span: ReadableSpan) -> list[tuple[int, int]]:
    return [(link.context.trace_id, link.context.span_id) for link in span.links]


def place(span: ReadableSpan) -> tuple[int, int]:
    return context(span).trace_id, context(span).span_id


async def test_an_attempt_is_one_span_that_says_whose_it_is(hf: Holdfast, spans: Spans) -> None:
    answering(hf, Done({"secret": "hunter2"}))
    run = await create(hf, input={"password": "hunter2"})
    (result,) = (await hf.advance()).results

    (span,) = spans()
    assert span.name == "invoke_agent chat"
    assert attributes(span) == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": "chat",
        "gen_ai.conversation.id": "s1",
        "holdfast.run_id": run.run_id,
        "holdfast.tick_id": result.tick_id,
        "holdfast.queue": "default",
        "holdfast.attempt": 0,
        "holdfast.deliveries": 1,
        "holdfast.outcome": "done",
        "holdfast.status": "done",
    }
    assert (span.parent, links(span)) == (None, [])
    assert "hunter2" not in span.to_json()


async def test_tools_are_spans_under_their_attempt_and_tell_no_secret(hf: Holdfast, spans: Spans) -> None:
    keys: list[str] = []

    def charge(args: Any, key: str) -> str:
        keys.append(key)
        return "hunter2"

    def broken(args: Any) -> None:
        raise ValueError("password=hunter2")

    async def advance(given: Any, ctx: Context) -> Any:
        await ctx.tool("charge", given, charge)
        await ctx.tool("broken", given, broken)

    on_advance(hf, advance)
    run = await create(hf, input={"token": "hunter2"})
    await hf.advance()

    paid, failed, attempt = spans()
    assert (paid.name, failed.name) == ("execute_tool charge", "execute_tool broken")
    assert attributes(paid) == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "charge",
        "gen_ai.tool.type": "function",
        "gen_ai.tool.call.id": keys[0],
        "holdfast.run_id": run.run_id,
    }
    assert [span.parent and span.parent.span_id for span in (paid, failed)] == [context(attempt).span_id] * 2
    assert (failed.status.is_ok, attributes(failed)["error.type"]) == (False, "ValueError")
    assert (attempt.status.is_ok, attributes(attempt)["error.type"]) == (False, "exception")
    assert not any("hunter2" in span.to_json() for span in spans())


async def test_an_attempt_links_to_the_one_before_it_across_waits_and_retries(
    hf: Holdfast, clock: FakeClock, spans: Spans
) -> None:
    answering(hf, Continue("on"), Wait(seconds=3 * 86_400), Retry("later", after=1, kind="busy"), Done())
    await create(hf)
    for _ in range(4):
        await hf.advance()
        clock.advance(3 * 86_400)

    first, second, third, fourth = spans()
    assert [attributes(span)["holdfast.outcome"] for span in spans()] == ["continue", "wait", "retry", "done"]
    assert [links(span) for span in spans()] == [[], [place(first)], [place(second)], [place(third)]]
    assert [span.parent for span in spans()] == [None] * 4
    assert len({context(span).trace_id for span in spans()}) == 4
    assert (attributes(third)["error.type"], attributes(fourth)["holdfast.attempt"]) == ("busy", 1)


@shared
async def test_the_link_outlives_the_runtime_that_made_the_span(
    hf: Holdfast, another: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = collect(monkeypatch)
    answering(hf, Wait(seconds=0))
    await create(hf)
    await hf.advance()

    there = collect(monkeypatch)
    elsewhere = await another()
    answering(elsewhere, Done())
    await elsewhere.advance()

    assert links(there()[0]) == [place(here()[0])]


async def test_a_lost_attempt_is_passed_over(hf: Holdfast, clock: FakeClock, spans: Spans) -> None:
    def lose(given: Any, ctx: Context) -> Done:
        clock.advance(LEASE_S)
        return Done("too late")

    answering(hf, Continue("on"), lose, Done())
    run = await create(hf)
    for _ in range(4):
        await hf.advance()

    first, lost, last = spans()
    assert attributes(lost)["error.type"] == "LeaseLost"
    assert "holdfast.outcome" not in attributes(lost)
    assert links(last) == [place(first)]
    assert (attributes(last)["holdfast.deliveries"], (await look(hf, run.run_id)).status) == (2, "done")


async def test_an_attempt_that_is_stopped_says_that_it_was_given_back(real: Holdfast, spans: Spans) -> None:
    begun = asyncio.Event()

    async def advance(given: Any, ctx: Context) -> Done:
        begun.set()
        await asyncio.Event().wait()
        return Done()

    on_advance(real, advance)
    await create(real)
    passing = asyncio.create_task(real.advance())
    await begun.wait()
    passing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await passing

    (span,) = spans()
    assert attributes(span)["holdfast.outcome"] == "released"
    assert span.status.is_unset


async def test_steps_of_a_workflow_follow_what_was_done_before_them(hf: Holdfast, spans: Spans) -> None:
    flow = Workflow("pair")

    @flow.step()
    async def one(ctx: Any, input: Any) -> int:
        return 1

    @flow.step(after="one")
    async def two(ctx: Any, one: int) -> int:
        return one + 1

    hf.register(flow)
    run = await hf.start(flow, session_id="s1")
    await hf.drain()

    steps = {attributes(span).get("holdfast.step"): span for span in spans()}
    assert (await look(hf, run.run_id)).status == "done"
    assert links(steps["two"]) == [place(steps["one"])]
    assert all(len(span.links) == 1 for span in spans()[1:])


async def test_children_name_their_parent(hf: Holdfast, spans: Spans) -> None:
    async def advance(given: Any, ctx: Context) -> Done:
        await ctx.child("helper", key="a", input="go")
        return Done()

    on_advance(hf, advance)
    answering(hf, Done(), name="helper")
    run = await create(hf)
    await hf.drain()

    parent, child = spans()
    assert attributes(child)["holdfast.parent_run_id"] == run.run_id
    assert context(child).trace_id != context(parent).trace_id


async def test_whoever_runs_it_is_not_its_parent(hf: Holdfast, spans: Spans) -> None:
    answering(hf, Done())
    await create(hf)
    with trace.get_tracer_provider().get_tracer("host").start_as_current_span("request"):
        await hf.advance()

    attempt, request = spans()
    assert (request.name, attempt.parent) == ("request", None)


async def test_what_nobody_will_see_leaves_nothing_in_the_journal(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    unseen = collect(monkeypatch, ALWAYS_OFF)
    answering(hf, Continue("on"), Done())
    run = await create(hf)
    await hf.drain()

    assert unseen() == []
    assert not any("traceparent" in entry.data for entry in await entries(hf, run.run_id))


async def test_a_link_that_is_no_link_is_left_out(spans: Spans) -> None:
    for after in ("", "00-1-1-01", f"00-{0:032x}-{0:016x}-01", "hunter2"):
        with tracing.root("invoke_agent chat", {}, after=after):
            pass

    assert [links(span) for span in spans()] == [[]] * 4


async def test_a_failed_run_is_a_failed_span_without_its_words(hf: Holdfast, spans: Spans) -> None:
    answering(hf, Fail("password=hunter2", kind="refused"))
    await create(hf)
    await hf.advance()

    (span,) = spans()
    assert (span.status.is_ok, span.status.description) == (False, "refused")
    assert "hunter2" not in span.to_json()


@pytest.mark.parametrize("module", [None, trace], ids=["not installed", "no provider"])
async def test_where_nobody_collects_spans_nothing_is_made_for_them(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch, module: Any
) -> None:
    monkeypatch.setattr(tracing, "_trace", module)
    monkeypatch.setattr(tracing, "Span", None)

    async def advance(given: Any, ctx: Context) -> Done:
        return Done(await ctx.tool("add", given, lambda args: args))

    on_advance(hf, advance)
    run = await create(hf)
    tracemalloc.start()
    try:
        await hf.advance()
        taken = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, trace.__file__)])
    finally:
        tracemalloc.stop()

    assert (await look(hf, run.run_id)).status == "done"
    assert not any("traceparent" in entry.data for entry in await entries(hf, run.run_id))
    assert taken.statistics("filename") == []


async def test_tools_of_a_blocking_handler_are_under_its_attempt_too(hf: Holdfast, spans: Spans) -> None:
    def advance(given: Any, ctx: Any) -> Done:
        return Done(ctx.tool("add", given, lambda args: args))

    on_advance(hf, advance)
    await create(hf)
    await hf.advance()

    tool, attempt = spans()
    assert tool.parent is not None
    assert tool.parent.span_id == context(attempt).span_id


async def test_ticks_that_a_worker_runs_side_by_side_have_spans_of_their_own(real: Holdfast, spans: Spans) -> None:
    together = asyncio.Barrier(3)

    async def advance(given: Any, ctx: Context) -> Done:
        await together.wait()
        return Done(await ctx.tool("add", given, lambda args: args))

    on_advance(real, advance)
    runs = [await create(real, session_id=f"s{place}", input=place) for place in range(3)]
    worker = real.worker()
    working = asyncio.create_task(worker.run())
    for run in runs:
        await real.result(run.run_id)
    worker.stop()
    await working

    attempts = {context(span).span_id: span for span in spans() if span.name == "invoke_agent chat"}
    tools = [span for span in spans() if span.name == "execute_tool add"]
    assert len(attempts) == len(tools) == 3
    for tool in tools:
        assert tool.parent is not None
        assert attributes(attempts[tool.parent.span_id])["holdfast.run_id"] == attributes(tool)["holdfast.run_id"]
    assert {attributes(span)["holdfast.run_id"] for span in attempts.values()} == {run.run_id for run in runs}
