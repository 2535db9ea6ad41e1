"""What handlers say: on disk when they go on, in order, in messages, merged where it streams."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import Context, Continue, Done, Fail, Holdfast, InvalidValue, Ok, Retry
from tests.conftest import FakeClock
from tests.contract.builders import create, entries, look
from tests.runtime.clogs import answering, events, on_advance, said, until

KILOBYTE = 1_024


async def tick(hf: Holdfast, handler: Any, **options: Any) -> str:
    """One tick with this handler; answers the run."""
    answering(hf, handler)
    run = await create(hf, **options)
    await hf.advance()
    return run.run_id


def types(told: list[tuple[str, Any]]) -> list[str]:
    return [kind for kind, _ in told]


def contents(told: list[tuple[str, Any]]) -> str:
    return "".join(data["content"] for kind, data in told if kind in ("text", "reasoning"))


@pytest.mark.clause("O-42", "O-63", "S-16", "C-11")
async def test_an_event_is_on_disk_when_emit_answers_its_seq(hf: Holdfast) -> None:
    seqs: list[int] = []

    async def speaks(given: Any, ctx: Context) -> Ok:
        for number in range(3):
            seqs.append(await ctx.emit("progress", {"n": number}))
            told = (await events(hf, ctx.run_id))[-1]
            assert (told.seq, told.type, told.data) == (seqs[-1], "progress", {"n": number})
            assert (told.tick_id, told.attempt) == (ctx.tick_id, 0)
        return Ok()

    run_id = await tick(hf, speaks)

    assert [event.seq for event in await events(hf, run_id) if event.type == "progress"] == seqs
    assert seqs == sorted(set(seqs))


@pytest.mark.clause("O-63")
async def test_events_are_dated_and_their_data_may_be_anything(hf: Holdfast, clock: FakeClock) -> None:
    values: list[Any] = [None, 0, "", [], {"a": [1, {"b": None}]}, (1, 2)]

    async def speaks(given: Any, ctx: Context) -> Ok:
        for value in values:
            await ctx.emit("note", value)
        await ctx.emit("bare")
        return Ok()

    run_id = await tick(hf, speaks)

    told = [event for event in await events(hf, run_id) if event.type in ("note", "bare")]
    assert [event.data for event in told] == [*values[:-1], [1, 2], None]
    assert {event.at for event in told} == {clock.now()}


@pytest.mark.clause("O-63", "H-O16")
async def test_text_stands_in_messages_whose_bounds_are_stored(hf: Holdfast) -> None:
    async def speaks(given: Any, ctx: Context) -> Ok:
        await ctx.emit("reasoning", "hm")
        await ctx.emit("text", "Hello")
        await ctx.emit("tool_call", {"name": "look"})
        await ctx.emit("text", "Found")
        return Ok()

    run_id = await tick(hf, speaks)

    told = await said(hf, run_id)
    first = ["message_start", "reasoning", "text", "message_end"]
    assert types(told) == [*first, "tool_call", "message_start", "text", "message_end"]
    opened = [data["message_id"] for kind, data in told if kind == "message_start"]
    closed = [data["message_id"] for kind, data in told if kind == "message_end"]
    assert opened == closed
    assert len(set(opened)) == 2
    assert (await events(hf, run_id))[-1].type == "run_idle"


@pytest.mark.clause("O-63")
async def test_emit_answers_the_seq_of_the_event_and_not_of_a_boundary(hf: Holdfast) -> None:
    seqs: list[int] = []

    async def speaks(given: Any, ctx: Context) -> Ok:
        seqs.append(await ctx.emit("text", "one"))
        seqs.append(await ctx.emit("other", "two"))
        seqs.extend(await ctx.emit_many([("text", "three"), ("text", "four"), ("other", "five")]))
        return Ok()

    run_id = await tick(hf, speaks)

    by_seq = {event.seq: event.data for event in await events(hf, run_id)}
    assert [by_seq[seq] for seq in seqs] == ["one", "two", "three", "four", "five"]


async def test_a_handler_may_set_the_bounds_itself(hf: Holdfast) -> None:
    async def speaks(given: Any, ctx: Context) -> Ok:
        await ctx.emit("message_start", {"message_id": "mine", "role": "assistant"})
        ctx.stream("text", "Hello")
        await ctx.emit("message_end", {"message_id": "mine"})
        await ctx.emit("message_start", {"message_id": "open"})
        return Ok()

    run_id = await tick(hf, speaks)

    told = await said(hf, run_id)
    assert types(told) == ["message_start", "text", "message_end", "message_start", "message_end"]
    assert [data["message_id"] for _, data in told] == ["mine", "mine", "mine", "open", "open"]


@pytest.mark.clause("S-16")
async def test_emit_many_is_one_commit(hf: Holdfast) -> None:
    async def speaks(given: Any, ctx: Context) -> Ok:
        before = hf.journal.store.committer.commits
        seqs = await ctx.emit_many([("a", 1), ("text", "x"), ("b", 2)])
        assert hf.journal.store.committer.commits == before + 1
        assert seqs == sorted(seqs)
        assert await ctx.emit_many([]) == []
        return Ok()

    run_id = await tick(hf, speaks)

    assert types(await said(hf, run_id)) == ["a", "message_start", "text", "message_end", "b"]


async def test_neighbouring_deltas_are_merged(hf: Holdfast) -> None:
    async def speaks(given: Any, ctx: Context) -> Ok:
        for word in ("Hel", "lo ", "", "world"):
            ctx.stream("text", word)
        ctx.stream("reasoning", "hm")
        ctx.stream("text", "!")
        return Ok()

    run_id = await tick(hf, speaks)

    told = await said(hf, run_id)
    assert types(told) == ["message_start", "text", "reasoning", "text", "message_end"]
    assert contents(told) == "Hello worldhm!"
    assert len({data["message_id"] for _, data in told}) == 1


@pytest.mark.clause("H-W14")
async def test_deltas_are_merged_up_to_a_kilobyte(hf: Holdfast) -> None:
    async def speaks(given: Any, ctx: Context) -> Ok:
        for _ in range(1_000):
            ctx.stream("text", "0123456789")
        await asyncio.sleep(0.01)
        for _ in range(100):
            ctx.stream("text", "äöü")
        ctx.stream("text", "x" * 5_000)
        return Ok()

    run_id = await tick(hf, speaks)

    told = await said(hf, run_id)
    lengths = [len(data["content"].encode()) for kind, data in told if kind == "text"]
    assert contents(told) == "0123456789" * 1_000 + "äöü" * 100 + "x" * 5_000
    assert max(lengths[:-1]) <= KILOBYTE
    assert lengths[-1] == 5_000
    assert len(lengths) <= 14


async def test_a_stream_is_on_disk_within_moments(hf: Holdfast) -> None:
    """Fifty milliseconds, and what the commit takes."""

    async def speaks(given: Any, ctx: Context) -> Ok:
        ctx.stream("text", "Hello")
        assert await said(hf, ctx.run_id) == []
        await until(lambda: said(hf, ctx.run_id))
        ctx.stream("text", " again")
        return Ok()

    run_id = await tick(hf, speaks)

    told = await said(hf, run_id)
    assert types(told) == ["message_start", "text", "text", "message_end"]
    assert contents(told) == "Hello again"


async def test_what_was_streamed_comes_before_what_is_said_later(hf: Holdfast) -> None:
    async def speaks(given: Any, ctx: Context) -> Done:
        ctx.stream("text", "Looking")
        await ctx.emit("tool_call", {"name": "look"})
        ctx.stream("text", "Found")
        return Done()

    run_id = await tick(hf, speaks)

    assert types(await said(hf, run_id)) == [
        *("message_start", "text", "message_end", "tool_call"),
        *("message_start", "text", "message_end"),
    ]
    assert [event.type for event in await events(hf, run_id)][-2:] == ["message_end", "done"]


@pytest.mark.clause("H-O14")
@pytest.mark.parametrize("answer", [Ok(), Done(), Continue(), Fail("no"), Retry("no"), ValueError("no")])
async def test_every_outcome_comes_after_the_last_words(hf: Holdfast, answer: Any) -> None:
    async def speaks(given: Any, ctx: Context) -> Any:
        ctx.stream("text", "last words")
        if isinstance(answer, Exception):
            raise answer
        return answer

    run_id = await tick(hf, speaks)

    assert types(await said(hf, run_id)) == ["message_start", "text", "message_end"]
    kinds = [entry.kind for entry in await entries(hf, run_id)]
    last_word = max(place for place, kind in enumerate(kinds) if kind == "event" and place < 5)
    assert last_word < min(place for place, kind in enumerate(kinds) if kind in ("tick_settled", "run_terminal"))


@pytest.mark.clause("H-O14")
async def test_events_of_many_tasks_are_all_stored_in_messages(hf: Holdfast) -> None:
    async def speaks(given: Any, ctx: Context) -> Ok:
        await asyncio.gather(*(ctx.emit("text" if number % 2 else "note", number) for number in range(20)))
        return Ok()

    run_id = await tick(hf, speaks)

    told = await said(hf, run_id)
    assert sorted(data for kind, data in told if kind in ("text", "note")) == list(range(20))
    inside = False
    for kind, _ in told:
        assert (kind == "text") <= inside
        assert not (kind == "note" and inside)
        inside = kind in ("message_start", "text")


@pytest.mark.parametrize("value", [float("nan"), b"bytes", {1, 2}, object(), {1: 2}, "x" * (9 << 20)])
async def test_a_value_that_cannot_be_stored_is_refused_and_the_tick_goes_on(hf: Holdfast, value: Any) -> None:
    async def speaks(given: Any, ctx: Context) -> Done:
        ctx.stream("text", "kept")
        with pytest.raises(InvalidValue) as refused:
            await ctx.emit("bad", value)
        assert refused.value.code == "invalid_value"
        with pytest.raises(InvalidValue):
            await ctx.emit_many([("good", 1), ("bad", value)])
        await ctx.emit("after", 1)
        return Done("fine")

    run_id = await tick(hf, speaks)

    assert (await look(hf, run_id)).output == "fine"
    assert types(await said(hf, run_id)) == ["message_start", "text", "message_end", "after"]


@pytest.mark.parametrize("value", [1, None, b"x", ["a"]])
async def test_a_stream_takes_text_only(hf: Holdfast, value: Any) -> None:
    async def speaks(given: Any, ctx: Context) -> Ok:
        with pytest.raises(InvalidValue):
            ctx.stream("text", value)
        return Ok()

    assert await said(hf, await tick(hf, speaks)) == []


async def test_a_text_that_is_too_long_to_stream_is_refused_at_the_call(hf: Holdfast) -> None:
    async def speaks(given: Any, ctx: Context) -> Done:
        ctx.stream("text", "kept")
        with pytest.raises(InvalidValue):
            ctx.stream("text", "x" * (9 << 20))
        return Done()

    run_id = await tick(hf, speaks)

    assert (await look(hf, run_id)).status == "done"
    assert contents(await said(hf, run_id)) == "kept"


@pytest.mark.parametrize("kind", ["", "x" * 129, "a\0b", 7, None])
async def test_a_type_that_is_no_name_is_refused(hf: Holdfast, kind: Any) -> None:
    async def speaks(given: Any, ctx: Context) -> Ok:
        with pytest.raises(InvalidValue):
            await ctx.emit(kind, 1)
        with pytest.raises(InvalidValue):
            ctx.stream(kind, "x")
        return Ok()

    assert await said(hf, await tick(hf, speaks)) == []


async def test_what_a_model_utters_is_repaired_and_flagged(hf: Holdfast) -> None:
    async def speaks(given: Any, ctx: Context) -> Ok:
        await ctx.emit("note", "nul \0 and \ud800")
        ctx.stream("text", "also \0")
        return Ok()

    run_id = await tick(hf, speaks)

    told = [entry.data for entry in await entries(hf, run_id) if entry.kind == "event"]
    assert [data.get("repaired") for data in told if data["type"] in ("note", "text")] == [True, True]
    assert [data["data"] for data in told if data["type"] == "note"] == ["nul \ufffd and \ufffd"]
    assert contents(await said(hf, run_id)) == "also \ufffd"


@pytest.mark.clause("H-O16")
@pytest.mark.parametrize("answer", [Retry("again"), ValueError("again")])
async def test_a_retry_tells_watchers_to_drop_what_was_said(hf: Holdfast, clock: FakeClock, answer: Any) -> None:
    async def speaks(given: Any, ctx: Context) -> Any:
        await ctx.emit("text", "half an ans")
        if isinstance(answer, Exception):
            raise answer
        return answer

    seen = answering(hf, speaks)
    run = await create(hf)
    await hf.advance()

    told = await events(hf, run.run_id)
    (dropped,) = [event for event in told if event.type == "tick_abandoned"]
    assert (dropped.data["tick_id"], dropped.data["keep"]) == (seen[0].tick_id, [])
    spoken = [event for event in told if event.tick_id == seen[0].tick_id and event.type in ("message_start", "text")]
    assert all(event.seq >= dropped.data["from_seq"] for event in spoken)
    assert [event.type for event in told][-2:] == ["run_retrying", "tick_abandoned"]
    clock.advance(1)
    await hf.advance()
    assert len([event for event in await events(hf, run.run_id) if event.type == "tick_abandoned"]) == 1


async def test_a_silent_tick_leaves_nothing_to_drop(hf: Holdfast) -> None:
    answering(hf, Retry("again"))
    run = await create(hf)

    await hf.advance()

    assert [event.type for event in await events(hf, run.run_id)] == ["run_queued", "run_started", "run_retrying"]


async def test_a_delta_that_could_not_be_stored_is_stored_later(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    async def speaks(given: Any, ctx: Context) -> Ok:
        execute = hf.journal.execute
        failed = asyncio.Event()

        async def away(*args: Any, **options: Any) -> Any:
            monkeypatch.setattr(hf.journal, "execute", execute)
            failed.set()
            raise ConnectionError("away")

        monkeypatch.setattr(hf.journal, "execute", away)
        ctx.stream("text", "one ")
        await failed.wait()
        ctx.stream("text", "two")
        return Ok()

    run_id = await tick(hf, speaks)

    assert contents(await said(hf, run_id)) == "one two"


async def test_a_def_handler_speaks_in_the_same_way(hf: Holdfast) -> None:
    def speaks(given: Any, ctx: Any) -> Ok:
        ctx.stream("text", "Hel")
        ctx.stream("text", "lo")
        seq = ctx.emit("note", 1)
        assert ctx.emit_many([("note", 2), ("note", 3)]) == [seq + 1, seq + 2]
        return Ok()

    on_advance(hf, speaks)
    run = await create(hf)
    await hf.advance()

    told = await said(hf, run.run_id)
    assert types(told) == ["message_start", "text", "message_end", "note", "note", "note"]
    assert contents(told) == "Hello"


async def test_what_is_said_together_is_stored_together_and_in_order(hf: Holdfast) -> None:
    seqs: list[int] = []
    counts: list[int] = []

    async def speaks(given: Any, ctx: Context) -> Ok:
        before = hf.journal.store.committer.commits
        seqs.extend(await asyncio.gather(*(ctx.emit("progress", number) for number in range(100))))
        counts.append(hf.journal.store.committer.commits - before)
        return Ok()

    run_id = await tick(hf, speaks)

    assert seqs == list(range(seqs[0], seqs[0] + 100))
    assert [event.data for event in await events(hf, run_id) if event.type == "progress"] == list(range(100))
    assert counts[0] <= 3


async def test_one_word_that_cannot_be_kept_does_not_cost_the_others_theirs(hf: Holdfast) -> None:
    answers: list[Any] = []

    async def speaks(given: Any, ctx: Context) -> Ok:
        said = ["a", "x" * (9 << 20), "b"]
        answers.extend(await asyncio.gather(*(ctx.emit("word", each) for each in said), return_exceptions=True))
        return Ok()

    run_id = await tick(hf, speaks)

    assert [type(answer) for answer in answers] == [int, InvalidValue, int]
    assert [event.data for event in await events(hf, run_id) if event.type == "word"] == ["a", "b"]
