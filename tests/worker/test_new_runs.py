"""A run that is created beside an idle worker is taken in the commit that creates it."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from typing import Any

import pytest

from holdfast import Done, Fail, Holdfast
from holdfast.errors import DatabaseError
from holdfast.logs import request_id
from holdfast.protocol.facts import ToolAnswered
from holdfast.store.types import OutcomeUnknown
from holdfast.worker import RunWorker
from tests.conftest import Opener
from tests.worker.places import clog, ended, until, working


async def quick(given: Any, ctx: Any) -> Done:
    return Done(given)


async def sated(worker: RunWorker) -> None:
    """It has looked and found nothing more."""
    await until(lambda: worker._is_sated)


async def made_together(hf: Holdfast, run_id: str) -> list[str]:
    """The kinds of the entries that came with the run's first one."""
    sql = "SELECT rev, kind, commit_id FROM {s}journal WHERE thread = $1 ORDER BY rev"
    entries = await hf.journal.store.fetch(sql, f"run:{run_id}")
    return [kind for _, kind, commit_id in entries if commit_id == entries[0][2]]


@pytest.mark.clause("S-08", "O-32")
async def test_creation_and_claim_are_one_commit_and_the_creator_sees_it_pending(hf: Holdfast) -> None:
    hf.register(clog("quick", quick))
    async with working(hf) as worker:
        await sated(worker)
        run = await hf.create_run(session_id="s", clog_id="quick", input={"a": 1})

        assert (run.status, run.rev, run.deliveries, run.pending_input) == ("pending", 1, 0, {"a": 1})
        assert await hf.result(run.run_id, timeout=10) == {"a": 1}

    assert await made_together(hf, run.run_id) == ["run_created", "attempt_claimed"]
    assert (await hf.fsck()).problems == ()


async def test_a_handler_has_its_own_copy_of_the_input(hf: Holdfast) -> None:
    async def change(given: Any, ctx: Any) -> Done:
        given["a"] = 2
        return Done()

    hf.register(clog("change", change))
    async with working(hf) as worker:
        await sated(worker)
        mine = {"a": 1}
        run = await hf.create_run(session_id="s", clog_id="change", input=mine)
        await hf.result(run.run_id, timeout=10)

    assert mine == run.pending_input == {"a": 1}


async def test_a_new_run_does_not_overtake_those_that_wait(hf: Holdfast) -> None:
    order: list[Any] = []
    release = asyncio.Event()

    async def one(given: Any, ctx: Any) -> Done:
        order.append(given)
        await release.wait()
        return Done()

    hf.register(clog("one", one))
    async with working(hf, concurrency=1):
        runs = [(await hf.create_run(session_id="s", clog_id="one", input=number)).run_id for number in range(5)]
        await until(lambda: bool(order))
        release.set()
        assert await ended(hf, *runs) == ["done"] * 5

    assert order == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("options", [{"queue": "other"}, {"clog_id": "foreign"}])
async def test_what_is_not_ours_is_left(hf: Holdfast, options: dict[str, Any]) -> None:
    hf.register(clog("quick", quick))
    async with working(hf) as worker:
        await sated(worker)
        run = await hf.create_run(**{"session_id": "s", "clog_id": "quick", "input": 1, **options})
        await asyncio.sleep(0.1)
        left = await hf.get_run(run.run_id)

    assert left is not None
    assert (left.status, left.deliveries, left.rev) == ("pending", 0, 1)


async def test_a_run_without_input_is_not_taken(hf: Holdfast) -> None:
    hf.register(clog("quick", quick))
    async with working(hf) as worker:
        await sated(worker)
        run = await hf.create_run(session_id="s", clog_id="quick")
        await asyncio.sleep(0.1)
        left = await hf.get_run(run.run_id)

    assert left is not None
    assert (left.status, left.rev) == ("idle", 1)


async def test_a_creation_that_is_refused_takes_no_slot(hf: Holdfast) -> None:
    hf.register(clog("quick", quick))
    await hf.as_user("ada").create_run(session_id="hers", clog_id="foreign", input=1)
    async with working(hf, concurrency=1) as worker:
        await sated(worker)
        with pytest.raises(Exception, match="session"):
            await hf.as_user("bob").create_run(session_id="hers", clog_id="quick", input=1)
        run = await hf.create_run(session_id="s", clog_id="quick", input=1)
        assert await hf.result(run.run_id, timeout=10) == 1


async def test_one_that_fails_is_tried_again_like_any_other(hf: Holdfast) -> None:
    async def fail(given: Any, ctx: Any) -> Fail:
        return Fail("no")

    hf.register(clog("fail", fail))
    async with working(hf) as worker:
        await sated(worker)
        run = await hf.create_run(session_id="s", clog_id="fail", input=1)
        assert await ended(hf, run.run_id) == ["failed"]


async def test_after_a_lost_answer_it_is_run_once(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit arrived, its answer did not: both who asked find out, and the handler is called once."""
    seen: list[str] = []

    async def note(given: Any, ctx: Any) -> Done:
        seen.append(ctx.run_id)
        return Done(given)

    hf.register(clog("note", note))
    database = hf.journal.store._database
    write = type(database).write
    cut: list[int] = []

    async def lossy(self: Any, members: Any, commit_id: int, news: Any = ()) -> Any:
        written = await write(self, members, commit_id, news)
        if members[0].created is not None and not cut:
            cut.append(commit_id)
            raise OutcomeUnknown("cut")
        return written

    monkeypatch.setattr(type(database), "write", lossy)
    async with working(hf) as worker:
        await sated(worker)
        run = await hf.create_run(session_id="s", clog_id="note", input=7)
        assert await hf.result(run.run_id, timeout=10) == 7

    assert cut
    assert seen == [run.run_id]
    assert (await hf.fsck()).problems == ()


async def test_a_database_that_refuses_is_told_to_the_creator_and_the_worker_goes_on(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    hf.register(clog("quick", quick))
    database = hf.journal.store._database
    write = type(database).write

    async def refusing(self: Any, members: Any, commit_id: int, news: Any = ()) -> Any:
        if members[0].created is not None:
            raise DatabaseError("its disk is full; make room", code="disk_full")
        return await write(self, members, commit_id, news)

    async with working(hf, concurrency=1) as worker:
        await sated(worker)
        with monkeypatch.context() as patched:
            patched.setattr(type(database), "write", refusing)
            with pytest.raises(DatabaseError, match="disk"):
                await hf.create_run(session_id="s", clog_id="quick", input=1)
        run = await hf.create_run(session_id="s", clog_id="quick", input=2)
        assert await hf.result(run.run_id, timeout=10) == 2


async def test_stopped_while_it_takes_it_gives_the_run_back(open_hf: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    hf = await open_hf()
    hf.register(clog("quick", quick))
    database = hf.journal.store._database
    write = type(database).write
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slowly(self: Any, members: Any, commit_id: int, news: Any = ()) -> Any:
        if members[0].created is not None:
            begun.set()
            await go_on.wait()
        return await write(self, members, commit_id, news)

    monkeypatch.setattr(type(database), "write", slowly)
    async with working(hf) as worker:
        await sated(worker)
        creating = asyncio.create_task(hf.create_run(session_id="s", clog_id="quick", input=1))
        await begun.wait()
        worker.stop()
        go_on.set()
        run = await creating

    left = await hf.get_run(run.run_id)
    assert left is not None
    assert (left.status, left.deliveries) == ("pending", 0)


async def test_a_new_run_knows_nothing_of_whoever_creates_it(hf: Holdfast) -> None:
    mine: ContextVar[str] = ContextVar("mine", default="nobody's")
    seen: list[Any] = []

    async def speak(given: Any, ctx: Any) -> Done:
        seen.append((mine.get(), request_id.get()))
        await ctx.emit("text", "said by the new run")
        return Done()

    async def create(given: Any, ctx: Any) -> Done:
        async def tool(args: Any) -> str:
            mine.set("the creator's")
            request_id.set("the creator's")
            # It looks again from time to time, and takes nothing new meanwhile.
            await sated(worker)
            run = await hf.create_run(session_id="s", clog_id="speak", input=1)
            await hf.result(run.run_id, timeout=10)
            return run.run_id

        return Done(await ctx.tool("create", 1, tool))

    hf.register(clog("speak", speak), clog("create", create))
    async with working(hf) as worker:
        await sated(worker)
        run = await hf.create_run(session_id="s", clog_id="create", input=1)
        created = await hf.result(run.run_id, timeout=10)

    assert await made_together(hf, created) == ["run_created", "attempt_claimed"]
    assert seen == [("nobody's", None)]
    (answered,) = [fact for _, fact in await hf.journal.facts(run.run_id) if isinstance(fact, ToolAnswered)]
    assert answered.said == [], "what another run said is not this tool's"
