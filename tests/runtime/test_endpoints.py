"""Endpoints: called directly in a tick of `begin_tick`, or by another clog inside its own tick."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import Clog, Conflict, Context, Continue, Done, Holdfast, InvalidValue, NotFound, Ok, StorageError
from tests.contract.builders import claim_one, create, idle, kinds, look
from tests.runtime.clogs import answering, on_advance, said


def tools(hf: Holdfast, **endpoints: Any) -> Clog:
    """A registered clog `tools` with these endpoints."""
    clog = Clog("tools")
    for name, handler in endpoints.items():
        clog.endpoint(name)(handler)
    hf.register(clog)
    return clog


async def call(hf: Holdfast, run_id: str, tick_id: str, method: str, payload: Any = None) -> Any:
    return await hf.call_clog(run_id=run_id, tick_id=tick_id, clog_id="tools", method=method, payload=payload)


async def put(payload: Any, ctx: Context) -> Any:
    """Put a value into the run's row and answer what was there."""
    (before,) = await ctx.read(("run",))
    await ctx.write(("run.set", payload))
    return before


@pytest.mark.clause("O-29", "O-41", "OB-18")
async def test_an_endpoint_answers_at_once_and_leaves_the_state_machine_alone(hf: Holdfast) -> None:
    async def double(payload: Any, ctx: Context) -> Any:
        assert (ctx.run_id, ctx.tick_id, ctx.clog_id) == (run.run_id, tick_id, "tools")
        assert (ctx.attempt, ctx.signal, ctx.cancelled) == (0, None, False)
        return payload * 2

    tools(hf, double=double)
    run = await create(hf)
    tick_id = await hf.begin_tick(run.run_id)

    assert await call(hf, run.run_id, tick_id, "double", 21) == 42
    after = await look(hf, run.run_id)
    assert (after.status, after.pending_input, after.attempt, after.deliveries) == ("pending", "hello", 0, 0)


@pytest.mark.clause("O-29", "H-O9")
async def test_what_an_endpoint_wrote_is_on_disk_when_it_answers(hf: Holdfast) -> None:
    tools(hf, put=put)
    run = await idle(hf)

    first = await call(hf, run.run_id, await hf.begin_tick(run.run_id), "put", "one")
    second = await call(hf, run.run_id, await hf.begin_tick(run.run_id), "put", "two")

    assert (first, second) == (None, "one")
    assert (await kinds(hf, run.run_id)).count("storage_written") == 2


@pytest.mark.clause("O-29")
async def test_direct_calls_and_ticks_stand_side_by_side(hf: Holdfast) -> None:
    async def calls_out(given: Any, ctx: Context) -> Done:
        tick_id = await hf.begin_tick(ctx.run_id)
        return Done(await call(hf, ctx.run_id, tick_id, "echo", "while active"))

    async def echo(payload: Any, ctx: Context) -> Any:
        return payload

    tools(hf, echo=echo)
    answering(hf, calls_out)
    run = await create(hf)
    await hf.advance()

    assert (await look(hf, run.run_id)).output == "while active"


@pytest.mark.clause("OB-18")
async def test_a_tick_is_begun_once_for_each_id(hf: Holdfast) -> None:
    run = await idle(hf)

    assert await hf.begin_tick(run.run_id, "t1") == "t1"
    rev = (await look(hf, run.run_id)).rev
    assert await hf.begin_tick(run.run_id, "t1") == "t1"
    assert (await look(hf, run.run_id)).rev == rev
    assert await hf.begin_tick(run.run_id) != await hf.begin_tick(run.run_id)


@pytest.mark.clause("OB-18")
async def test_a_tick_of_an_unknown_or_finished_run_cannot_be_begun(hf: Holdfast) -> None:
    answering(hf, Done())
    run = await create(hf)
    await hf.advance()

    with pytest.raises(NotFound):
        await hf.begin_tick("nobody")
    with pytest.raises(Conflict) as over:
        await hf.begin_tick(run.run_id)
    assert over.value.code == "terminal_run"
    with pytest.raises(InvalidValue):
        await hf.begin_tick(run.run_id, "no good id")
    with pytest.raises(NotFound):
        await hf.as_user("somebody").begin_tick(run.run_id)


@pytest.mark.clause("O-29")
async def test_a_claimed_tick_takes_no_calls_from_outside(hf: Holdfast) -> None:
    tools(hf, put=put)
    run = await create(hf)
    claim = await claim_one(hf)

    for attempt in (call(hf, run.run_id, claim.tick_id, "put", 1), hf.begin_tick(run.run_id, claim.tick_id)):
        with pytest.raises(Conflict) as active:
            await attempt
        assert active.value.code == "tick_active"
    await hf.complete(claim, Ok())
    with pytest.raises(Conflict):
        await call(hf, run.run_id, claim.tick_id, "put", 1)


@pytest.mark.clause("OB-13")
async def test_unknown_runs_ticks_clogs_and_endpoints_have_names(hf: Holdfast) -> None:
    tools(hf, put=put)
    run = await idle(hf)
    other = await idle(hf)
    tick_id = await hf.begin_tick(run.run_id)

    with pytest.raises(NotFound) as clog:
        await hf.call_clog(run_id=run.run_id, tick_id=tick_id, clog_id="nobodys", method="put")
    assert clog.value.code == "UNKNOWN_CLOG"
    with pytest.raises(NotFound) as endpoint:
        await call(hf, run.run_id, tick_id, "nothing")
    assert endpoint.value.code == "UNKNOWN_ENDPOINT"
    for run_id, tick in ((run.run_id, "t9"), ("nobody", tick_id), (other.run_id, tick_id)):
        with pytest.raises(NotFound) as unknown:
            await call(hf, run_id, tick, "put")
        assert unknown.value.code == "not_found"


@pytest.mark.clause("O-42")
async def test_another_users_runs_take_no_calls(hf: Holdfast) -> None:
    tools(hf, put=put)
    run = await create(hf, user_id="ann")
    tick_id = await hf.begin_tick(run.run_id)

    with pytest.raises(NotFound):
        await call(hf.as_user("bob"), run.run_id, tick_id, "put", 1)
    assert await call(hf.as_user("ann"), run.run_id, tick_id, "put", 1) is None


@pytest.mark.clause("H-O8")
async def test_a_call_cannot_refill_its_ticks_budget(hf: Holdfast) -> None:
    async def nothing(payload: Any, ctx: Context) -> None:
        return None

    tools(hf, put=put, nothing=nothing)
    run = await idle(hf)
    tick_id = await hf.begin_tick(run.run_id)
    await call(hf, run.run_id, tick_id, "put", 1)

    with pytest.raises(StorageError) as spent:
        await call(hf, run.run_id, tick_id, "put", 2)
    assert spent.value.code == "STORAGE_READ_ALREADY_CALLED"
    await hf.begin_tick(run.run_id, tick_id)
    with pytest.raises(StorageError):
        await call(hf, run.run_id, tick_id, "put", 3)
    assert await call(hf, run.run_id, tick_id, "nothing") is None


@pytest.mark.clause("H-O8", "OB-12")
async def test_a_call_that_raised_has_used_its_budget_and_written_nothing(hf: Holdfast) -> None:
    async def breaks(payload: Any, ctx: Context) -> None:
        await ctx.emit("note", "before")
        ctx.stream("text", "half")
        await ctx.read(("run",))
        await ctx.write(("run.set", 1))
        await ctx.outbox("email", "never sent")
        raise ValueError("broken")

    tools(hf, breaks=breaks, put=put)
    run = await idle(hf)
    tick_id = await hf.begin_tick(run.run_id)

    with pytest.raises(ValueError, match="broken"):
        await call(hf, run.run_id, tick_id, "breaks")

    with pytest.raises(StorageError):
        await call(hf, run.run_id, tick_id, "put", 2)
    assert await call(hf, run.run_id, await hf.begin_tick(run.run_id), "put", 3) is None
    assert [kind for kind, _ in await said(hf, run.run_id)] == ["note", "message_start", "text", "message_end"]
    assert await hf.journal.store.fetch("SELECT 1 FROM {s}outbox") == []


@pytest.mark.clause("H-O9")
async def test_of_two_calls_that_read_one_row_one_writes_it(hf: Holdfast) -> None:
    both = asyncio.Barrier(2)

    async def meets(payload: Any, ctx: Context) -> None:
        await ctx.read(("run",))
        await ctx.write(("run.set", payload))
        async with asyncio.timeout(10):
            await both.wait()

    tools(hf, meets=meets)
    run = await idle(hf)
    ticks = [await hf.begin_tick(run.run_id) for _ in range(2)]

    answers = await asyncio.gather(
        *(call(hf, run.run_id, tick_id, "meets", tick_id) for tick_id in ticks), return_exceptions=True
    )

    (refused,) = [answer for answer in answers if answer is not None]
    assert isinstance(refused, StorageError)
    assert refused.code == "STORAGE_CONFLICT"
    assert (await kinds(hf, run.run_id)).count("storage_written") == 1


@pytest.mark.clause("H-O8", "O-56")
async def test_of_two_calls_in_one_tick_one_writes(hf: Holdfast) -> None:
    both = asyncio.Barrier(2)

    async def meets(payload: Any, ctx: Context) -> None:
        await ctx.read(("tick", [payload]))
        await ctx.write(("tick.set", payload, 1))
        async with asyncio.timeout(10):
            await both.wait()

    tools(hf, meets=meets)
    run = await idle(hf)
    tick_id = await hf.begin_tick(run.run_id)

    answers = await asyncio.gather(
        *(call(hf, run.run_id, tick_id, "meets", row_id) for row_id in ("a", "b")), return_exceptions=True
    )

    (refused,) = [answer for answer in answers if answer is not None]
    assert isinstance(refused, StorageError)
    assert refused.code == "STORAGE_WRITE_ALREADY_CALLED"
    assert len(await hf.journal.store.fetch("SELECT 1 FROM {s}run_storage")) == 1


@pytest.mark.clause("OB-14", "O-51")
async def test_an_endpoint_may_delete_its_run(hf: Holdfast) -> None:
    async def forget(payload: Any, ctx: Context) -> str:
        await ctx.read(("run",))
        await ctx.write(("run.delete",))
        return "forgotten"

    tools(hf, forget=forget)
    run = await idle(hf)

    assert await call(hf, run.run_id, await hf.begin_tick(run.run_id), "forget") == "forgotten"
    await hf.journal.sweep()
    assert await hf.get_run(run.run_id) is None


@pytest.mark.clause("C-19")
async def test_what_an_endpoint_sends_leaves_with_its_answer(hf: Holdfast) -> None:
    async def send(payload: Any, ctx: Context) -> str:
        return await ctx.outbox("email", payload)

    tools(hf, send=send)
    run = await idle(hf)
    outbox_id = await call(hf, run.run_id, await hf.begin_tick(run.run_id), "send", {"to": "ann"})

    rows = await hf.journal.store.fetch("SELECT outbox_id, run_id, payload FROM {s}outbox")
    assert rows == [(outbox_id, run.run_id, '{"to":"ann"}')]


async def test_a_direct_call_starts_no_children(hf: Holdfast) -> None:
    async def child(payload: Any, ctx: Context) -> None:
        await ctx.child("chat", key="k")

    tools(hf, child=child)
    run = await idle(hf)

    with pytest.raises(Conflict):
        await call(hf, run.run_id, await hf.begin_tick(run.run_id), "child")


@pytest.mark.clause("O-43", "O-42", "OB-15")
async def test_a_handler_calls_another_clog_in_its_own_tick(hf: Holdfast) -> None:
    async def shout(payload: Any, ctx: Context) -> Any:
        await ctx.emit("note", payload)
        assert ctx.clog_id == "tools"
        return [ctx.run_id, ctx.tick_id, payload.upper()]

    async def asks(given: Any, ctx: Context) -> Done:
        answer = await ctx.call("tools", "shout", "hello")
        assert answer == await ctx.call("clog.tools.shout", payload="hello")
        assert answer[:2] == [ctx.run_id, ctx.tick_id]
        return Done(answer[2])

    tools(hf, shout=shout)
    answering(hf, asks)
    run = await create(hf)
    await hf.advance()

    after = await look(hf, run.run_id)
    assert (after.clog_id, after.output) == ("chat", "HELLO")
    assert await said(hf, run.run_id) == [("note", "hello")] * 2


@pytest.mark.clause("O-49", "H-O8", "OB-11")
async def test_a_called_clog_has_its_own_rows_and_its_own_budget(hf: Holdfast) -> None:
    async def asks(given: Any, ctx: Context) -> Continue:
        (mine,) = await ctx.read(("run",))
        theirs = await ctx.call("tools", "put", "theirs")
        await ctx.write(("run.set", "mine"))
        with pytest.raises(StorageError) as spent:
            await ctx.call("tools", "put", "again")
        assert spent.value.code == "STORAGE_READ_ALREADY_CALLED"
        found.append((mine, theirs))
        return Continue()

    found: list[Any] = []
    tools(hf, put=put)
    answering(hf, asks, asks)
    await create(hf)
    await hf.advance()
    await hf.advance()

    assert found == [(None, None), ("mine", "theirs")]


@pytest.mark.clause("H-O8", "O-55")
async def test_a_clog_that_calls_itself_shares_its_budget(hf: Holdfast) -> None:
    clog = Clog("chat")

    @clog.endpoint("read")
    async def read(payload: Any, ctx: Context) -> Any:
        return await ctx.read(("run",))

    @clog.on_advance
    async def advance(given: Any, ctx: Context) -> Done:
        await ctx.call("chat", "read")
        with pytest.raises(StorageError) as spent:
            await ctx.read(("run",))
        assert await ctx.write(("run.set", 1)) == 1
        return Done(spent.value.code)

    hf.register(clog)
    run = await create(hf)
    await hf.advance()

    assert (await look(hf, run.run_id)).output == "STORAGE_READ_ALREADY_CALLED"


@pytest.mark.clause("OB-13", "OB-15")
@pytest.mark.parametrize(
    ("target", "method", "code"),
    [
        ("nobodys", "x", "UNKNOWN_CLOG"),
        ("clog.nobodys.x", None, "UNKNOWN_CLOG"),
        ("tools", "nothing", "UNKNOWN_ENDPOINT"),
        ("clog.tools.nothing", None, "UNKNOWN_ENDPOINT"),
        ("tools", None, "UNKNOWN_ENDPOINT"),
        ("clog.tools", None, "UNKNOWN_ENDPOINT"),
        ("clog.tools.", None, "UNKNOWN_ENDPOINT"),
        ("tool.tools.put", None, "UNKNOWN_ENDPOINT"),
        ("", None, "UNKNOWN_ENDPOINT"),
    ],
)
async def test_a_wrong_address_is_an_error_with_a_name(hf: Holdfast, target: str, method: Any, code: str) -> None:
    async def asks(given: Any, ctx: Context) -> Done:
        with pytest.raises(NotFound) as wrong:
            await ctx.call(target, method)
        return Done(wrong.value.code)

    tools(hf, put=put)
    answering(hf, asks)
    run = await create(hf)
    await hf.advance()

    assert (await look(hf, run.run_id)).output == code


@pytest.mark.clause("O-43")
async def test_an_error_of_a_called_clog_is_its_callers_to_handle(hf: Holdfast) -> None:
    async def breaks(payload: Any, ctx: Context) -> None:
        raise KeyError("lost")

    async def asks(given: Any, ctx: Context) -> Done:
        with pytest.raises(KeyError):
            await ctx.call("tools", "breaks")
        return Done("handled")

    tools(hf, breaks=breaks)
    answering(hf, asks)
    run = await create(hf)
    await hf.advance()

    assert (await look(hf, run.run_id)).output == "handled"


@pytest.mark.clause("O-41")
async def test_def_endpoints_are_called_from_either_side(hf: Holdfast) -> None:
    def add(payload: Any, ctx: Any) -> int:
        ctx.emit("note", payload)
        (before,) = ctx.read(("run",))
        ctx.write(("run.set", (before or 0) + payload))
        return int(before or 0)

    async def asks(given: Any, ctx: Context) -> Done:
        return Done(await ctx.call("tools", "add", 2))

    tools(hf, add=add)
    on_advance(hf, asks)
    run = await create(hf)
    assert await call(hf, run.run_id, await hf.begin_tick(run.run_id), "add", 40) == 0
    await hf.advance()

    assert (await look(hf, run.run_id)).output == 40


@pytest.mark.clause("O-41", "O-44")
def test_a_clog_has_one_handler_and_one_endpoint_of_each_name() -> None:
    clog = Clog("chat")
    clog.on_advance(put)
    clog.endpoint("put")(put)

    with pytest.raises(ValueError, match="on_advance"):
        clog.on_advance(put)
    with pytest.raises(ValueError, match="put"):
        clog.endpoint("put")(put)
    for name in ("", "a b", "ü", "x" * 200):
        with pytest.raises(InvalidValue):
            Clog(name)


@pytest.mark.clause("O-02")
async def test_a_clogs_name_is_registered_once(hf: Holdfast) -> None:
    clog = Clog("chat")
    hf.register(clog)
    hf.register(clog)

    with pytest.raises(ValueError, match="chat"):
        hf.register(Clog("chat"))
