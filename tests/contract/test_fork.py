"""fork and replay: a new run from an old one, from any revision or from the start. The old one never notices."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import Claim, Conflict, Done, Holdfast, InvalidValue, LeaseLost, NotFound, Ok, RetryPolicy, RunInfo, Wait
from holdfast.identity import child_id
from holdfast.protocol import commands
from tests.conftest import FakeClock
from tests.contract.builders import (
    CLEARED,
    active,
    anomalies,
    claim_one,
    count,
    create,
    entries,
    event_types,
    fence,
    idle,
    in_status,
    kinds,
    look,
    quiet,
    settle_storing,
    shared,
    start_child,
    stored,
)

ITS_OWN = {"run_id", "rev", "updated_at", "locked_by", "lock_expires_at", "parent_run_id"}
STATUSES = ("idle", "pending", "waiting", "backing off", "paused", "done", "failed", "cancelled")


def alike(one: RunInfo, other: RunInfo) -> bool:
    """Do two runs look the same but for what is a run's own?"""
    names = set(one.__struct_fields__) - ITS_OWN
    return all(getattr(one, name) == getattr(other, name) for name in names)


async def bodies(hf: Holdfast, run_id: str, limit: int | None = None) -> list[tuple[Any, ...]]:
    return [(each.rev, each.kind, each.data, each.at) for each in (await entries(hf, run_id))[:limit]]


@pytest.mark.parametrize("status", STATUSES)
async def test_a_fork_is_a_copy_that_goes_its_own_way(hf: Holdfast, clock: FakeClock, status: str) -> None:
    run_id = await in_status(hf, status)
    original, thread = await look(hf, run_id), await bodies(hf, run_id)
    clock.advance(1)

    forked = await hf.fork(run_id)

    assert alike(forked, original)
    assert (forked.rev, forked.updated_at) == (original.rev + 1, clock.now())
    assert (await bodies(hf, forked.run_id))[:-1] == thread
    last = (await entries(hf, forked.run_id))[-1]
    assert (last.kind, last.data) == ("run_forked", {"source_run_id": run_id, "at_rev": original.rev, "v": 1})
    assert await bodies(hf, run_id) == thread
    assert await look(hf, run_id) == original


async def test_a_fork_begins_at_any_revision(hf: Holdfast) -> None:
    claim = await active(hf, run_id="r1", input="first")
    await hf.emit(claim, "text", "hello")
    await hf.signal("r1", "second")
    await hf.complete(claim, Done("done"))
    past = {rev: await hf.get_run("r1", as_of=rev) for rev in range(1, 6)}

    for rev, then in past.items():
        forked = await hf.fork("r1", at_rev=rev, new_run_id=f"fork-{rev}")
        assert then is not None
        assert (forked.status, forked.output) == (
            ("pending", None) if then.status == "active" else (then.status, then.output)
        )
        assert await bodies(hf, forked.run_id, rev) == await bodies(hf, "r1", rev)


async def test_an_open_claim_counts_as_released(hf: Holdfast) -> None:
    claim = await active(hf, run_id="r1", input="work")

    forked = await hf.fork("r1", 2, new_run_id="r2")

    assert (forked.status, forked.deliveries, forked.locked_by, forked.pending_input) == ("pending", 0, None, "work")
    own = await claim_one(hf)
    assert (own.run_id, own.input) == ("r2", "work")
    with pytest.raises(LeaseLost):
        await hf.complete(_held_by(claim, "r2"), Done("not mine"))
    assert (await hf.complete(own, Done(2))).output == 2
    assert (await hf.complete(claim, Done(1))).output == 1
    assert await _ticks(hf, "r2") == [(own.tick_id, "done")]


async def test_storage_comes_along_as_it_was_then(hf: Holdfast) -> None:
    claim = await active(hf, run_id="r1")
    await settle_storing(hf, claim, Ok(), run={"n": 1}, session="s", row="kept", **{"global": "g"})
    then = (await look(hf, "r1")).rev
    await hf.signal("r1", "more")
    await settle_storing(hf, await claim_one(hf), Ok(), run=CLEARED, session="later")

    forked = await hf.fork("r1", at_rev=then)

    assert await stored(hf, forked.run_id) == {("", ""): '{"n":1}', (claim.tick_id, "row"): '"kept"'}
    assert ("", "") not in await stored(hf, "r1")
    assert await shared(hf) == {"session/s1/chat": '"later"', "global/local/chat": '"g"'}


async def test_nothing_is_sent_twice(hf: Holdfast) -> None:
    claim = await active(hf, run_id="r1")
    row = commands.OutboxRow(outbox_id="o1", target_space="mail", payload="hi", payload_sha="x")
    staged = commands.Staged(outbox=(row,))
    await hf.journal.execute("r1", commands.Settle(**fence(claim), outcome=Ok(), staged=staged))

    forked = await hf.fork("r1")

    assert "outbox_enqueued" in await kinds(hf, forked.run_id)
    assert await count(hf, "outbox") == 1


async def test_results_of_finished_children_are_kept_and_others_start_anew(hf: Holdfast) -> None:
    parent = await active(hf, run_id="parent")
    for key in ("a", "b"):
        start = start_child(parent, child_id("parent", "", "helper", key), key)
        await hf.journal.execute("parent", start)
    await quiet(hf)
    first = await claim_one(hf)
    await hf.complete(first, Done("grown"))
    await quiet(hf)
    unfinished = "b" if first.run_id == child_id("parent", "", "helper", "a") else "a"

    forked = await hf.fork("parent", new_run_id="fork")
    await quiet(hf)

    new_child = child_id("fork", "", "helper", unfinished)
    assert (await look(hf, new_child)).parent_run_id == "fork"
    assert (await look(hf, new_child)).pending_input == "go"
    assert (await kinds(hf, "fork", after=forked.rev - 2)) == ["run_forked", "child_run_started"]
    sql = "SELECT child_run_id, status FROM {s}children WHERE run_id = $1"
    assert set(await hf.journal.store.fetch(sql, "fork")) == {(first.run_id, "done"), (new_child, None)}
    claims = {claim.run_id: claim for claim in await hf.claim_next(limit=5)}
    await hf.complete(claims[new_child], Done("grown too"))
    await quiet(hf)
    finished = (await entries(hf, "fork"))[-1].data
    assert (finished["child_run_id"], finished["output"]) == (new_child, "grown too")
    assert await anomalies(hf, "parent") == await anomalies(hf, "fork") == []


async def test_a_fork_of_a_child_is_nobodys_child(hf: Holdfast) -> None:
    parent = await active(hf, run_id="parent")
    await hf.journal.execute("parent", start_child(parent))
    await quiet(hf)

    forked = await hf.fork("child")

    assert forked.parent_run_id is None
    await hf.cancel(forked.run_id)
    await quiet(hf)
    assert await anomalies(hf, "parent") == []
    assert (await look(hf, "child")).status == "pending"


async def test_keys_stay_with_the_original_but_its_own_commands_are_known(hf: Holdfast) -> None:
    await idle(hf, run_id="r1", key="order-1")
    await hf.signal("r1", 1, key="first")

    forked = await hf.fork("r1")

    found = await hf.find_run(key="order-1")
    assert found is not None
    assert found.run_id == "r1"
    assert (await hf.signal(forked.run_id, 1, key="first")).rev == 2
    assert len(await entries(hf, forked.run_id)) == 3


async def test_a_question_to_a_person_is_asked_in_the_fork_too(hf: Holdfast) -> None:
    run_id = await in_status(hf, "paused")
    forked = await hf.fork(run_id)

    await hf.resume(forked.run_id)

    assert [(await look(hf, each)).status for each in (run_id, forked.run_id)] == ["paused", "pending"]


async def test_in_a_lane_a_fork_queues_at_the_end(hf: Holdfast) -> None:
    await create(hf, run_id="head", lane="main")
    claim = await claim_one(hf)
    await create(hf, run_id="next", lane="main")

    await hf.fork("head", new_run_id="fork")

    assert await hf.claim_next() == []
    await hf.complete(claim)
    assert (await hf.complete(await claim_one(hf))).run_id == "next"
    assert (await hf.complete(await claim_one(hf))).run_id == "fork"


async def test_a_fork_can_be_forked_and_outlives_its_original(hf: Holdfast) -> None:
    await hf.complete(await active(hf, run_id="r1", input="x"), Wait(seconds=5))
    await hf.fork("r1", 2, new_run_id="r2")
    await hf.fork("r2", new_run_id="r3")
    await hf.purge("r1")

    assert await kinds(hf, "r3") == ["run_created", "attempt_claimed", "run_forked", "run_forked"]
    assert {claim.run_id for claim in await hf.claim_next(limit=5)} == {"r2", "r3"}
    assert await event_types(hf, "r3") == ["run_queued", "run_started", "run_started"]


async def test_a_run_with_workflow_steps_is_copied_with_them(hf: Holdfast) -> None:
    await idle(hf, run_id="r1")
    step = {"runnable_key": "load", "step": "load", "idempotency_key": "load"}
    await hf.journal.append("run:r1", [{"kind": "attempt_scheduled", "data": step}])
    claim = await claim_one(hf)

    await hf.fork("r1", new_run_id="r2")

    own = await claim_one(hf)
    assert (own.run_id, own.runnable_key) == ("r2", "load")
    await hf.complete(own, Done(2))
    await hf.complete(claim, Done(1))


async def test_a_fork_in_the_words_of_a_caller_is_judged_alike(hf: Holdfast) -> None:
    parent = await active(hf, run_id="r1", lane="main")
    await hf.journal.execute("r1", start_child(parent))
    await quiet(hf)

    await hf.journal.append("run:r1", [{"kind": "run_forked", "data": {"source_run_id": "r0", "at_rev": 4}}])

    assert (await look(hf, "r1")).status == "pending"
    assert await _ticks(hf, "r1") == []
    assert await count(hf, "children") == 0


@pytest.mark.parametrize(
    ("at_rev", "error"), [(3, NotFound), (0, InvalidValue), (-1, InvalidValue), ("1", InvalidValue)]
)
async def test_a_revision_that_is_not_there_cannot_be_forked(hf: Holdfast, at_rev: Any, error: type[Exception]) -> None:
    await active(hf, run_id="r1")

    with pytest.raises(error):
        await hf.fork("r1", at_rev=at_rev)

    assert await count(hf, "runs") == 1


async def test_what_is_gone_or_taken_cannot_be_used(hf: Holdfast) -> None:
    await create(hf, run_id="r1")
    await create(hf, run_id="r2")
    await hf.delete_run("r2")

    for call in (hf.fork("r2"), hf.replay("r2"), hf.fork("never"), hf.replay("never")):
        with pytest.raises(NotFound):
            await call
    for new_run_id in ("r1", "r2"):
        for again in (hf.fork("r1", new_run_id=new_run_id), hf.replay("r1", new_run_id=new_run_id)):
            with pytest.raises(Conflict) as caught:
                await again
            assert caught.value.code == "id_reused"


@pytest.mark.clause("C-17")
async def test_a_replay_begins_as_its_original_began(hf: Holdfast) -> None:
    options: dict[str, Any] = {
        "queue": "slow",
        "priority": 7,
        "retry": RetryPolicy(max_attempts=9),
        "max_deliveries": 2,
        "metadata": {"why": "test"},
        "key": "order-1",
    }
    await hf.fail(await active(hf, run_id="r1", input={"n": 1}, **options), "broken", retry=False)

    replayed = await hf.replay("r1", new_run_id="r2")

    (first, *_), (again,) = await entries(hf, "r1"), await entries(hf, "r2")
    assert (replayed.status, replayed.pending_input, replayed.queue) == ("pending", {"n": 1}, "slow")
    told = {name: value for name, value in first.data.items() if name not in ("key", "key_digest")}
    assert again.data == {**told, "replayed_from": "r1"}
    assert (await look(hf, "r1")).status == "failed"
    assert (await hf.complete(await claim_one(hf, "slow"), Done(1))).run_id == "r2"


async def test_a_child_that_is_replayed_is_nobodys_child(hf: Holdfast) -> None:
    parent = await active(hf, run_id="parent")
    await hf.journal.execute("parent", start_child(parent))
    await quiet(hf)

    assert (await hf.replay("child")).parent_run_id is None


def _held_by(claim: Claim, run_id: str) -> Claim:
    """The same claim on another run."""
    fields = {name: getattr(claim, name) for name in claim.__struct_fields__}
    return Claim(**{**fields, "run_id": run_id})


async def _ticks(hf: Holdfast, run_id: str) -> list[tuple[Any, ...]]:
    sql = "SELECT tick_id, outcome FROM {s}ticks WHERE run_id = $1 ORDER BY claimed_rev"
    return await hf.journal.store.fetch(sql, run_id)
