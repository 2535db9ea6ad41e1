"""Who listens hears of every change after its commit; who writes never waits for them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import Holdfast
from tests.audit.builders import complete, count, refused, request, say

Heard = list[tuple[str, list[dict[str, Any]], list[dict[str, Any]]]]


@pytest.mark.clause("P-34")
async def test_a_callback_hears_the_new_rows_and_those_they_supersede(hf: Holdfast) -> None:
    heard: Heard = []
    hf.audit.on_change("turns", lambda op, new, old: heard.append((op, new, old)))

    await say(hf.audit, "1", "helo")
    await say(hf.audit, "1", "hello")
    await say(hf.audit, "1", "hello")
    await hf.audit.retract_conversation_turn("1")
    await request(hf.audit)

    assert [op for op, _, _ in heard] == ["put", "put", "rm"]
    assert [[row["content"] for row in new] for _, new, _ in heard] == [["helo"], ["hello"], []]
    assert [[row["content"] for row in old] for _, _, old in heard] == [[], ["helo"], ["hello"]]


@pytest.mark.clause("P-34")
async def test_a_callback_is_told_after_the_commit_only(hf: Holdfast) -> None:
    stored: list[int] = []
    told = asyncio.Event()

    async def look(op: str, new: Any, old: Any) -> None:
        stored.append(await count(hf, "tool_calls"))
        told.set()

    hf.audit.on_change("tool_calls", look)
    await request(hf.audit)
    await told.wait()
    await refused(complete(hf.audit, "unknown"), "not_requested")
    tx = hf.audit.transaction()
    await request(tx, "call-2")
    await tx.abort()
    await asyncio.sleep(0.01)

    assert stored == [1]


@pytest.mark.clause("P-34")
async def test_a_slow_callback_holds_up_nobody_and_misses_the_oldest(hf: Holdfast) -> None:
    heard: list[str] = []
    may_go_on, all_heard = asyncio.Event(), asyncio.Event()

    async def slow(op: str, new: Any, old: Any) -> None:
        heard.append(new[0]["content"])
        if len(heard) == 3:
            all_heard.set()
        await may_go_on.wait()

    hf.audit.on_change("turns", slow, capacity=2)
    for number in range(6):
        await asyncio.wait_for(say(hf.audit, "1", f"word {number}"), 10)
    may_go_on.set()
    await all_heard.wait()

    assert heard == ["word 0", "word 4", "word 5"]


@pytest.mark.clause("P-34", "PB-4")
async def test_a_callback_can_be_taken_away_and_may_raise(hf: Holdfast) -> None:
    heard: list[str] = []

    def broken(op: str, new: Any, old: Any) -> None:
        heard.append("broken")
        raise RuntimeError("as told")

    first = hf.audit.on_change("turns", broken)
    second = hf.audit.on_change("turns", lambda op, new, old: heard.append("sound"))
    await say(hf.audit, "1", "a")
    assert hf.audit.off_change(second)
    assert not hf.audit.off_change(second)
    await say(hf.audit, "1", "b")

    assert first != second
    assert heard == ["broken", "sound", "broken"]
    with pytest.raises(ValueError, match="no relation"):
        hf.audit.on_change("runs", broken)


@pytest.mark.clause("P-34")
async def test_after_it_is_taken_away_a_callback_hears_nothing_more_not_even_what_waits(hf: Holdfast) -> None:
    heard: list[str] = []
    may_go_on, has_ended = asyncio.Event(), asyncio.Event()

    async def slow(op: str, new: Any, old: Any) -> None:
        heard.append(new[0]["content"])
        await may_go_on.wait()
        has_ended.set()

    callback_id = hf.audit.on_change("turns", slow)
    for number in range(3):
        await say(hf.audit, "1", f"word {number}")

    assert hf.audit.off_change(callback_id)
    may_go_on.set()
    await has_ended.wait()
    await asyncio.sleep(0.01)

    assert heard == ["word 0"]


async def test_a_callback_that_was_taken_away_in_the_middle_ends_with_the_runtime() -> None:
    cut = asyncio.Event()

    async def endless(op: str, new: Any, old: Any) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cut.set()

    async with Holdfast(":memory:") as hf:
        callback_id = hf.audit.on_change("turns", endless)
        await say(hf.audit, "1", "a")
        hf.audit.off_change(callback_id)

    assert cut.is_set()


@pytest.mark.clause("P-34")
async def test_one_user_hears_of_their_own_facts_alone(hf: Holdfast) -> None:
    heard: dict[str, list[str]] = {"ada": [], "everyone": []}
    ada, bob = hf.as_user("ada").audit, hf.as_user("bob").audit

    def noting(name: str) -> Any:
        return lambda op, new, old: heard[name].extend(row["content"] for row in new)

    callback_id = ada.on_change("turns", noting("ada"))
    hf.audit.on_change("turns", noting("everyone"))
    await say(ada, "1", "of ada")
    await say(bob, "2", "of bob")
    async with hf.audit.transaction() as tx:
        await say(tx, "1", "for ada")
        await say(tx, "2", "for bob")

    assert heard == {"ada": ["of ada", "for ada"], "everyone": ["of ada", "of bob", "for ada", "for bob"]}
    assert not bob.off_change(callback_id)
    assert ada.off_change(callback_id)
