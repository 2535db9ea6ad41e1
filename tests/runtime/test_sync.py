"""`hf.sync`: the same calls for code without an event loop."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast import Done, Holdfast, HoldfastError, Ok
from tests.runtime.clogs import on_advance


@pytest.fixture
def hf(database_url: str, schema: str) -> Iterator[Holdfast]:
    """A runtime that nobody opened."""
    holdfast = Holdfast(database_url, schema=schema)
    yield holdfast
    report = holdfast.sync.fsck()
    holdfast.sync.close()
    assert report.ok, report.problems


def create(hf: Holdfast, **options: Any) -> Any:
    return hf.sync.create_run(**{"session_id": "s1", "clog_id": "chat", "input": "hello", **options})


def threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("holdfast-sync")}


def test_the_first_call_opens_and_close_ends_the_thread(hf: Holdfast) -> None:
    on_advance(hf, lambda given, ctx: Done(given))

    run = create(hf)
    assert threads() != set()
    result = hf.sync.advance()

    assert result.advanced == 1
    assert hf.sync.get_run(run.run_id).output == "hello"
    hf.sync.close()
    assert threads() == set()


def test_it_can_be_opened_and_closed_as_often_as_one_likes(hf: Holdfast) -> None:
    for _ in range(2):
        with hf.sync as sync:
            assert sync.get_run("nobody") is None
    hf.sync.open()
    hf.sync.open()
    assert hf.sync.get_run("nobody") is None
    hf.sync.close()
    hf.sync.close()


def test_async_and_def_handlers_both_run(hf: Holdfast) -> None:
    async def speaks(given: Any, ctx: Any) -> Done:
        await ctx.emit("note", given)
        return Done("async")

    def asks(given: Any, ctx: Any) -> Done:
        # In a thread of its own, a handler may use the blocking calls itself.
        return Done(hf.sync.get_run(ctx.run_id).status)

    on_advance(hf, speaks)
    on_advance(hf, asks, "asker")
    one, two = create(hf), create(hf, clog_id="asker")
    hf.sync.drain()

    assert hf.sync.get_run(one.run_id).output == "async"
    assert hf.sync.get_run(two.run_id).output == "active"


def test_events_are_iterated_without_a_loop(hf: Holdfast) -> None:
    on_advance(hf, lambda given, ctx: Done(ctx.emit("note", 1)))
    run = create(hf)
    hf.sync.advance()

    types = [event.type for event in hf.sync.events(run.run_id)]
    assert types == ["run_queued", "run_started", "note", "done"]
    assert [event.type for event in hf.sync.events(run.run_id, follow=True)] == types


def test_an_iteration_may_be_left_early(hf: Holdfast) -> None:
    run = create(hf)

    events = hf.sync.events(run.run_id, follow=True)
    assert next(events).type == "run_queued"
    hf.sync.close()
    del events
    assert threads() == set()


def test_the_journal_blocks_too(hf: Holdfast) -> None:
    assert hf.sync.journal.append("notes", [{"kind": "note", "data": {"text": "hi"}}]) == 1
    assert [entry.data for entry in hf.sync.journal.read("notes")] == [{"text": "hi"}]


def test_a_user_has_blocking_calls_of_their_own(hf: Holdfast) -> None:
    run = create(hf, user_id="ann")

    for bob in (hf.sync.as_user("bob"), hf.as_user("bob").sync):
        assert bob.get_run(run.run_id) is None
    for ann in (hf.sync.as_user("ann"), hf.as_user("ann").sync):
        assert ann.get_run(run.run_id).run_id == run.run_id
    assert len(threads()) == 1


def test_errors_arrive_as_they_are(hf: Holdfast) -> None:
    with pytest.raises(HoldfastError) as unknown:
        hf.sync.cancel("nobody")
    assert unknown.value.code == "not_found"
    with pytest.raises(AttributeError):
        hf.sync.no_such_call()


async def test_inside_a_running_loop_it_refuses(hf: Holdfast) -> None:
    with pytest.raises(HoldfastError) as refused:
        hf.sync.get_run("nobody")
    assert refused.value.code == "running_loop"
    with pytest.raises(HoldfastError), hf.sync:
        pass
    with pytest.raises(HoldfastError):
        next(hf.sync.events("nobody"))
    assert await_nothing(hf)


def await_nothing(hf: Holdfast) -> bool:
    """Nothing was started by the refusals."""
    return threads() == set()


def test_a_database_that_cannot_be_opened_leaves_nothing_behind(tmp_path: Any) -> None:
    broken = Holdfast(str(tmp_path / "no" / "such" / "folder" / "x.db"))

    with pytest.raises(HoldfastError):
        broken.sync.get_run("nobody")
    assert threads() == set()


def test_many_threads_may_call_at_once(hf: Holdfast) -> None:
    on_advance(hf, lambda given, ctx: Ok())
    failures: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(5):
                create(hf)
                hf.sync.advance(max_runs=1)
        except BaseException as error:
            failures.append(error)

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    hf.sync.drain()

    assert failures == []
    assert {run.status for run in hf.sync.list_runs(limit=100).items} == {"idle"}
