"""Conversation turns: said, edited, taken back, and always in their place."""

from __future__ import annotations

from datetime import timedelta

import pytest

from holdfast import Holdfast
from holdfast.audit import Validity, format_timestamp, to_bool, to_int
from holdfast.moments import to_us
from tests.audit.builders import count, refused, say
from tests.conftest import FakeClock


@pytest.mark.clause("P-08", "P-10", "H-P8", "P-01")
async def test_a_turn_reads_back_and_saying_it_again_changes_nothing(hf: Holdfast, clock: FakeClock) -> None:
    said = {"parent_id": "p", "thread_id": "t", "kind": "assistant"}
    first = await say(hf.audit, "1", "hello", **said)
    clock.advance(1)

    assert await say(hf.audit, "1", "hello", **said) == first

    turn = await hf.audit.get_conversation_turn("1")
    assert turn is not None
    assert (turn.id, turn.message_id, turn.kind, turn.content) == ("1", "m-1", "assistant", "hello")
    assert (turn.parent_id, turn.thread_id, turn.validity) == ("p", "t", first)
    assert to_us(turn.created_at) == first.at
    assert await count(hf, "turns") == 1


@pytest.mark.clause("P-08", "P-12")
@pytest.mark.parametrize("kind", ["user", "assistant", "system", "sysinfo", "tool"])
async def test_the_kinds_of_turns_are_a_closed_set(hf: Holdfast, kind: str) -> None:
    await say(hf.audit, "1", "hello", kind=kind)

    await refused(say(hf.audit, "2", "hello", kind="robot"), "invalid_kind")

    assert await count(hf, "turns") == 1


@pytest.mark.clause("H-P8", "P-11", "PB-2", "P-06")
async def test_an_edited_turn_keeps_its_place_and_its_past(hf: Holdfast, clock: FakeClock) -> None:
    first = await say(hf.audit, "1", "helo")
    clock.advance(1)
    await say(hf.audit, "2", "there")
    clock.advance(1)

    await say(hf.audit, "1", "hello")

    now = await hf.audit.list_conversation_since(first.at_ms)
    then = await hf.audit.list_conversation_since(0, at=clock.now() - timedelta(seconds=0.5))
    assert [turn.content for turn in now] == ["hello", "there"]
    assert [turn.content for turn in then] == ["helo", "there"]
    assert [turn.content for turn in await hf.audit.list_conversation_since(first.at_ms + 1)] == ["there"]
    assert [turn.content for turn in await hf.audit.list_conversation_since(0, 1)] == ["hello"]


@pytest.mark.clause("P-08b", "H-P8")
async def test_a_turn_stays_in_its_message_and_thread(hf: Holdfast) -> None:
    await say(hf.audit, "1", "hello", thread_id="t")

    await refused(say(hf.audit, "1", "hello", thread_id="u"), "conflicting_request")
    await refused(say(hf.audit, "1", "hello", thread_id="t", message_id="m"), "conflicting_request")


@pytest.mark.clause("P-09")
async def test_turns_are_found_by_message_by_time_and_by_thread(hf: Holdfast, clock: FakeClock) -> None:
    for number in range(4):
        await say(hf.audit, str(number), f"word {number}", thread_id="odd" if number % 2 else "even", message_id="m")
        clock.advance(1)
    await say(hf.audit, "x", "another", message_id="n")

    newest = await hf.audit.list_conversation(2)
    odd = await hf.audit.list_conversation_since(thread_id="odd")
    of_message = await hf.audit.list_conversation(message_id="m")

    assert [turn.id for turn in newest] == ["x", "3"]
    assert [turn.id for turn in odd] == ["1", "3"]
    assert [turn.id for turn in of_message] == ["3", "2", "1", "0"]


@pytest.mark.clause("H-P10", "P-04", "P-01")
async def test_a_turn_that_was_taken_back_is_gone_from_then_on(hf: Holdfast, clock: FakeClock) -> None:
    said = await say(hf.audit, "1", "hello")
    clock.advance(1)
    taken = await hf.audit.retract_conversation_turn("1")
    assert taken is not None
    assert await hf.audit.retract_conversation_turn("1") == taken
    assert await hf.audit.retract_conversation_turn("unknown") is None

    assert not to_bool(taken)
    assert await hf.audit.get_conversation_turn("1") is None
    assert await hf.audit.list_conversation_since(0) == []
    assert await hf.audit.get_conversation_turn("1", at=said.at) is not None
    assert await hf.audit.get_conversation_turn("1", at=taken.at - 1) is not None
    assert await hf.audit.get_conversation_turn("1", at=taken.at) is None

    clock.advance(1)
    await say(hf.audit, "1", "hello again")
    back = await hf.audit.get_conversation_turn("1")
    assert back is not None
    assert (back.content, to_us(back.created_at)) == ("hello again", said.at)
    assert not hasattr(hf.audit, "retract_tool_call")


@pytest.mark.clause("P-05", "H-P11")
async def test_assertion_wins_over_retraction_at_one_instant_now_and_later(hf: Holdfast, clock: FakeClock) -> None:
    async with hf.audit.transaction() as tx:
        await say(tx, "1", "asserted first")
        await tx.retract_conversation_turn("1")
        await tx.retract_conversation_turn("2")
        await say(tx, "2", "retracted first")
    clock.advance(5)

    turns = await hf.audit.list_conversation_since(0, at="NOW")

    assert [turn.content for turn in turns] == ["asserted first", "retracted first"]


@pytest.mark.clause("P-05", "P-04")
async def test_a_reader_prefers_the_assertion_where_both_flags_stand(hf: Holdfast) -> None:
    said = await say(hf.audit, "1", "hello")
    columns = "id, validity, created, digest, user_id, message_id, kind, content"
    await hf.journal.store.execute(
        (f"INSERT INTO {{s}}turns ({columns}, asserted) SELECT {columns}, 0 FROM {{s}}turns", ())
    )

    for at in (said.at, "NOW", "END"):
        assert await hf.audit.get_conversation_turn("1", at=at) is not None
        assert len(await hf.audit.list_conversation_since(0, at=at)) == 1

    await hf.journal.store.execute(("DELETE FROM {s}turns WHERE asserted = 0", ()))


@pytest.mark.clause("P-07")
def test_validity_can_be_formatted_and_taken_apart() -> None:
    validity = Validity(1_700_000_000_123_456, False)

    assert format_timestamp(validity) == "2023-11-14T22:13:20.123456Z"
    assert format_timestamp(validity.at) == format_timestamp(validity)
    assert (to_int(validity), to_bool(validity), validity.at_ms) == (1_700_000_000_123_456, False, 1_700_000_000_123)


@pytest.mark.clause("P-03")
@pytest.mark.parametrize("at", ["yesterday", "2026-11-16T12:00:00", -1, "2026-99-99T00:00:00Z"])
async def test_an_instant_that_means_nothing_is_refused(hf: Holdfast, at: str | int) -> None:
    await refused(hf.audit.list_conversation_since(0, at=at), "invalid_value")


@pytest.mark.clause("P-03")
@pytest.mark.parametrize("at", ["2030-01-01t00:00:00z", "2030-01-01T01:00:00.000+01:00", "now", "End"])
async def test_an_instant_may_be_spelled_as_the_standard_allows(hf: Holdfast, at: str) -> None:
    await say(hf.audit, "1", "hello")

    assert len(await hf.audit.list_conversation_since(0, at=at)) == 1


@pytest.mark.clause("P-32")
async def test_a_raw_query_looks_and_never_touches(hf: Holdfast) -> None:
    await say(hf.audit, "1", "hello")

    assert await hf.audit.raw_query("SELECT content FROM {s}turns WHERE id = $1", ["1"]) == [("hello",)]
    await refused(hf.audit.raw_query("DELETE FROM {s}turns"), "invalid_value")
    await refused(hf.audit.raw_query("WITH x AS (SELECT 1) DELETE FROM {s}turns"), "invalid_value")
    await refused(hf.as_user("ada").audit.raw_query("SELECT 1"), "not_allowed")
    assert await count(hf, "turns") == 1


@pytest.mark.clause("P-31")
async def test_setting_up_again_keeps_every_fact(hf: Holdfast) -> None:
    await say(hf.audit, "1", "hello")

    await hf.journal.store._database.migrate()

    assert await hf.audit.get_conversation_turn("1") is not None
