"""Handlers: `async def` on the event loop, `def` in threads, and what their context tells them."""

from __future__ import annotations

import asyncio
import functools
import threading
from contextvars import ContextVar
from typing import Any

import pytest

from holdfast import Clog, Context, Done, Holdfast, LeaseLost, Ok, StorageError
from tests.conftest import FakeClock
from tests.contract.builders import LEASE_S, claim_one, create, look, quiet
from tests.runtime.clogs import answering, inputs, on_advance, said, until

PATIENCE_S = 10


@pytest.mark.clause("O-23", "O-02")
async def test_a_context_says_whose_tick_it_is(hf: Holdfast) -> None:
    async def looks(given: Any, ctx: Context) -> Done:
        return Done([ctx.run_id, ctx.session_id, ctx.user_id, ctx.clog_id, ctx.attempt, ctx.deliveries, ctx.cancelled])

    on_advance(hf, looks)
    run = await create(hf, session_id="s9", user_id="ann")
    (result,) = (await hf.advance()).results

    assert (await look(hf, run.run_id)).output == [run.run_id, "s9", "ann", "chat", 0, 1, False]
    assert result.tick_id


async def test_an_object_that_is_called_with_await_stays_on_the_loop(hf: Holdfast) -> None:
    class Answering:
        async def __call__(self, given: Any, ctx: Context) -> Done:
            return Done(threading.current_thread() is threading.main_thread())

    on_advance(hf, Answering())
    run = await create(hf)

    await hf.advance()

    assert (await look(hf, run.run_id)).output is True


@pytest.mark.clause("O-41", "O-42")
async def test_a_def_handler_has_the_same_context_in_blocking_form(hf: Holdfast) -> None:
    tools = Clog("tools")

    @tools.endpoint("double")
    async def double(payload: Any, ctx: Context) -> Any:
        return payload * 2

    def works(given: Any, ctx: Any) -> Done:
        assert (ctx.run_id, ctx.clog_id, ctx.attempt, ctx.signal, ctx.parent) == (run.run_id, "chat", 0, None, None)
        (count,) = ctx.read(("run",))
        assert ctx.write(("run.set", 1)) == 1
        with pytest.raises(StorageError):
            ctx.read(("run",))
        assert ctx.emit("note", given) > 0
        ctx.outbox("email", "hi", key="k")
        child = ctx.child("helper", key="k")
        assert ctx.cancelled is False
        return Done([count, ctx.call("tools", "double", 21), child.parent_run_id == ctx.run_id])

    hf.register(tools)
    on_advance(hf, works)
    run = await create(hf)
    await hf.advance()
    await quiet(hf)

    assert (await look(hf, run.run_id)).output == [None, 42, True]
    assert await said(hf, run.run_id) == [("note", "hello")]


async def test_a_def_handler_leaves_the_event_loop_free(hf: Holdfast) -> None:
    """Two of them wait for each other, so neither may hold up the other."""
    met = threading.Barrier(2)
    threads: list[int] = []

    def meets(given: Any, ctx: Any) -> Ok:
        threads.append(threading.get_ident())
        met.wait(PATIENCE_S)
        return Ok()

    on_advance(hf, meets)
    for _ in range(2):
        await create(hf)

    results = await asyncio.gather(hf.advance(max_runs=1), hf.advance(max_runs=1))

    assert [result.results[0].outcome for result in results] == ["ok", "ok"]
    assert threading.get_ident() not in threads


async def test_context_variables_reach_a_def_handler(hf: Holdfast) -> None:
    tenant: ContextVar[str] = ContextVar("tenant")

    def looks(given: Any, ctx: Any) -> Done:
        return Done(tenant.get())

    on_advance(hf, looks)
    run = await create(hf)
    tenant.set("acme")
    await hf.advance()

    assert (await look(hf, run.run_id)).output == "acme"


@pytest.mark.clause("OB-3")
@pytest.mark.parametrize("error", [ValueError("broken"), StopIteration("broken"), SystemExit("broken")])
async def test_an_exception_of_a_def_handler_is_a_retry(hf: Holdfast, error: BaseException) -> None:
    def breaks(given: Any, ctx: Any) -> None:
        raise error

    on_advance(hf, breaks)
    run = await create(hf)
    async with asyncio.timeout(PATIENCE_S):
        (result,) = (await hf.advance()).results

    assert result.outcome == "retry"
    assert "broken" in str((await look(hf, run.run_id)).last_error)


async def test_a_def_around_an_async_handler_works_like_it(hf: Holdfast) -> None:
    async def speaks(given: Any, ctx: Any) -> Done:
        ctx.stream("text", "Hel")
        await ctx.emit("note", 1)
        return Done(await ctx.read(("run",)))

    def logged(handler: Any) -> Any:
        @functools.wraps(handler)
        def around(given: Any, ctx: Any) -> Any:
            return handler(given, ctx)

        return around

    class Agent:
        async def __call__(self, given: Any, ctx: Any) -> Done:
            return await speaks(given, ctx)

    for place, handler in enumerate((logged(speaks), Agent(), functools.partial(speaks), lambda *a: speaks(*a))):
        on_advance(hf, handler, f"clog{place}")
        run = await create(hf, clog_id=f"clog{place}")
        async with asyncio.timeout(PATIENCE_S):
            await hf.advance()
        assert (await look(hf, run.run_id)).output == [None]
        assert [kind for kind, _ in await said(hf, run.run_id)] == ["message_start", "text", "message_end", "note"]


@pytest.mark.clause("C-6")
async def test_a_def_handler_sees_that_it_should_stop(hf: Holdfast) -> None:
    started = threading.Event()
    seen: list[bool] = []

    def waits(given: Any, ctx: Any) -> Ok:
        started.set()
        for _ in range(PATIENCE_S * 100):
            if ctx.cancelled:
                break
            threading.Event().wait(0.01)
        seen.append(ctx.cancelled)
        return Ok()

    on_advance(hf, waits)
    run = await create(hf)
    advancing = asyncio.create_task(hf.advance())
    await asyncio.to_thread(started.wait, PATIENCE_S)
    await hf.cancel(run.run_id)
    async with asyncio.timeout(PATIENCE_S):
        (result,) = (await advancing).results

    assert result.status == "cancelled"
    await until(lambda: _is(seen, [True]))


async def _is(found: list[Any], wanted: list[Any]) -> bool:
    return found == wanted


async def test_a_thread_that_outlives_its_tick_writes_nothing(hf: Holdfast) -> None:
    started, over, told = threading.Event(), threading.Event(), threading.Event()
    errors: list[BaseException] = []

    def stubborn(given: Any, ctx: Any) -> Ok:
        started.set()
        over.wait(PATIENCE_S)
        try:
            ctx.emit("late", 1)
        except BaseException as error:
            errors.append(error)
        told.set()
        return Ok()

    on_advance(hf, stubborn)
    run = await create(hf)
    advancing = asyncio.create_task(hf.advance())
    await asyncio.to_thread(started.wait, PATIENCE_S)
    await hf.cancel(run.run_id, force=True)
    async with asyncio.timeout(PATIENCE_S):
        await advancing
    over.set()
    await asyncio.to_thread(told.wait, PATIENCE_S)

    assert [isinstance(error, LeaseLost | asyncio.CancelledError) for error in errors] == [True]
    assert await said(hf, run.run_id) == []


async def test_a_handler_that_cancels_itself_is_tried_again(hf: Holdfast) -> None:
    answering(hf, asyncio.CancelledError("gave up"))
    run = await create(hf)

    (result,) = (await hf.advance()).results

    assert (result.outcome, (await look(hf, run.run_id)).error_kind) == ("retry", "cancelled")


async def test_a_lost_claim_of_somebody_elses_is_the_handlers_own_affair(hf: Holdfast) -> None:
    other = await create(hf, queue="theirs")
    claim = await claim_one(hf, "theirs")
    await hf.complete(claim, Ok())

    async def confuses(given: Any, ctx: Context) -> Any:
        await hf.heartbeat(claim)

    answering(hf, confuses)
    run = await create(hf)
    (result,) = (await hf.advance()).results

    assert (result.run_id, result.outcome) == (run.run_id, "retry")
    assert (await look(hf, run.run_id)).error_kind == "stale_claim"
    assert (await look(hf, other.run_id)).status == "idle"


@pytest.mark.clause("O-02")
async def test_each_run_meets_the_handler_of_its_own_clog(hf: Holdfast) -> None:
    chat, digest = answering(hf), answering(hf, name="digest")
    await create(hf, input="to chat")
    await create(hf, clog_id="digest", input="to digest")

    await hf.advance()

    assert (inputs(chat), inputs(digest)) == (["to chat"], ["to digest"])


@pytest.mark.clause("H-O12")
async def test_a_clog_that_cannot_resume_fails_when_its_worker_is_lost(hf: Holdfast, clock: FakeClock) -> None:
    async def never(given: Any, ctx: Context) -> Ok:
        raise AssertionError("it must not begin again")

    on_advance(hf, never, resumable=False)
    run = await create(hf)
    await claim_one(hf)
    clock.advance(LEASE_S)

    assert (await hf.advance()).advanced == 0
    after = await look(hf, run.run_id)
    assert (after.status, after.error_kind) == ("failed", "worker_lost")


async def test_a_clog_that_cannot_resume_is_still_retried_when_it_says_so(hf: Holdfast) -> None:
    calls: list[int] = []

    async def tries(given: Any, ctx: Context) -> Ok:
        calls.append(ctx.attempt)
        if not ctx.attempt:
            raise ValueError("again")
        return Ok()

    on_advance(hf, tries, resumable=False)
    run = await create(hf)
    await hf.drain()

    assert calls == [0, 1]
    assert (await look(hf, run.run_id)).status == "idle"
