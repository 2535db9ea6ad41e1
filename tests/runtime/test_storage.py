"""Scoped storage: one read and one write for each clog and tick, and no write of a row that was not read."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from holdfast import Clog, Context, Continue, Done, Holdfast, InvalidValue, Ok, StorageError
from tests.conftest import FakeClock
from tests.contract.builders import create, kinds, look, quiet
from tests.runtime.clogs import answering, on_advance


async def refused(code: str, call: Any) -> None:
    with pytest.raises(StorageError) as error:
        await call
    assert error.value.code == code


async def tick(hf: Holdfast, *handlers: Any, **options: Any) -> str:
    """One run whose ticks are these handlers, one after the other; answers its id."""
    answering(hf, *handlers)
    run = await create(hf, **options)
    results = [(await hf.advance()).results for _ in handlers]
    assert [result.outcome for (result,) in results if result.outcome == "retry"] == []
    return run.run_id


def writing(
    *ops: Any, read: Any = (("global",), ("session",), ("run",), ("tick", ["a", "b"])), answer: Any = None
) -> Any:
    """A handler that reads these rows, then writes."""

    async def advance(given: Any, ctx: Context) -> Any:
        await ctx.read(*read)
        assert await ctx.write(*ops) == len(ops)
        return Continue() if answer is None else answer

    return advance


def reading(*plans: Any, found: list[Any], answer: Any = None) -> Any:
    async def advance(given: Any, ctx: Context) -> Any:
        found.append(await ctx.read(*plans))
        return Continue() if answer is None else answer

    return advance


def checking(check: Any) -> Any:
    """A handler that does this with its context, then goes on."""

    async def advance(given: Any, ctx: Context) -> Continue:
        await check(ctx)
        return Continue()

    return advance


@pytest.mark.clause("O-45", "O-46", "O-47", "O-48", "O-61", "O-42", "OB-14", "OB-19")
async def test_rows_of_every_scope_are_written_and_read_back(hf: Holdfast) -> None:
    found: list[Any] = []

    await tick(
        hf,
        reading(("global",), ("session",), ("run",), ("tick", ["a"]), found=found),
        writing(("global.set", {"g": 1}), ("session.set", [2]), ("run.set", "three"), ("tick.set", "a", None)),
        reading(("run",), ("global",), ("session",), ("tick", ["a"]), found=found),
    )

    assert found == [[None, None, None, {}], ["three", {"g": 1}, [2], {}]]


@pytest.mark.clause("OB-14", "O-58")
async def test_cleared_rows_are_gone(hf: Holdfast) -> None:
    found: list[Any] = []

    await tick(
        hf,
        writing(("global.set", 1), ("session.set", 2), ("run.set", 3)),
        writing(("global.clear",), ("session.clear",), ("run.clear",)),
        reading(("global",), ("session",), ("run",), found=found),
        writing(("global.clear",), ("run.clear",), ("tick.del", "a")),
    )

    assert found == [[None, None, None]]


@pytest.mark.clause("O-45", "O-46", "O-47", "O-49")
async def test_every_clog_session_and_run_has_rows_of_its_own(hf: Holdfast) -> None:
    found: list[Any] = []
    every = (("global",), ("session",), ("run",))
    await tick(hf, writing(("global.set", 1), ("session.set", 2), ("run.set", 3)))
    handler = reading(*every, found=found)
    on_advance(hf, handler, "other")
    on_advance(hf, handler, "again")

    await create(hf, clog_id="other")
    await hf.advance(max_runs=2)
    assert found == [[None, None, None]]


@pytest.mark.clause("O-45", "O-46")
async def test_runs_share_the_rows_of_their_session_and_of_their_clog(hf: Holdfast) -> None:
    found: list[Any] = []
    every = (("global",), ("session",), ("run",))
    writes = writing(("global.set", 1), ("session.set", 2), ("run.set", 3), answer=Ok())
    look_at = reading(*every, found=found, answer=Ok())

    answering(hf, writes, look_at, look_at)
    for session_id in ("s1", "s1", "s2"):
        await create(hf, session_id=session_id)
        await hf.advance(max_runs=1)

    assert found == [[1, 2, None], [1, None, None]]


@pytest.mark.clause("C-27", "O-45")
async def test_global_rows_are_each_users_own(hf: Holdfast) -> None:
    found: list[Any] = []
    answering(hf, writing(("global.set", "ann's"), answer=Ok()), reading(("global",), found=found))

    await create(hf, user_id="ann", session_id="a")
    await hf.advance()
    await create(hf, user_id="bob", session_id="b")
    await hf.advance()

    assert found == [[None]]


@pytest.mark.clause("O-55", "O-56", "OB-12", "OB-13")
async def test_a_clog_reads_once_and_writes_once_in_a_tick(hf: Holdfast) -> None:
    async def twice(ctx: Context) -> None:
        await ctx.read(("run",))
        await refused("STORAGE_READ_ALREADY_CALLED", ctx.read(("run",)))
        await ctx.write(("run.set", 1))
        await refused("STORAGE_WRITE_ALREADY_CALLED", ctx.write(("run.set", 2)))

    found: list[Any] = []
    await tick(hf, checking(twice), checking(twice), reading(("run",), found=found))

    assert found == [[1]]


@pytest.mark.clause("OB-12", "O-57")
async def test_a_call_that_fails_is_used_up_too(hf: Holdfast) -> None:
    async def fails(ctx: Context) -> None:
        await refused("INVALID_SCOPE", ctx.read(("nothing",)))
        await refused("STORAGE_READ_ALREADY_CALLED", ctx.read(("run",)))
        await refused("RBW_VIOLATION", ctx.write(("run.set", 1)))
        await refused("STORAGE_WRITE_ALREADY_CALLED", ctx.write())

    run_id = await tick(hf, checking(fails))
    assert "storage_written" not in await kinds(hf, run_id)


@pytest.mark.clause("OB-12", "OB-13", "O-57")
async def test_a_write_before_any_read_has_an_error_of_its_own(hf: Holdfast) -> None:
    async def writes(ctx: Context) -> None:
        await refused("STORAGE_WRITE_BEFORE_READ", ctx.write(("run.set", 1)))

    await tick(hf, checking(writes))


@pytest.mark.clause("O-57", "O-58", "O-59", "O-60", "OB-13")
@pytest.mark.parametrize(
    ("plan", "op"),
    [
        (("session",), ("global.set", 1)),
        (("session",), ("global.clear",)),
        (("global",), ("session.set", 1)),
        (("global",), ("session.delete",)),
        (("session",), ("run.set", 1)),
        (("session",), ("run.clear",)),
        (("session",), ("run.delete",)),
        (("run",), ("tick.set", "a", 1)),
        (("tick", ["a"]), ("tick.set", "b", 1)),
        (("tick", ["a"]), ("tick.del", "b")),
        (("tick", []), ("tick.delete",)),
        (("run",), ("tick.delete",)),
        (("history",), ("run.set", 1)),
        (("history",), ("tick.set", "a", 1)),
        (("history", {"limit": 5}), ("tick.delete",)),
    ],
)
async def test_only_a_row_that_was_read_may_be_written(hf: Holdfast, plan: Any, op: Any) -> None:
    async def writes(ctx: Context) -> None:
        await ctx.read(plan)
        await refused("RBW_VIOLATION", ctx.write(op))

    await tick(hf, writing(("tick.set", "a", 1)), checking(writes))


@pytest.mark.clause("O-62")
async def test_what_was_read_in_one_tick_may_not_be_written_in_the_next(hf: Holdfast) -> None:
    async def writes(ctx: Context) -> None:
        await ctx.read(("session",))
        await refused("RBW_VIOLATION", ctx.write(("run.set", 1)))

    await tick(hf, reading(("run",), found=[]), checking(writes))


@pytest.mark.clause("OB-12")
async def test_one_bad_operation_refuses_all_of_them(hf: Holdfast) -> None:
    async def writes(ctx: Context) -> None:
        await ctx.read(("run",), ("session",))
        await refused("RBW_VIOLATION", ctx.write(("run.set", 1), ("session.set", 2), ("global.set", 3)))

    found: list[Any] = []
    await tick(hf, checking(writes), reading(("run",), ("session",), found=found))

    assert found == [[None, None]]


@pytest.mark.clause("OB-13")
@pytest.mark.parametrize(
    "plan",
    [
        *[("session", "foreign"), ("run", "foreign"), ("tick", "foreign"), ("tick", "foreign", ["a"])],
        *[("tick",), ("tick", ["a"], "x"), ("table",), (), "run", None, 7, ("run", 7), ("global", "someone")],
        *[("history", {"from": 1}), ("history", {"order": "up"}), ("history", 7)],
    ],
)
async def test_a_plan_outside_its_own_scope_is_refused(hf: Holdfast, plan: Any) -> None:
    async def reads(ctx: Context) -> None:
        await refused("INVALID_SCOPE", ctx.read(("run",), plan))

    await tick(hf, checking(reads))


@pytest.mark.clause("OB-13")
@pytest.mark.parametrize(
    "op",
    [
        *[
            ("session.set", "foreign", 1),
            ("run.set", "foreign", 1),
            ("run.clear", "foreign"),
            ("run.delete", "foreign"),
        ],
        *[("session.delete", "foreign"), ("tick.set", "foreign", "a", 1), ("tick.del", "foreign", "a")],
        *[("tick.delete", "foreign"), ("run.set",), ("run.drop",), (), "run.clear", None, (["run.set"], 1)],
        *[("global.delete",), ("tick.clear", "a")],
    ],
)
async def test_an_operation_outside_its_own_scope_is_refused(hf: Holdfast, op: Any) -> None:
    async def writes(ctx: Context) -> None:
        await ctx.read(("global",), ("session",), ("run",), ("tick", ["a"]))
        await refused("INVALID_SCOPE", ctx.write(("run.set", 1), op))

    run_id = await tick(hf, checking(writes))
    assert "storage_written" not in await kinds(hf, run_id)


@pytest.mark.clause("OB-19")
async def test_ones_own_ids_may_be_named(hf: Holdfast) -> None:
    async def names(ctx: Context) -> None:
        await ctx.read(("session", ctx.session_id), ("run", ctx.run_id), ("tick", ["a"]))
        ops = [
            ("session.set", ctx.session_id, 1),
            ("run.set", ctx.run_id, 2),
            ("tick.set", ctx.tick_id, "a", 3),
        ]
        assert await ctx.write(*ops) == 3

    found: list[Any] = []
    await tick(hf, checking(names), reading(("session",), ("run",), found=found))
    assert found == [[1, 2]]


@pytest.mark.parametrize("value", [float("nan"), object(), b"x", "x" * (9 << 20)])
async def test_a_value_that_cannot_be_stored_is_refused_at_the_call(hf: Holdfast, value: Any) -> None:
    async def writes(ctx: Context) -> None:
        await ctx.read(("run",), ("session",))
        with pytest.raises(InvalidValue) as error:
            await ctx.write(("session.set", 1), ("run.set", value))
        assert error.value.code == "invalid_value"

    run_id = await tick(hf, checking(writes))
    assert "storage_written" not in await kinds(hf, run_id)


@pytest.mark.parametrize("row_id", ["", "x" * 257, "a\0", 7, None])
async def test_a_row_id_that_is_no_name_is_refused(hf: Holdfast, row_id: Any) -> None:
    async def reads(ctx: Context) -> None:
        with pytest.raises(InvalidValue):
            await ctx.read(("tick", [row_id]))

    await tick(hf, checking(reads))


@pytest.mark.clause("O-48", "O-60", "OB-14")
async def test_history_shows_the_rows_of_earlier_ticks_by_tick(hf: Holdfast, clock: FakeClock) -> None:
    ticks: list[str] = []
    pages: list[Any] = []

    async def notes(ctx: Context) -> None:
        ticks.append(ctx.tick_id)
        await ctx.read(("tick", ["a", "b"]))
        await ctx.write(("tick.set", "a", len(ticks)), ("tick.set", "b", None))
        clock.advance(1)

    async def looks(ctx: Context) -> None:
        whole, oldest = await ctx.read(("history",), ("history", {"limit": 2, "order": "asc"}))
        pages.extend([whole, oldest])

    start = clock.now()
    await tick(hf, checking(notes), checking(notes), checking(notes), checking(looks))

    whole, oldest = pages
    assert [page["tick_id"] for page in whole] == ticks[::-1]
    assert [page["rows"] for page in whole] == [{"a": n, "b": None} for n in (3, 2, 1)]
    assert [page["tick_id"] for page in oldest] == ticks[:2]
    assert [page["at"] - start for page in oldest] == [timedelta(seconds=1), timedelta(seconds=2)]


@pytest.mark.clause("OB-14")
@pytest.mark.parametrize("limit", [0, -1, 1_001, "5"])
async def test_a_limit_of_history_that_makes_no_sense_is_refused(hf: Holdfast, limit: Any) -> None:
    async def reads(ctx: Context) -> None:
        with pytest.raises(InvalidValue):
            await ctx.read(("history", {"limit": limit}))

    await tick(hf, checking(reads))


@pytest.mark.clause("OB-12")
async def test_of_two_operations_on_one_row_the_last_counts(hf: Holdfast) -> None:
    found: list[Any] = []

    await tick(
        hf,
        writing(("run.set", 1), ("session.set", 1), ("run.set", 2), ("session.clear",)),
        reading(("run",), ("session",), found=found),
    )

    assert found == [[2, None]]


@pytest.mark.clause("H-O9")
async def test_a_row_that_changed_since_it_was_read_is_a_conflict_at_the_write(hf: Holdfast) -> None:
    other = Clog("chat2")
    hf.register(other)

    async def rivals(ctx: Context) -> None:
        await ctx.read(("session",))
        rival = await create(hf, input="rival")
        await hf.advance(max_runs=1)
        assert (await look(hf, rival.run_id)).status == "idle"
        await refused("STORAGE_CONFLICT", ctx.write(("session.set", "mine")))

    answering(hf, checking(rivals), writing(("session.set", "theirs"), read=(("session",),), answer=Ok()))
    run = await create(hf)
    await hf.advance(max_runs=1)

    assert (await look(hf, run.run_id)).status == "pending"
    assert await session_row(hf) == '"theirs"'


@pytest.mark.clause("H-O9", "H-O14")
@pytest.mark.parametrize("answer", [Ok(), Done("result"), Continue("next")])
async def test_a_row_that_changes_before_the_commit_makes_the_tick_a_retry(hf: Holdfast, answer: Any) -> None:
    async def overtaken(given: Any, ctx: Context) -> Any:
        await ctx.read(("session",), ("run",))
        await ctx.write(("session.set", "mine"), ("run.set", "mine"))
        await ctx.outbox("email", "never sent")
        await create(hf, input="rival")
        await hf.advance(max_runs=1)
        return answer

    answering(hf, overtaken, writing(("session.set", "theirs"), read=(("session",),), answer=Ok()))
    run = await create(hf)

    result = (await hf.advance(max_runs=1)).results[0]

    after = await look(hf, run.run_id)
    assert (result.run_id, result.outcome, result.status) == (run.run_id, "retry", "pending")
    assert (after.attempt, after.last_error, after.error_kind) == (1, "STORAGE_CONFLICT", "STORAGE_CONFLICT")
    assert await session_row(hf) == '"theirs"'
    assert "storage_written" not in await kinds(hf, run.run_id)
    assert await hf.journal.store.fetch("SELECT 1 FROM {s}outbox") == []


@pytest.mark.clause("H-O9")
async def test_two_ticks_that_read_one_row_do_not_both_write_it(hf: Holdfast) -> None:
    """The count is right, however many increments run at once."""

    async def increments(given: Any, ctx: Context) -> Ok:
        (count,) = await ctx.read(("global",))
        await ctx.write(("global.set", (count or 0) + 1))
        if given:
            await hf.advance(max_runs=1)
        return Ok()

    answering(hf, *[increments] * 20)
    for nested in (True, True, False):
        await create(hf, input=nested)
    await hf.drain()

    ((value,),) = await hf.journal.store.fetch("SELECT value FROM {s}shared_storage")
    assert value == "3"


@pytest.mark.clause("O-50", "O-51", "O-53", "O-54", "OB-14", "C-4")
async def test_a_run_may_delete_itself_with_its_outcome(hf: Holdfast) -> None:
    run_id = await tick(
        hf,
        writing(("global.set", 1), ("run.set", 2), ("tick.set", "a", 3)),
        writing(("run.delete",), answer=Ok()),
    )
    await quiet(hf)

    assert await hf.get_run(run_id) is None
    assert [event async for event in hf.events(run_id)] == []
    assert (await kinds(hf, run_id))[-1] == "run_deleted"
    assert await hf.journal.store.fetch("SELECT 1 FROM {s}run_storage") == []
    assert len(await hf.journal.store.fetch("SELECT 1 FROM {s}shared_storage")) == 1


@pytest.mark.clause("O-50", "O-53", "OB-14")
async def test_a_session_goes_with_its_runs_and_storage(hf: Holdfast) -> None:
    answering(
        hf,
        writing(("global.set", 1), ("session.set", 2), ("run.set", 3), answer=Ok()),
        writing(("session.delete",), answer=Ok()),
    )
    runs = [(await create(hf)).run_id for _ in range(2)]
    await hf.advance()
    await quiet(hf)

    assert [await hf.get_run(run_id) for run_id in runs] == [None, None]
    names = await hf.journal.store.fetch("SELECT name FROM {s}shared_storage")
    assert names == [("global/local/chat",)]


@pytest.mark.clause("O-52", "OB-14")
async def test_deleting_a_tick_deletes_its_rows_and_no_others(hf: Holdfast) -> None:
    found: list[Any] = []
    clog = answering(hf, writing(("tick.set", "a", 1)), reading(("history",), found=found))
    endpoints = Clog("tools")
    hf.register(endpoints)

    @endpoints.endpoint("put")
    async def put(payload: Any, ctx: Context) -> None:
        await ctx.read(("tick", ["a", "b"]))
        await ctx.write(("tick.set", "a", 1), ("tick.set", "b", 2))

    @endpoints.endpoint("drop")
    async def drop(payload: Any, ctx: Context) -> None:
        await ctx.read(("tick", ["a"]))
        await ctx.write(("tick.delete",))

    run = await create(hf)
    await hf.advance()
    tick_id = await hf.begin_tick(run.run_id)
    call = {"run_id": run.run_id, "clog_id": "tools"}
    await hf.call_clog(**call, tick_id=tick_id, method="put")
    other = await hf.begin_tick(run.run_id)
    await hf.call_clog(**call, tick_id=other, method="drop")
    await hf.advance()

    left = await hf.journal.store.fetch("SELECT clog_id, tick_id, row_id FROM {s}run_storage ORDER BY row_id, clog_id")
    assert left == [("chat", clog[0].tick_id, "a"), ("tools", tick_id, "a"), ("tools", tick_id, "b")]


async def session_row(hf: Holdfast) -> str | None:
    rows = await hf.journal.store.fetch("SELECT value FROM {s}shared_storage WHERE session_id IS NOT NULL")
    return str(rows[0][0]) if rows else None
