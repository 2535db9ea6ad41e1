"""`ctx.tool`: in the ledger before it runs, answered once, and a policy for what nobody can know."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from holdfast import Context, Continue, Done, Holdfast, Ok, Retry, ToolFailed
from tests.conftest import FakeClock, Opener
from tests.contract.builders import LEASE_S, create, kinds, look
from tests.runtime.clogs import on_advance


class Bank:
    """A tool, and who has called it with which key."""

    def __init__(self, clock: FakeClock) -> None:
        self.keys: list[str] = []
        self.dies = 0
        self._clock = clock

    def charge(self, args: Any, key: str) -> Any:
        self.keys.append(key)
        if self.dies:
            # The lease ends while the tool runs: its answer is never recorded, as if its worker had died.
            self.dies -= 1
            self._clock.advance(LEASE_S)
        return {"charged": args}


@pytest.fixture
def bank(clock: FakeClock) -> Bank:
    return Bank(clock)


def charging(hf: Holdfast, bank: Bank, **options: Any) -> None:
    async def advance(given: Any, ctx: Context) -> Done:
        return Done(await ctx.tool("charge", given, bank.charge, **options))

    on_advance(hf, advance)


async def go_on(hf: Holdfast) -> None:
    """A tick whose lease was lost is no progress, so ask more often than once."""
    for _ in range(5):
        await hf.drain()


async def events(hf: Holdfast, run_id: str, *types: str) -> list[Any]:
    return [event.data async for event in hf.events(run_id) if event.type in types]


async def statuses(hf: Holdfast, run_id: str) -> list[tuple[str, str | None]]:
    calls = await hf.audit.list_tool_calls_by_parent(run_id)
    return [(req.status, done.error_kind if done else None) for req, done in calls]


@pytest.mark.clause("P-33", "C-13")
async def test_a_tool_is_requested_and_completed_in_ledger_events_and_audit(
    hf: Holdfast, bank: Bank, clock: FakeClock
) -> None:
    charging(hf, bank)
    run = await create(hf, input={"amount": 3})

    await hf.advance()

    assert (await look(hf, run.run_id)).output == {"charged": {"amount": 3}}
    assert [kind for kind in await kinds(hf, run.run_id) if kind.startswith("tool")] == [
        "tool_requested",
        "tool_answered",
    ]
    (key,) = bank.keys
    called, answered = await events(hf, run.run_id, "tool_call", "tool_result")
    assert called == {"tool": "charge", "args": {"amount": 3}, "tool_call_id": key}
    assert answered == {"tool": "charge", "result": {"charged": {"amount": 3}}, "tool_call_id": key}
    found = await hf.audit.get_tool_call(run.run_id, key)
    assert found is not None
    req, done = found
    assert done is not None
    assert (req.parent_id, req.tool_name, req.run_id, req.arguments_json) == (run.run_id, "charge", run.run_id, None)
    assert (done.status, done.latency_ms, done.outcome_json) == ("completed", 0, None)
    at_request = await hf.audit.get_tool_call(run.run_id, key, at=req.validity.at)
    assert at_request is not None
    assert at_request[1] is None


async def test_a_tool_may_be_of_either_kind_and_know_its_key(hf: Holdfast) -> None:
    seen: list[Any] = []

    async def advance(given: Any, ctx: Context) -> Done:
        async def one(args: Any) -> str:
            seen.append(ctx.tool_key)
            return "one"

        def two(args: Any, key: str) -> str:
            seen.append(key)
            return f"two {ctx.tool_key == key}"

        answers = [await ctx.tool("one", 1, one), await ctx.tool("two", 2, two), await ctx.tool("one", 1, one)]
        assert ctx.tool_key is None
        return Done(answers)

    on_advance(hf, advance)
    run = await create(hf)

    await hf.advance()

    assert (await look(hf, run.run_id)).output == ["one", "two True", "one"]
    assert len(set(seen)) == 3


async def test_a_default_is_left_alone_unless_it_is_the_keys(hf: Holdfast) -> None:
    async def advance(given: Any, ctx: Context) -> Done:
        def mine(args: Any, factor: int = 2) -> int:
            return int(args * factor)

        def keyed(args: Any, key: str | None = None) -> bool:
            return key is not None and key == ctx.tool_key

        return Done([await ctx.tool("mine", 3, mine), await ctx.tool("keyed", 3, keyed)])

    on_advance(hf, advance)
    run = await create(hf)

    await hf.advance()

    assert (await look(hf, run.run_id)).output == [6, True]


@pytest.mark.clause("P-20")
async def test_a_tool_that_raises_is_recorded_as_failed_and_raised_again(hf: Holdfast) -> None:
    def broken(args: Any) -> None:
        raise ValueError("no such account")

    async def advance(given: Any, ctx: Context) -> Done:
        with pytest.raises(ValueError, match="no such account"):
            await ctx.tool("charge", given, broken)
        return Done("told")

    on_advance(hf, advance)
    run = await create(hf)

    await hf.advance()

    assert (await look(hf, run.run_id)).output == "told"
    assert await statuses(hf, run.run_id) == [("failed", "ValueError")]
    (answered,) = await events(hf, run.run_id, "tool_result")
    assert (answered["is_error"], answered["result"]) == (True, "no such account")


async def test_work_that_is_retried_keeps_answers_and_calls_again_what_failed(
    hf: Holdfast, bank: Bank, clock: FakeClock
) -> None:
    keys: list[str] = []

    def flaky(args: Any, key: str) -> str:
        keys.append(key)
        if len(keys) == 1:
            raise ConnectionError("try later")
        return "sent"

    async def advance(given: Any, ctx: Context) -> Done:
        first = await ctx.tool("charge", given, bank.charge)
        return Done([first, await ctx.tool("mail", given, flaky)])

    on_advance(hf, advance)
    run = await create(hf, input=7)

    await hf.drain()

    assert (await look(hf, run.run_id)).output == [{"charged": 7}, "sent"]
    assert len(bank.keys) == 1
    assert len(keys) == 2
    assert len(set(keys)) == 1
    assert sorted(await statuses(hf, run.run_id)) == [
        ("completed", None),
        ("completed", None),
        ("failed", "ConnectionError"),
    ]


async def test_the_next_input_makes_new_calls(hf: Holdfast, bank: Bank) -> None:
    async def advance(given: Any, ctx: Context) -> Any:
        await ctx.tool("charge", "the same", bank.charge)
        return Continue(given + 1) if given < 2 else Ok()

    on_advance(hf, advance)
    run = await create(hf, input=0)

    await hf.drain()

    assert len(set(bank.keys)) == 3
    assert await hf.journal.store.fetch("SELECT slot FROM {s}tools WHERE run_id = $1", run.run_id) == []
    assert len(await hf.audit.list_tool_calls_by_parent(run.run_id)) == 3


class TestUnknown:
    """A call that was requested and never answered, because its worker was lost."""

    async def test_retry_runs_it_again_with_the_same_key(self, hf: Holdfast, bank: Bank) -> None:
        charging(hf, bank)
        bank.dies = 2
        run = await create(hf, input=1)

        await go_on(hf)

        assert (await look(hf, run.run_id)).output == {"charged": 1}
        assert len(bank.keys) == 3
        assert len(set(bank.keys)) == 1
        assert await statuses(hf, run.run_id) == [("completed", None)]
        assert len(await events(hf, run.run_id, "tool_call")) == 1

    async def test_fail_never_runs_it_again(self, hf: Holdfast, bank: Bank) -> None:
        async def advance(given: Any, ctx: Context) -> Done:
            try:
                return Done(await ctx.tool("charge", given, bank.charge, on_unknown="fail"))
            except ToolFailed as error:
                return Done(error.code)

        on_advance(hf, advance)
        bank.dies = 1
        run = await create(hf, input=1)

        await go_on(hf)

        assert (await look(hf, run.run_id)).output == "tool_unknown"
        assert len(bank.keys) == 1
        assert await statuses(hf, run.run_id) == [("failed", "tool_unknown")]

    async def test_a_probe_finds_the_result(self, hf: Holdfast, bank: Bank) -> None:
        asked: list[tuple[Any, str]] = []

        async def probe(args: Any, key: str) -> str:
            asked.append((args, key))
            return "found"

        charging(hf, bank, on_unknown=probe)
        bank.dies = 1
        run = await create(hf, input=1)

        await go_on(hf)

        assert (await look(hf, run.run_id)).output == "found"
        assert asked == [(1, bank.keys[0])]
        assert await statuses(hf, run.run_id) == [("completed", None)]

    async def test_a_probe_that_raises_fails_it(self, hf: Holdfast, bank: Bank) -> None:
        def probe(args: Any, key: str) -> str:
            raise LookupError("no trace of it")

        async def advance(given: Any, ctx: Context) -> Done:
            with pytest.raises(LookupError):
                await ctx.tool("charge", given, bank.charge, on_unknown=probe)
            return Done("gave up")

        on_advance(hf, advance)
        bank.dies = 1
        run = await create(hf, input=1)

        await go_on(hf)

        assert (await look(hf, run.run_id)).output == "gave up"
        assert await statuses(hf, run.run_id) == [("failed", "LookupError")]

    @pytest.mark.parametrize("approved", [True, False])
    async def test_a_person_is_asked(self, hf: Holdfast, bank: Bank, approved: bool) -> None:
        async def advance(given: Any, ctx: Context) -> Done:
            try:
                return Done(await ctx.tool("charge", given, bank.charge, on_unknown="ask"))
            except ToolFailed as error:
                return Done(error.code)

        on_advance(hf, advance)
        bank.dies = 1
        run = await create(hf, input=1)
        await go_on(hf)
        paused = await look(hf, run.run_id)
        assert (paused.status, paused.attempt) == ("paused", 0)
        (question,) = await events(hf, run.run_id, "approval_requested")
        assert (question["metadata"]["tool"], question["metadata"]["tool_key"]) == ("charge", bank.keys[0])

        await (hf.approve if approved else hf.reject)(run.run_id, actor="ada")
        await go_on(hf)

        ended = await look(hf, run.run_id)
        assert ended.output == ({"charged": 1} if approved else "tool_rejected")
        assert len(bank.keys) == (2 if approved else 1)
        assert len(set(bank.keys)) == 1
        assert await statuses(hf, run.run_id) == [("completed", None) if approved else ("failed", "tool_rejected")]

    async def test_a_question_may_come_out_of_a_task_group(self, hf: Holdfast, bank: Bank) -> None:
        async def advance(given: Any, ctx: Context) -> Done:
            async with asyncio.TaskGroup() as tasks:
                task = tasks.create_task(ctx.tool("charge", given, bank.charge, on_unknown="ask"))
            return Done(task.result())

        on_advance(hf, advance)
        bank.dies = 1
        run = await create(hf, input=1)
        await go_on(hf)
        paused = await look(hf, run.run_id)
        assert (paused.status, paused.attempt, paused.last_error) == ("paused", 0, None)

        await hf.approve(run.run_id, actor="ada")
        await go_on(hf)

        assert (await look(hf, run.run_id)).output == {"charged": 1}

    async def test_an_approval_counts_for_one_more_try(self, hf: Holdfast, bank: Bank) -> None:
        charging(hf, bank, on_unknown="ask")
        bank.dies = 2
        run = await create(hf, input=1)
        await go_on(hf)
        await hf.approve(run.run_id, actor="ada")

        await go_on(hf)

        assert (await look(hf, run.run_id)).status == "paused"
        await hf.approve(run.run_id, actor="ada")
        await go_on(hf)
        assert (await look(hf, run.run_id)).output == {"charged": 1}
        assert len(bank.keys) == 3

    async def test_what_other_policy_there_may_be_is_refused(self, hf: Holdfast, bank: Bank) -> None:
        charging(hf, bank, on_unknown="guess")
        run = await create(hf, input=1)

        await hf.advance()

        assert "on_unknown" in ((await look(hf, run.run_id)).last_error or "")
        assert bank.keys == []


async def test_words_of_an_answered_tool_stay_when_the_tick_is_tried_again(hf: Holdfast, clock: FakeClock) -> None:
    async def advance(given: Any, ctx: Context) -> Any:
        async def search(args: Any) -> str:
            await ctx.emit("progress", "half")
            ctx.stream("text", "looking")
            return "found"

        await ctx.tool("search", given, search)
        await ctx.emit("progress", "after")
        return Retry("again") if ctx.attempt == 0 else Done()

    on_advance(hf, advance)
    run = await create(hf)
    await hf.drain()

    told = [(event.seq, event.type, event.data) async for event in hf.events(run.run_id)]
    (abandoned,) = [data for _, kind, data in told if kind == "tick_abandoned"]
    kept = [kind for seq, kind, _ in told if any(a <= seq <= b for a, b in abandoned["keep"])]
    assert kept[:4] == ["progress", "message_start", "text", "message_end"]
    assert [data for _, kind, data in told if kind == "progress"] == ["half", "after", "after"]


async def test_a_message_ends_before_a_tool_is_called(hf: Holdfast) -> None:
    async def advance(given: Any, ctx: Context) -> Done:
        ctx.stream("text", "let me see")
        return Done(await ctx.tool("search", given, lambda args: "found"))

    on_advance(hf, advance)
    run = await create(hf)
    await hf.advance()

    types = [event.type async for event in hf.events(run.run_id)]
    assert types[2:7] == ["message_start", "text", "message_end", "tool_call", "tool_result"]


@pytest.mark.clause("P-27", "H-P7", "PB-4")
async def test_payloads_are_kept_where_they_are_wanted_and_never_fail_the_run(hf: Holdfast, another: Opener) -> None:
    small = await another(persist_payloads=True)

    async def advance(given: Any, ctx: Context) -> Done:
        await ctx.tool("small", {"a": 1}, lambda args: {"b": 2})
        await ctx.tool("off", {"a": 1}, lambda args: {"b": 2}, persist_payloads=False)
        return Done("ended")

    on_advance(small, advance)
    run = await create(small)
    small.audit.payloads._max_bytes = 3
    await small.advance()

    calls = {req.tool_name: (req, done) for req, done in await small.audit.list_tool_calls_by_parent(run.run_id)}
    assert (await look(small, run.run_id)).output == "ended"
    assert calls["small"][0].arguments_json is None
    small.audit.payloads._max_bytes = 1_000
    run = await create(small)
    await small.advance()
    calls = {req.tool_name: (req, done) for req, done in await small.audit.list_tool_calls_by_parent(run.run_id)}
    req, done = calls["small"]
    assert done is not None
    assert (req.arguments_json, done.outcome_json) == ({"a": 1}, {"b": 2})
    assert calls["off"][0].arguments_json is None


@pytest.mark.clause("P-34")
async def test_who_listens_hears_of_the_tools_of_runs(hf: Holdfast, bank: Bank) -> None:
    heard: list[tuple[str, list[str], list[str]]] = []

    def note(op: str, new: list[dict[str, Any]], old: list[dict[str, Any]]) -> None:
        heard.append((op, [row["status"] for row in new], [row["status"] for row in old]))

    hf.audit.on_change("tool_calls", note)
    charging(hf, bank)
    await create(hf)

    await hf.advance()

    assert heard == [("put", ["requested"], []), ("put", ["completed"], ["requested"])]


async def test_nobody_else_may_write_into_the_ledger_of_a_run(hf: Holdfast, bank: Bank) -> None:
    charging(hf, bank)
    run = await create(hf)
    await hf.advance()
    (key,) = bank.keys

    for call in (
        hf.audit.record_tool_call_requested(run.run_id, key, tool_name="charge"),
        hf.audit.record_tool_call_done(run.run_id, key, status="failed"),
    ):
        with pytest.raises(Exception, match="kept by run"):
            await call


async def test_a_purged_run_leaves_its_calls_to_the_audits_own_retention(
    hf: Holdfast, bank: Bank, clock: FakeClock
) -> None:
    charging(hf, bank)
    run = await create(hf)
    await hf.advance()
    clock.advance(3_600)
    assert (await hf.audit.gc(60))["tool_calls"] == 0

    await hf.purge(run.run_id)

    assert len(await hf.audit.list_tool_calls_by_parent(run.run_id)) == 1
    assert (await hf.audit.gc(60))["tool_calls"] == 1
    assert await hf.audit.list_tool_calls_by_parent(run.run_id) == []


async def test_a_run_that_is_over_leaves_no_slots(hf: Holdfast, bank: Bank) -> None:
    charging(hf, bank)
    await create(hf)

    await hf.advance()

    assert await hf.journal.store.fetch("SELECT slot FROM {s}tools") == []


async def test_an_imported_run_brings_its_calls(hf: Holdfast, bank: Bank, tmp_path: Path) -> None:
    charging(hf, bank)
    run = await create(hf)
    await hf.advance()
    await hf.export_run(run.run_id, tmp_path / "run.db")

    async with Holdfast(":memory:") as elsewhere:
        await elsewhere.import_run(tmp_path / "run.db")

        theirs = await elsewhere.audit.list_tool_calls_by_parent(run.run_id)
        assert theirs == await hf.audit.list_tool_calls_by_parent(run.run_id)
        assert (await elsewhere.fsck()).ok


async def test_rows_of_calls_that_were_lost_are_made_again_from_the_journal(hf: Holdfast, bank: Bank) -> None:
    charging(hf, bank)
    run = await create(hf)
    await hf.advance()
    before = await hf.audit.list_tool_calls_by_parent(run.run_id)
    await hf.journal.store.execute(("DELETE FROM {s}tool_calls WHERE status = 'completed'", ()))
    assert {problem.law for problem in (await hf.fsck()).problems} == {"P10"}

    assert (await hf.rebuild()).ok

    assert await hf.audit.list_tool_calls_by_parent(run.run_id) == before


async def test_tools_of_one_handler_may_run_side_by_side(hf: Holdfast) -> None:
    async def slowly(args: int) -> int:
        await asyncio.sleep(0.01 * (3 - args))
        return args

    async def advance(given: Any, ctx: Context) -> Done:
        return Done(await asyncio.gather(*(ctx.tool("wait", number, slowly) for number in range(4))))

    on_advance(hf, advance)
    run = await create(hf)

    await hf.advance()

    assert (await look(hf, run.run_id)).output == [0, 1, 2, 3]


async def test_a_blocking_handler_uses_tools_too(hf: Holdfast, bank: Bank) -> None:
    def advance(given: Any, ctx: Any) -> Done:
        return Done(ctx.tool("charge", given, bank.charge))

    on_advance(hf, advance)
    run = await create(hf, input=2)

    await hf.advance()

    assert (await look(hf, run.run_id)).output == {"charged": 2}
