"""Runs come into being: with and without input, one or many, once however often they are asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import Conflict, DatabaseError, Done, Holdfast, NotFound, Ok, RetryPolicy
from tests.conftest import FakeClock
from tests.contract.builders import active, claim_one, create, entries, idle, kinds, look, note

FALSY: tuple[Any, ...] = (0, False, "", None, [], {})


@pytest.mark.clause("O-03", "O-04", "O-06", "O-09")
async def test_a_run_with_an_input_is_pending(hf: Holdfast, clock: FakeClock) -> None:
    run = await create(hf, input={"say": "hello"}, queue="slow", lane="l1")

    assert (run.status, run.pending_input, run.attempt, run.deliveries) == ("pending", {"say": "hello"}, 0, 0)
    assert (run.locked_by, run.lock_expires_at, run.wake_at, run.last_error) == (None, None, None, None)
    assert (run.session_id, run.clog_id, run.queue, run.lane) == ("s1", "chat", "slow", "l1")
    assert (run.created_at, run.started_at, run.finished_at, run.rev) == (clock.now(), None, None, 2)
    assert await look(hf, run.run_id) == run


@pytest.mark.clause("O-04", "O-11")
async def test_a_run_without_an_input_is_idle_and_nobodys_work(hf: Holdfast) -> None:
    run = await idle(hf)

    assert (run.status, run.pending_input) == ("idle", None)
    assert await hf.claim_next() == []
    assert await look(hf, run.run_id) == run


@pytest.mark.clause("OB-2", "O-38")
async def test_falsy_inputs_are_inputs_and_arrive_unchanged(hf: Holdfast, clock: FakeClock) -> None:
    for value in FALSY:
        run = await create(hf, input=value)
        assert run.status == "pending"
        clock.advance(0.001)

    claims = await hf.claim_next(limit=len(FALSY))

    assert [claim.input for claim in claims] == list(FALSY)
    assert [type(claim.input) for claim in claims] == [type(value) for value in FALSY]


@pytest.mark.clause("O-05")
async def test_the_retry_policy_is_the_runs_own(hf: Holdfast) -> None:
    usual = await create(hf)
    own = await create(hf, retry=RetryPolicy(max_attempts=7, backoff_ms=5, backoff_max_ms=9))

    assert (usual.max_attempts, own.max_attempts) == (3, 7)
    created = (await entries(hf, own.run_id))[0].data
    assert (created["max_attempts"], created["backoff_us"], created["backoff_max_us"]) == (7, 5_000, 9_000)


@pytest.mark.clause("H-S1", "O-07", "O-08", "O-14", "H-O6")
async def test_a_no_op_run_has_three_entries_and_one_tick(hf: Holdfast) -> None:
    claim = await active(hf)

    ended = await hf.complete(claim, Done({"answer": 42}))

    assert (ended.status, ended.output, ended.rev) == ("done", {"answer": 42}, 3)
    assert await kinds(hf, claim.run_id) == ["run_created", "attempt_claimed", "run_terminal"]
    ticks = await hf.journal.store.fetch("SELECT tick_id, run_id, outcome FROM {s}ticks")
    assert ticks == [(claim.tick_id, claim.run_id, "done")]


@pytest.mark.clause("SB-17")
async def test_the_same_run_asked_for_again_is_the_run_made_first(hf: Holdfast) -> None:
    first = await create(hf, run_id="r1", metadata={"b": 1, "a": 2})

    again = await create(hf, run_id="r1", metadata={"a": 2, "b": 1})
    await claim_one(hf, owner="w1")
    later = await create(hf, run_id="r1", metadata={"a": 2, "b": 1})

    assert again == first
    assert (later.run_id, later.status, later.locked_by) == ("r1", "active", "w1")
    assert await kinds(hf, "r1") == ["run_created", "attempt_claimed"]


@pytest.mark.clause("SB-17")
async def test_another_run_under_a_known_id_is_a_conflict(hf: Holdfast) -> None:
    await create(hf, run_id="r1")

    for other in ({"input": "another"}, {"session_id": "s2"}, {"priority": 1}):
        with pytest.raises(Conflict) as caught:
            await create(hf, run_id="r1", **other)
        assert caught.value.code == "id_reused"

    assert await kinds(hf, "r1") == ["run_created"]


@pytest.mark.clause("SB-17")
async def test_of_several_callers_with_one_id_one_creates_and_all_get_it(hf: Holdfast) -> None:
    runs = await asyncio.gather(*(create(hf, run_id="r1") for _ in range(6)))

    assert {run.run_id for run in runs} == {"r1"}
    assert await kinds(hf, "r1") == ["run_created"]


@pytest.mark.clause("H-W4")
async def test_another_users_session_is_not_found(hf: Holdfast) -> None:
    await create(hf, session_id="hers", user_id="ada")

    attempts: list[Callable[[], Awaitable[object]]] = [
        lambda: create(hf, run_id="r1", session_id="hers", user_id="bob"),
        lambda: hf.create_runs([{"session_id": "hers", "clog_id": "chat", "user_id": "bob", "run_id": "r1"}]),
    ]
    for attempt in attempts:
        with pytest.raises(NotFound):
            await attempt()

    assert await hf.get_run("r1") is None
    assert (await create(hf, session_id="hers", user_id="ada")).status == "pending"


@pytest.mark.clause("OB-18")
async def test_sessions_appear_on_demand(hf: Holdfast) -> None:
    await asyncio.gather(*(create(hf, session_id=f"s{i % 2}") for i in range(6)))

    found = await hf.journal.store.fetch("SELECT session_id, user_id FROM {s}sessions ORDER BY session_id")
    assert found == [("s0", "local"), ("s1", "local")]


@pytest.mark.clause("O-03")
async def test_many_runs_are_created_in_one_commit(hf: Holdfast) -> None:
    requests: list[dict[str, Any]] = [{"session_id": "s1", "clog_id": "chat", "input": i} for i in range(20)]
    requests.append({"session_id": "s2", "clog_id": "chat", "run_id": "named", "key": "k1"})

    runs = await hf.create_runs(requests)

    assert [run.pending_input for run in runs] == [*range(20), None]
    assert [run.status for run in runs] == ["pending"] * 20 + ["idle"]
    assert runs[-1].run_id == "named"
    assert [await look(hf, run.run_id) for run in runs] == runs
    commits = await hf.journal.store.fetch("SELECT DISTINCT commit_id FROM {s}journal")
    assert len(commits) == 1
    assert await hf.create_runs([]) == []


@pytest.mark.clause("O-03")
async def test_many_runs_are_created_all_or_none(hf: Holdfast) -> None:
    await create(hf, run_id="taken")
    await create(hf, key="taken")

    for request, code in (({"run_id": "taken"}, "id_reused"), ({"key": "taken", "input": "other"}, "key_reused")):
        with pytest.raises(Conflict) as caught:
            await hf.create_runs([_wish(run_id="new"), _wish(**request), _wish(run_id="newer")])
        assert caught.value.code == code

    assert [await hf.get_run(name) for name in ("new", "newer")] == [None, None]
    assert len(await hf.journal.read("catalog")) == 2


@pytest.mark.clause("C-26")
async def test_many_runs_with_keys_asked_for_again_are_the_runs_made_first(hf: Holdfast) -> None:
    wishes = [_wish(key=f"k{i}") for i in range(3)]

    first = await hf.create_runs(wishes[:2])
    again = await hf.create_runs(wishes)

    assert again[:2] == first
    assert again[2].run_id not in {run.run_id for run in first}
    assert await hf.create_runs(wishes) == again
    assert len(await hf.journal.read("catalog")) == 3


@pytest.mark.clause("O-28")
async def test_an_unknown_run_is_none(hf: Holdfast) -> None:
    assert await hf.get_run("nobody") is None
    assert await hf.get_run("nobody", as_of=1) is None
    assert await hf.find_run(key="nobody") is None


@pytest.mark.clause("C-2", "O-13")
async def test_a_single_run_that_is_ok_is_done(hf: Holdfast) -> None:
    single = await active(hf, mode="single")
    ended = await hf.complete(single, Ok())
    session = await active(hf)
    rested = await hf.complete(session, Ok())

    assert (ended.status, rested.status) == ("done", "idle")


@pytest.mark.clause("O-01", "S-06")
@pytest.mark.parametrize("configuration", ["file", "postgres"])
async def test_a_run_survives_a_restart_with_every_field(
    hf: Holdfast, database_url: str, schema: str, clock: FakeClock
) -> None:
    run = await create(hf, queue="slow", priority=5, input={"deep": [1, 2]}, key="k1")
    claim = await claim_one(hf, "slow")
    await hf.fail(claim, "not yet")
    before = await look(hf, run.run_id)
    await hf.close()

    async with Holdfast(database_url, clock=clock, schema=schema) as reopened:
        assert await look(reopened, run.run_id) == before
        assert (await create(reopened, queue="slow", priority=5, input={"deep": [1, 2]}, key="k1")) == before
        clock.advance(1)
        assert before.wake_at == clock.now()
        assert (await claim_one(reopened, "slow")).input == {"deep": [1, 2]}

    await hf.open()


@pytest.mark.clause("S-11", "S-11b")
@pytest.mark.parametrize("configuration", ["memory", "file", "postgres"])
async def test_a_runtime_that_was_closed_says_so_and_can_be_opened_again(hf: Holdfast) -> None:
    await hf.close()

    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: hf.get_run("r1"),
        lambda: create(hf),
        lambda: hf.claim_next(),
        lambda: hf.journal.append("notes", [note(1)]),
    ]
    for call in calls:
        with pytest.raises(DatabaseError) as caught:
            await call()
        assert caught.value.code == "not_open"

    await hf.open()
    assert (await create(hf)).status == "pending"


@pytest.mark.clause("S-11", "S-11b")
async def test_an_unfit_database_is_refused_up_front(tmp_path: Path) -> None:
    with pytest.raises(DatabaseError) as caught:
        Holdfast("mysql://localhost/holdfast")
    assert caught.value.code == "unknown_database"

    with pytest.raises(DatabaseError) as caught:
        await Holdfast(str(tmp_path / "missing" / "holdfast.db")).open()
    assert caught.value.code == "database_unusable"


def _wish(**options: Any) -> dict[str, Any]:
    return {"session_id": "s1", "clog_id": "chat", "input": "hello", **options}
