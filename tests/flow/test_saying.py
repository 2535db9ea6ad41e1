"""What a flow says, sends and writes beside its steps: once, and with the step it belongs to."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import Conflict, FlowContext, Holdfast, InvalidValue, RetryPolicy, StepFailed
from tests.conftest import FakeClock

NO_RETRY = RetryPolicy(max_attempts=1)


async def ended(hf: Holdfast, flow: Any, input: Any = None) -> str:
    run = await hf.start(flow, input, session_id="s")
    await hf.drain()
    return run.run_id


async def shown(hf: Holdfast, run_id: str, kind: str) -> list[Any]:
    return [event.data async for event in hf.events(run_id) if event.type == kind]


async def delivered(hf: Holdfast) -> list[Any]:
    return await hf.journal.store.fetch("SELECT target_space, idempotency_key FROM {s}outbox ORDER BY created_at")


async def test_an_emit_is_said_once(hf: Holdfast) -> None:
    seqs: list[int] = []

    @hf.flow("f")
    async def flow(ctx: FlowContext, input: Any) -> None:
        seqs.append(await ctx.emit("note", 1))
        await ctx.emit("text", "hello")
        await ctx.sleep(1)
        await ctx.emit("note", 2)
        await ctx.sleep(1)

    run_id = await ended(hf, flow)

    assert await shown(hf, run_id, "note") == [1, 2]
    assert len(seqs) == 3
    assert len(set(seqs)) == 1
    kinds = [event.type async for event in hf.events(run_id) if event.type in ("message_start", "text", "message_end")]
    assert kinds == ["message_start", "text", "message_end"]


async def visible(hf: Holdfast, run_id: str) -> list[Any]:
    """The handler's events as a reader sees them who drops what was abandoned."""
    events = [event async for event in hf.events(run_id)]
    for dropped in [event.data for event in events if event.type == "tick_abandoned"]:
        events = [
            event
            for event in events
            if event.tick_id != dropped["tick_id"]
            or event.type in ("run_started", "step_complete", "tick_abandoned", "run_retrying", "done", "run_waiting")
            or event.seq < dropped["from_seq"]
            or any(first <= event.seq <= last for first, last in dropped["keep"])
        ]
    return [event.data for event in events if event.type in ("note", "text")]


async def test_words_of_a_finished_step_stay_when_its_tick_fails(hf: Holdfast) -> None:
    @hf.flow("f")
    async def flow(ctx: FlowContext, input: Any) -> None:
        async def speak() -> None:
            await ctx.emit("note", "in a step")
            ctx.stream("text", "str")
            ctx.stream("text", "eam")

        await ctx.emit("note", "outside")
        await ctx.step("speak", speak)

        async def broken() -> None:
            await ctx.emit("note", f"try {ctx.attempt}")
            if ctx.attempt == 0:
                raise BaseExceptionGroup("the body is broken", [KeyboardInterrupt()])

        await ctx.step("broken", broken)

    run_id = await ended(hf, flow)

    seen = await visible(hf, run_id)
    assert seen[:2] == ["outside", "in a step"]
    assert seen[2]["content"] == "stream"
    assert seen[3:] == ["try 1"]
    assert len(await shown(hf, run_id, "message_start")) == len(await shown(hf, run_id, "message_end")) == 1


async def test_words_of_side_by_side_steps_belong_each_to_its_own(hf: Holdfast) -> None:
    @hf.flow("f")
    async def flow(ctx: FlowContext, input: Any) -> None:
        async def speak(word: str) -> None:
            ctx.stream("text", word)
            await ctx.emit("note", word)

        await ctx.gather(ctx.step("a", speak, "a"), ctx.step("b", speak, "b"))

    run_id = await ended(hf, flow)

    recorded = [
        entry.data
        for entry in await hf.journal.read(f"run:{run_id}")
        if entry.kind == "step_recorded" and not entry.data["name"].startswith("@")
    ]
    events = {event.seq: event async for event in hf.events(run_id)}
    for step in recorded:
        words = [events[seq] for first, last in step["said"] for seq in range(first, last + 1) if seq in events]
        assert {event.data for event in words if event.type == "note"} == {step["name"]}
        assert {event.data["content"] for event in words if event.type == "text"} == {step["name"]}


async def test_a_delivery_is_staged_once(hf: Holdfast) -> None:
    ids: list[str] = []

    @hf.flow("f")
    async def flow(ctx: FlowContext, input: Any) -> None:
        async def send() -> list[str]:
            one = await ctx.outbox("mail", {"to": "bob"}, key="k")
            same = await ctx.outbox("mail", {"to": "bob"}, key="k")
            with pytest.raises(Conflict):
                await ctx.outbox("mail", {"to": "eve"}, key="k")
            return [one, same]

        ids.append(await ctx.outbox("mail", {"to": "ann"}))
        ids.extend(await ctx.step("send", send))
        await ctx.outbox("mail", {"to": "bob"}, key="k")
        await ctx.sleep(1)

    await ended(hf, flow)

    assert await delivered(hf) == [("mail", None), ("mail", "k")]
    assert ids[1] == ids[2] == ids[4] == ids[5]
    assert ids[0] == ids[3]


async def test_a_step_that_fails_sends_nothing(hf: Holdfast) -> None:
    @hf.flow("f", retry=NO_RETRY)
    async def flow(ctx: FlowContext, input: Any) -> None:
        async def send() -> None:
            await ctx.outbox("mail", "never")
            raise ValueError("no")

        await ctx.step("send", send)

    await ended(hf, flow)

    assert await delivered(hf) == []


async def tables(hf: Holdfast, schema: str, configuration: str) -> str:
    """A table of the user's own, and its name."""
    name = f'"{schema}".stock' if configuration == "postgres" else "stock"
    await hf.journal.store.execute((f"CREATE TABLE {name} (item text PRIMARY KEY, left_over integer)", ()))
    await hf.journal.store.execute((f"INSERT INTO {name} VALUES ('tea', 3)", ()))
    return name


async def test_a_transaction_is_one_commit(hf: Holdfast, schema: str, configuration: str) -> None:
    stock = await tables(hf, schema, configuration)

    @hf.flow("f")
    async def flow(ctx: FlowContext, input: Any) -> Any:
        answer = await ctx.tx(
            "take",
            [(f"UPDATE {stock} SET left_over = left_over - $1 WHERE item = $2", [1, "tea"])],
            result={"taken": 1},
            outbox=[("mail", "taken"), ("mail", "keyed", "k")],
            events=[("note", "taken")],
        )
        await ctx.sleep(1)
        return answer

    run_id = await ended(hf, flow)

    assert await hf.result(run_id) == {"taken": 1}
    assert await hf.journal.store.fetch(f"SELECT left_over FROM {stock}") == [(2,)]
    assert len(await delivered(hf)) == 2
    assert await shown(hf, run_id, "note") == ["taken"]
    entries = await hf.journal.store.fetch(
        "SELECT kind, commit_id FROM {s}journal WHERE thread = $1 ORDER BY rev", f"run:{run_id}"
    )
    commit_ids = {commit for kind, commit in entries if kind in ("event", "outbox_enqueued")}
    assert len(commit_ids) == 1
    assert ("step_recorded", commit_ids.pop()) in entries


async def test_a_transaction_that_is_refused_leaves_nothing(hf: Holdfast, schema: str, configuration: str) -> None:
    stock = await tables(hf, schema, configuration)

    @hf.flow("f", retry=NO_RETRY)
    async def flow(ctx: FlowContext, input: Any) -> Any:
        failures = []
        for statement in (
            (f"INSERT INTO {stock} VALUES ('tea', 1)", ()),
            ("INSERT INTO nowhere VALUES (1)", ()),
        ):
            try:
                changed = (f"UPDATE {stock} SET left_over = 0", ())
                await ctx.tx("t", [changed, statement], outbox=[("mail", "no")], events=[("note", "no")])
            except StepFailed as failed:
                failures.append(failed.name)
        with pytest.raises(InvalidValue, match="begins with one of"):
            await ctx.tx("t", [("COMMIT", ())])
        return failures

    run_id = await ended(hf, flow)

    assert await hf.result(run_id) == ["t", "t"]
    assert await hf.journal.store.fetch(f"SELECT left_over FROM {stock}") == [(3,)]
    assert await delivered(hf) == []
    assert await shown(hf, run_id, "note") == []


async def test_a_transaction_is_tried_again_later(
    hf: Holdfast, clock: FakeClock, schema: str, configuration: str
) -> None:
    stock = await tables(hf, schema, configuration)

    @hf.flow("f")
    async def flow(ctx: FlowContext, input: Any) -> Any:
        return await ctx.tx("t", [(f"INSERT INTO {stock} VALUES ($1, $2)", ("tea", 1))], result="done")

    run = await hf.start(flow, session_id="s")
    await hf.advance()
    await hf.journal.store.execute((f"DELETE FROM {stock}", ()))
    await hf.drain()

    assert await hf.result(run.run_id) == "done"
