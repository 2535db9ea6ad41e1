"""`hf.as_of` and `hf.diff`: a run with everything that belonged to it, at any instant of its life."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from holdfast import Context, Done, Holdfast, NotFound
from tests.conftest import FakeClock
from tests.contract.builders import create, entries
from tests.runtime.clogs import answering, on_advance


@pytest.mark.clause("P-33", "P-06")
async def test_each_instant_shows_run_conversation_tools_approvals_and_claim(hf: Holdfast, clock: FakeClock) -> None:
    began = clock.now()

    async def advance(given: Any, ctx: Context) -> Done:
        clock.advance(1)
        await hf.audit.upsert_conversation_turn("t1", message_id="m", kind="user", content="hi", thread_id="s1")

        def look(args: Any) -> str:
            clock.advance(1)
            return "found"

        clock.advance(1)
        answer = await ctx.tool("search", given, look)
        clock.advance(1)
        return Done(answer)

    on_advance(hf, advance)
    run = await create(hf)
    clock.advance(1)
    await hf.pause(run.run_id, "go", kind="approval", metadata={"risk": "low"})
    clock.advance(1)
    await hf.approve(run.run_id, actor="ada")
    clock.advance(1)
    await hf.advance()

    async def at(second: float) -> Any:
        return await hf.as_of(run.run_id, began + timedelta(seconds=second))

    assert await at(-1) is None
    seen = [await at(second) for second in range(8)]
    assert [each.run.status for each in seen] == [
        *("pending", "paused", "pending", "active", "active", "active", "active", "done"),
    ]
    assert [[a.action for a in each.approvals] for each in seen[:3]] == [[], [None], ["approve"]]
    assert [len(each.claims) for each in seen] == [0, 0, 0, 1, 1, 1, 1, 0]
    assert [[turn.content for turn in each.conversation] for each in seen[3:5]] == [[], ["hi"]]
    calls = [[call.request.status for call in each.tool_calls] for each in seen]
    assert calls[4:] == [[], ["requested"], ["completed"], ["completed"]]
    assert seen[-1].tool_calls[0].done.latency_ms == 1_000
    assert seen[-1].to_dict()["run"]["output"] == "found"


async def test_the_difference_of_two_instants_is_what_happened_between(hf: Holdfast, clock: FakeClock) -> None:
    async def advance(given: Any, ctx: Context) -> Done:
        return Done(await ctx.tool("search", given, lambda args: "found"))

    on_advance(hf, advance)
    began = clock.now()
    run = await create(hf)
    clock.advance(1)
    await hf.advance()

    found = await hf.diff(run.run_id, began)
    whole = await hf.diff(run.run_id, 0)

    assert found.run["status"] == ("pending", "done")
    assert [call.request.status for call in found.tool_calls] == ["completed"]
    assert [each.kind for each in found.entries] == [each.kind for each in await entries(hf, run.run_id, 1)]
    assert len(whole.entries) == len(found.entries) + 1
    with pytest.raises(NotFound):
        await hf.diff(run.run_id, 0, began - timedelta(days=1))
    assert await hf.as_user("stranger").as_of(run.run_id) is None


async def test_of_runs_that_say_nothing_nothing_is_read(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session may have thousands of them beside the one that is looked at."""
    answering(hf, *[Done("quiet")] * 4)
    for number in range(3):
        await create(hf, input=number)
    spoken = await create(hf, input={"text": "hi"})
    await hf.signal(spoken.run_id, {"text": "still there?"})
    await hf.advance()
    fetch, read = hf.journal.store.fetch, list[int]()

    async def counted(sql: str, *params: Any) -> Any:
        rows = await fetch(sql, *params)
        if "signal_received" in sql:
            read.append(len(rows))
        return rows

    monkeypatch.setattr(hf.journal.store, "fetch", counted)
    seen = await hf.as_of(spoken.run_id)

    assert seen is not None
    assert [turn.content for turn in seen.conversation] == ["hi", "still there?"]
    assert read == [2]


async def test_runs_that_say_nothing_are_not_even_visited(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each way to speak is found, and found by the index that holds those who spoke."""

    async def advance(given: Any, ctx: Context) -> Done:
        if given == "search":
            await ctx.tool("search", {}, lambda args: "found")
        elif given == "answer":
            await ctx.emit("final", {"content": "so"})
        return Done()

    on_advance(hf, advance)
    for input in ("search", "answer", "nothing", {"text": "hi"}, 1):
        run = await create(hf, input=input)
        await hf.advance()
    await hf.signal(run.run_id, {"text": "late"})
    await hf.create_runs([{"session_id": "s1", "clog_id": "chat", "input": 1}] * 1_000)
    store, asked = hf.journal.store, list[tuple[str, tuple[Any, ...]]]()
    await store.execute(("ANALYZE", ()))
    fetch = store.fetch

    async def heard(sql: str, *params: Any) -> Any:
        asked.append((sql, params))
        return await fetch(sql, *params)

    monkeypatch.setattr(store, "fetch", heard)
    seen = await hf.as_of(run.run_id)

    assert seen is not None
    assert {turn.content for turn in seen.conversation} == {"so", "hi", "late"}
    assert {message.content for message in await hf.sessions.messages("s1")} == {"", "found", "so", "hi", "late"}
    sql, params = next(each for each in asked if "signal_received" in each[0])
    word = "EXPLAIN " if store.qualified("{s}") else "EXPLAIN QUERY PLAN "
    plan = [str(row[-1]) for row in await fetch(word + sql, *params)]
    assert any("runs_by_speech" in step for step in plan), plan
    assert not any("Seq Scan" in step or step.startswith("SCAN") for step in plan), plan
