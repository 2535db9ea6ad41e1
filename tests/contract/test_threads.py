"""Threads that belong to no run: append, read, and who wins when two want the same revision."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import Conflict, Holdfast, InvalidEntry
from tests.conftest import FakeClock
from tests.contract.builders import create, entry, note, texts

VIEWS = ("dispatch:default", "run_index:chat", "catalog")


@pytest.mark.clause("S-08")
async def test_an_append_answers_the_new_head(hf: Holdfast) -> None:
    heads = [
        await hf.journal.append("notes", [note("a")]),
        await hf.journal.append("notes", [note("b"), note("c")]),
        await hf.journal.append("other", [note("d")]),
    ]

    assert heads == [1, 3, 1]
    found = await hf.journal.read("notes")
    assert [each.rev for each in found] == [1, 2, 3]
    assert texts(found) == ["a", "b", "c"]


@pytest.mark.clause("S-06", "H-S8")
async def test_an_entry_is_its_kind_its_data_and_the_stores_time(hf: Holdfast, clock: FakeClock) -> None:
    bodies = [{"deep": [1, {"x": None}]}, [], "text", 0, None, {"big": 10**40}]

    await hf.journal.append("notes", [{"kind": f"kind no. {i}", "data": body} for i, body in enumerate(bodies)])

    found = await hf.journal.read("notes")
    assert [each.data for each in found] == bodies
    assert [each.kind for each in found] == [f"kind no. {i}" for i in range(len(bodies))]
    assert {each.thread for each in found} == {"notes"}
    assert {each.at for each in found} == {clock.now()}


@pytest.mark.clause("H-S8")
async def test_time_never_runs_backwards_along_a_thread(hf: Holdfast, clock: FakeClock) -> None:
    await hf.journal.append("notes", [note("noon")])
    noon = clock.now()

    clock.advance(-600)
    await hf.journal.append("notes", [note("the clock was set back")])
    clock.advance(601)
    await hf.journal.append("notes", [note("later")])

    assert [each.at for each in await hf.journal.read("notes")] == [noon, noon, clock.now()]


@pytest.mark.clause("S-07")
async def test_an_append_on_a_stale_revision_is_a_conflict_that_writes_nothing(hf: Holdfast) -> None:
    await hf.journal.append("notes", [note("a"), note("b")], expected_rev=0)

    for stale in (0, 1, 3):
        with pytest.raises(Conflict) as caught:
            await hf.journal.append("notes", [note("lost")], expected_rev=stale)
        assert caught.value.code == "conflict"

    assert await hf.journal.append("notes", [note("c")], expected_rev=2) == 3
    assert texts(await hf.journal.read("notes")) == ["a", "b", "c"]


@pytest.mark.clause("S-07")
async def test_a_conflict_on_a_new_thread_leaves_no_thread(hf: Holdfast) -> None:
    with pytest.raises(Conflict):
        await hf.journal.append("notes", [note("lost")], expected_rev=1)

    assert await hf.journal.read("notes") == []
    assert await hf.journal.store.threads() == []


@pytest.mark.clause("S-09")
@pytest.mark.parametrize("head", [0, 1])
async def test_of_several_appends_on_one_revision_exactly_one_wins(hf: Holdfast, head: int) -> None:
    for _ in range(head):
        await hf.journal.append("notes", [note("first")])

    answers = await asyncio.gather(
        *(hf.journal.append("notes", [note(i)], expected_rev=head) for i in range(8)), return_exceptions=True
    )

    lost = [answer for answer in answers if isinstance(answer, Conflict)]
    assert len(lost) == 7
    assert [answer for answer in answers if not isinstance(answer, Conflict)] == [head + 1]
    (winner,) = [i for i, answer in enumerate(answers) if answer == head + 1]
    assert texts(await hf.journal.read("notes", after=head)) == [winner]


@pytest.mark.clause("S-08")
async def test_appends_that_expect_nothing_all_land_without_a_gap(hf: Holdfast) -> None:
    pairs = [[note((i, "left")), note((i, "right"))] for i in range(12)]

    heads = await asyncio.gather(*(hf.journal.append("notes", pair) for pair in pairs))

    assert sorted(heads) == [2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24]
    found = await hf.journal.read("notes")
    assert [each.rev for each in found] == list(range(1, 25))
    for i, head in enumerate(heads):
        assert texts(found)[head - 2 : head] == [[i, "left"], [i, "right"]]


@pytest.mark.clause("S-08")
async def test_reading_begins_after_a_revision_and_ends_at_a_limit(hf: Holdfast) -> None:
    await hf.journal.append("notes", [note(i) for i in range(1, 8)])

    assert texts(await hf.journal.read("notes", after=2, limit=3)) == [3, 4, 5]
    assert texts(await hf.journal.read("notes", after=5)) == [6, 7]
    assert texts(await hf.journal.read("notes", limit=1)) == [1]
    assert await hf.journal.read("notes", after=7) == []
    assert await hf.journal.read("nobody wrote here") == []


@pytest.mark.clause("S-01", "S-02")
async def test_views_refuse_to_be_written(hf: Holdfast) -> None:
    await create(hf)

    for view in VIEWS:
        before = await hf.journal.read(view)
        with pytest.raises(Conflict) as caught:
            await hf.journal.append(view, [entry("run_created", session_id="s1", clog_id="chat")])
        assert caught.value.code == "reserved_thread"
        assert await hf.journal.read(view) == before


@pytest.mark.clause("SB-2")
async def test_what_is_no_entry_is_refused_with_its_neighbours(hf: Holdfast) -> None:
    attempts: list[Any] = [[], [note("fine"), {"data": 1}], [note("fine"), {"kind": ""}], [note("fine"), "note"]]
    for wrong in attempts:
        with pytest.raises(InvalidEntry):
            await hf.journal.append("notes", wrong)

    assert await hf.journal.read("notes") == []
