"""A commit that comes alone has a text of its own. It must come to what the text for many comes to."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest

from holdfast import Clog, Done, FlowContext, Holdfast, Retry
from holdfast.store import postgres_alone, postgres_sql
from holdfast.store.postgres import Postgres
from holdfast.store.postgres_pool import BY_KEY
from holdfast.store.tables import INDEXES
from holdfast.store.types import Fence, Member, Written
from tests.conftest import FakeClock
from tests.contract.test_postgres_specifics import (
    DROPPED,
    OTHERS,
    created,
    database,
    fence,
    generic_plan,
    nodes,
    open_database,
    request,
    schema,
    touched,
    until,
    waiting_for_lock,
)

__all__ = ["database", "open_database", "schema"]


@pytest.fixture
async def hf(postgres_url: str, schema: str, clock: FakeClock) -> AsyncIterator[Holdfast]:
    async with Holdfast(postgres_url, schema=schema, clock=clock) as holdfast:
        yield holdfast


async def everything(connection: Any, prefix: str) -> dict[str, list[str]]:
    """All rows, without the numbers that a sequence gave them."""
    shown: dict[str, list[str]] = {}
    for name in ("sessions", "runs", "journal", *INDEXES):
        rows = await connection.fetch(f"SELECT (to_jsonb(t) - 'position' - 'seq')::text AS row FROM {prefix}{name} t")
        shown[name] = sorted(row["row"] for row in rows)
    return shown


async def test_it_leaves_the_rows_that_the_text_for_many_leaves(
    hf: Holdfast, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything a life of runs writes alone is first written the other way, looked at, and rolled back."""
    real = Postgres._write
    shapes: Counter[postgres_alone.Alone] = Counter()

    async def both(
        self: Postgres, connection: Any, members: Sequence[Member], commit_id: int, now: int | None, news: Any = ()
    ) -> list[Written]:
        shape = postgres_alone.alone(members, tells=False)
        if shape is None:
            return await real(self, connection, members, commit_id, now, news)
        shapes[shape] += 1
        trial = connection.transaction()
        await trial.start()
        with monkeypatch.context() as patched:
            patched.setattr(postgres_alone, "alone", lambda *_, **__: None)
            expected = await real(self, connection, members, commit_id, now, ())
        rows = await everything(connection, self.prefix)
        await trial.rollback()
        written = await real(self, connection, members, commit_id, now, news)
        assert written == expected
        assert await everything(connection, self.prefix) == rows
        return written

    monkeypatch.setattr(Postgres, "_write", both)
    await live(hf, clock)

    assert len(shapes) >= 15, shapes
    assert any(shape.still for shape in shapes), shapes
    assert (await hf.fsck()).problems == ()


async def live(hf: Holdfast, clock: FakeClock) -> None:
    """Runs that are created, claimed, retried, signalled, paused, cancelled; a flow with steps, a tool and a child."""
    parent, leaf = Clog("parent"), Clog("leaf")

    @parent.on_advance
    async def advance(given: Any, ctx: Any) -> Any:
        await ctx.emit("note", given)
        await ctx.storage.run.write({"seen": given})
        if given == "again":
            return Retry("once more")
        return Done(await ctx.tool("add", {"a": 1}, lambda args: args))

    @leaf.on_advance
    async def nothing(given: Any, ctx: Any) -> Done:
        return Done(given)

    @hf.flow("steps")
    async def steps(ctx: FlowContext, given: Any) -> Any:
        await ctx.step("one", value)
        await ctx.sleep(1)
        return await ctx.run("leaf", key="only", input=1)

    async def value() -> int:
        return 1

    hf.register(parent, leaf)
    for place, given in enumerate(("now", "again", None, 0)):
        await hf.create_run(session_id="s", clog_id="parent", input=given, key=f"k{place}", lane="l" if place else None)
    idle = await hf.create_run(session_id="s", clog_id="parent")
    await hf.signal(idle.run_id, {"word": 1}, key="once")
    started = await hf.create_run(session_id="t", clog_id="steps", input=1)
    paused = await hf.create_run(session_id="t", clog_id="leaf", input=1)
    await hf.cancel(paused.run_id)
    held = await hf.create_run(session_id="u", clog_id="other", input=1)
    (claim,) = await hf.claim_next(clogs=["other"])
    await hf.emit(claim, "note", {"a": 1})
    await hf.heartbeat(claim)
    await hf.release(claim)
    (claim,) = await hf.claim_next(clogs=["other"])
    await hf.fail(claim, "no", retry=False)
    for _ in range(8):
        await hf.advance()
        clock.advance(10_000)
    assert (await hf.get_run(started.run_id)).status == "done"  # type: ignore[union-attr]
    assert (await hf.get_run(held.run_id)).status == "failed"  # type: ignore[union-attr]


async def test_a_revision_that_has_passed_is_refused_and_tells_nobody(open_database: Callable[..., Any]) -> None:
    writer, listener = await open_database(), await open_database()
    heard: list[Any] = []
    echoed: list[Any] = []
    await writer.listen(echoed.append)
    await listener.listen(heard.append)
    (first,) = await writer.write([created("r1")], 1, ["run:r1"])
    assert first.at is not None

    assert await writer.write([touched("r1", 2)], 2, ["refused"]) == [Written(None, 1)]
    assert await writer.write([touched("nobody", 2)], 3, ["refused"]) == [Written(None, 0)]
    (second,) = await writer.write([touched("r1", 1)], 4, ["run:r1", "queue:q"])

    assert second.at is not None
    await until(lambda: len(heard) >= 3)
    assert heard == [(), ["run:r1"], ["run:r1", "queue:q"]]
    assert echoed == [()]


@pytest.mark.parametrize("held", [Fence("", "c1", "another"), Fence("", "c2", "x"), Fence("step", "c1", "x")])
async def test_a_fence_that_does_not_hold_refuses(database: Postgres, held: Fence) -> None:
    await database.write([created("r1")], 1)
    await database.claim(request("c1"), 2)

    assert await database.write([touched("r1", 2, held)], 3) == [Written(None, 2)]
    (written,) = await database.write([touched("r1", 2, fence("c1"))], 4)
    assert written.at is not None


async def test_a_lease_that_ends_while_it_waits_is_over(database: Postgres, stranger: Any) -> None:
    await database.write([created("r1")], 1)
    await database.claim(request("c1", lease_us=400_000), 2)
    lease = f"SELECT max(lease_until) < {postgres_sql.CLOCK} FROM {database.prefix}work"

    async with stranger.transaction():
        await stranger.fetch(f"SELECT 1 FROM {database.prefix}runs WHERE run_id = 'r1' FOR UPDATE")
        writing = asyncio.create_task(database.write([touched("r1", 2, fence("c1"))], 3))
        await until(lambda: waiting_for_lock(stranger))
        await until(lambda: stranger.fetchval(lease))

    assert await writing == [Written(None, 2)]


@pytest.mark.parametrize("creates", [True, False])
async def test_a_plan_made_on_an_empty_database_finds_rows_by_their_keys(
    database: Postgres,
    stranger: Any,
    creates: bool,
) -> None:
    shape = postgres_alone.Alone(creates, False, False, not creates, tuple(INDEXES), tuple(sorted(DROPPED)), 2, True)
    await stranger.execute(f"{BY_KEY} ANALYZE")

    plan = await generic_plan(stranger, postgres_alone.text(shape).replace("{s}", database.prefix))

    scans = [node for node in nodes(plan) if "Relation Name" in node and node["Node Type"] != "ModifyTable"]
    assert scans
    for scan in scans:
        assert scan["Node Type"] in ("Index Scan", "Index Only Scan")
        assert scan["Index Name"] in (f"{scan['Relation Name']}_pkey", *OTHERS)
