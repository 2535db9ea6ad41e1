"""Deleting: runs and sessions are hidden at once, their threads stay for audit, and their ids are never used again."""

from __future__ import annotations

import asyncio

import pytest

from holdfast import Claim, Conflict, Done, Holdfast, LeaseLost, NotFound, Ok
from tests.conftest import IN_PROCESS, FakeClock
from tests.contract.builders import (
    LEASE_S,
    active,
    claim_one,
    count,
    create,
    entries,
    event_types,
    idle,
    in_status,
    kinds,
    look,
    quiet,
    rows,
    settle_storing,
    shared,
    start_child,
    stored,
)

in_process = pytest.mark.parametrize("configuration", IN_PROCESS)
STATUSES = ("idle", "pending", "waiting", "backing off", "paused", "done", "failed", "cancelled")


async def working_with_storage(hf: Holdfast, run_id: str = "r1", session_id: str = "s1") -> Claim:
    """A run that has storage of every scope, and is worked on again."""
    claim = await active(hf, run_id=run_id, session_id=session_id)
    await settle_storing(hf, claim, Ok(), run=1, session=2, row=3, **{"global": 4})
    await hf.signal(run_id, "more")
    return await claim_one(hf)


@pytest.mark.clause("O-51", "O-54", "C-4")
@pytest.mark.parametrize("status", STATUSES)
async def test_a_deleted_run_is_hidden_and_its_thread_stays(hf: Holdfast, status: str) -> None:
    run_id = await in_status(hf, status)
    before = await entries(hf, run_id)

    await hf.delete_run(run_id, actor="ada")

    assert await hf.get_run(run_id) is None
    assert await hf.get_run(run_id, as_of=1) is None
    assert await event_types(hf, run_id) == []
    assert await hf.is_gone(run_id)
    thread = await entries(hf, run_id)
    assert thread[: len(before)] == before
    assert (thread[-1].kind, thread[-1].data["actor"]) == ("run_deleted", "ada")
    ends = [entry.data["status"] for entry in thread if entry.kind == "run_terminal"]
    assert ends == [status if status in ("done", "failed") else "cancelled"]


@pytest.mark.clause("O-51", "O-52", "O-53")
async def test_ticks_and_storage_of_a_deleted_run_are_gone_and_what_it_shared_stays(hf: Holdfast) -> None:
    claim = await working_with_storage(hf)
    assert set((await stored(hf, "r1")).values()) == {"1", "3"}
    await hf.complete(claim)

    await hf.delete_run("r1")

    tables = (await rows(hf, "r1")).tables
    assert {name for name, found in tables.items() if found} == {"tombstones"}
    assert await shared(hf) == {"session/s1/chat": "2", "global/local/chat": "4"}


@pytest.mark.clause("O-51")
async def test_somebodys_work_is_not_deleted_unless_forced(hf: Holdfast) -> None:
    claim = await active(hf, run_id="r1")

    with pytest.raises(Conflict) as caught:
        await hf.delete_run("r1")
    assert caught.value.code == "run_active"
    assert (await look(hf, "r1")).status == "active"
    await hf.delete_run("r1", force=True)

    assert await hf.get_run("r1") is None
    with pytest.raises(LeaseLost) as lost:
        await hf.complete(claim, Done("too late"))
    assert lost.value.code == "stale_claim"
    with pytest.raises(LeaseLost):
        await hf.heartbeat(claim)
    assert (await kinds(hf, "r1"))[-2:] == ["run_terminal", "run_deleted"]


async def test_a_claim_that_ran_out_is_nobodys_work(hf: Holdfast, clock: FakeClock) -> None:
    await active(hf, run_id="r1")
    clock.advance(LEASE_S)

    await hf.delete_run("r1")

    assert await hf.claim_next() == []


@pytest.mark.parametrize("run_id", ["r1", "never"], ids=["deleted", "unknown"])
async def test_what_is_not_there_cannot_be_deleted(hf: Holdfast, run_id: str) -> None:
    await create(hf, run_id="r1")
    await hf.delete_run("r1")
    thread = await entries(hf, "r1")

    for call in (hf.delete_run(run_id), hf.delete_run(run_id, force=True), hf.cancel(run_id), hf.recover(run_id)):
        with pytest.raises(NotFound):
            await call
    assert (await hf.signal(run_id, 1)).reason == "not_found"
    assert await entries(hf, "r1") == thread
    assert await hf.is_gone(run_id) is (run_id == "r1")


@pytest.mark.parametrize("removed", ["deleted", "purged"])
async def test_an_id_is_never_used_again(hf: Holdfast, removed: str) -> None:
    await create(hf, run_id="r1")
    await (hf.delete_run("r1") if removed == "deleted" else hf.purge("r1"))
    created = {"kind": "run_created", "data": {"session_id": "s1", "clog_id": "chat"}}
    await create(hf, run_id="other")

    for call in (
        create(hf, run_id="r1"),
        idle(hf, run_id="r1", lane="main"),
        hf.create_runs([{"session_id": "s1", "clog_id": "chat", "run_id": name} for name in ("new", "r1")]),
        hf.journal.append("run:r1", [created]),
        hf.fork("other", 1, new_run_id="r1"),
        hf.replay("other", new_run_id="r1"),
    ):
        with pytest.raises(Conflict) as caught:
            await call
        assert caught.value.code == "id_reused"
    assert await hf.get_run("new") is None


async def test_a_key_is_free_again_once_its_run_is_deleted(hf: Holdfast) -> None:
    first = await create(hf, key="order-1")
    await hf.delete_run(first.run_id)

    second = await create(hf, key="order-1", input="other")

    assert second.run_id != first.run_id
    found = await hf.find_run(key="order-1")
    assert found is not None
    assert found.run_id == second.run_id


@in_process
async def test_created_and_deleted_in_one_commit_leaves_no_row(hf: Holdfast) -> None:
    for number in range(5):
        name = f"r{number}"
        await asyncio.gather(create(hf, run_id=name), hf.delete_run(name), return_exceptions=True)
        by_hand = [
            {"kind": "run_created", "data": {"session_id": "s1", "clog_id": "chat"}},
            {"kind": "run_terminal", "data": {"status": "done"}},
            {"kind": "run_deleted", "data": {}},
        ]
        await hf.journal.append(f"run:x{number}", by_hand)
        assert await hf.get_run(f"x{number}") is None


@pytest.mark.clause("C-6")
async def test_parents_and_children_hear_of_a_deletion(hf: Holdfast) -> None:
    parent = await active(hf, run_id="parent")
    await hf.journal.execute("parent", start_child(parent))
    await quiet(hf)
    child = await claim_one(hf)
    await hf.journal.execute("child", start_child(child, "grandchild"))
    await quiet(hf)

    await hf.delete_run("child", force=True)
    await quiet(hf)

    assert (await entries(hf, "parent"))[-1].data == {"child_run_id": "child", "status": "cancelled", "v": 1}
    assert (await look(hf, "grandchild")).status == "cancelled"


@in_process
async def test_who_follows_a_run_sees_its_end_when_it_is_deleted(hf: Holdfast) -> None:
    await create(hf, run_id="r1")

    async def follow() -> list[str]:
        return [event.type async for event in hf.events("r1", follow=True)]

    follower = asyncio.create_task(follow())
    await asyncio.sleep(0.05)
    await hf.delete_run("r1")

    assert await asyncio.wait_for(follower, 10) == ["run_queued", "done"]


@pytest.mark.clause("O-50", "O-53", "C-24")
async def test_deleting_a_session_takes_everything_of_it_and_nothing_else(hf: Holdfast) -> None:
    await hf.complete(await working_with_storage(hf, "r1"))
    await hf.complete(await working_with_storage(hf, "r2"))
    await create(hf, run_id="r3")
    await hf.complete(await claim_one(hf), Ok())
    await create(hf, run_id="other", session_id="s2")

    await hf.delete_session("s1")

    assert [await hf.get_run(name) for name in ("r1", "r2", "r3")] == [None] * 3
    assert (await look(hf, "other")).status == "pending"
    assert await shared(hf) == {"global/local/chat": "4"}
    assert await count(hf, "sessions") == 1
    assert (await kinds(hf, "r3"))[-2:] == ["run_terminal", "run_deleted"]
    with pytest.raises(NotFound):
        await hf.delete_session("s1")


@pytest.mark.clause("C-24")
async def test_a_session_that_is_worked_in_is_not_deleted_unless_forced(hf: Holdfast) -> None:
    await create(hf, run_id="resting")
    await hf.pause("resting", "review")
    claim = await active(hf, run_id="working")

    with pytest.raises(Conflict) as caught:
        await hf.delete_session("s1")
    assert caught.value.code == "session_active"
    assert (await look(hf, "resting")).status == "paused"
    await hf.delete_session("s1", force=True)

    assert [await hf.get_run(name) for name in ("resting", "working")] == [None, None]
    with pytest.raises(LeaseLost):
        await hf.complete(claim)


async def test_a_session_can_be_begun_again(hf: Holdfast) -> None:
    await hf.complete(await working_with_storage(hf))
    await hf.delete_session("s1")

    await create(hf, run_id="r2")

    assert (await look(hf, "r2")).session_id == "s1"
    assert "session/s1/chat" not in await shared(hf)


@in_process
async def test_a_run_that_is_created_meanwhile_is_deleted_or_begins_the_session_anew(hf: Holdfast) -> None:
    for _ in range(5):
        await create(hf)

        made, _ = await asyncio.gather(create(hf), hf.delete_session("s1", force=True))

        alive = await hf.get_run(made.run_id)
        assert await count(hf, "runs") == (0 if alive is None else 1)
        assert (alive is not None) or await hf.is_gone(made.run_id)


@pytest.mark.clause("C-4")
@pytest.mark.parametrize("status", [*STATUSES, "active"])
async def test_a_purged_run_leaves_nothing_but_its_id(hf: Holdfast, status: str) -> None:
    run_id = (await active(hf)).run_id if status == "active" else await in_status(hf, status)
    await hf.journal.save_checkpoint(f"run:{run_id}", 1, {"seen": 1})

    await hf.purge(run_id)

    assert await hf.get_run(run_id) is None
    assert await entries(hf, run_id) == []
    assert await hf.is_gone(run_id)
    assert await count(hf, "journal") + await count(hf, "checkpoints") == 0
    with pytest.raises(NotFound):
        await hf.purge(run_id)


async def test_a_deleted_run_can_still_be_purged(hf: Holdfast) -> None:
    await create(hf, run_id="r1")
    await hf.delete_run("r1")

    await hf.purge("r1")

    assert await entries(hf, "r1") == []
    with pytest.raises(NotFound):
        await hf.purge("never")


async def test_a_purge_tells_others_first(hf: Holdfast) -> None:
    parent = await active(hf, run_id="parent")
    await hf.journal.execute("parent", start_child(parent))
    await quiet(hf)

    await hf.purge("child")

    assert (await kinds(hf, "parent"))[-1] == "child_run_finished"
    assert await hf.journal.sweep() == 0


async def test_what_a_purged_run_shared_stays(hf: Holdfast) -> None:
    await working_with_storage(hf)

    await hf.purge("r1")

    assert await shared(hf) == {"session/s1/chat": "2", "global/local/chat": "4"}
    assert (await hf.rebuild()).ok
    assert len(await shared(hf)) == 2
