"""Checkpoints spare time and decide nothing: present, stale, broken or gone, every answer is the same."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from holdfast import Done, Holdfast
from tests.contract.builders import active, claim_one, collect, create, kinds, look, note

Damage = Callable[[Holdfast], Awaitable[None]]


async def left_alone(hf: Holdfast) -> None:
    """The checkpoint covers the whole thread."""


async def outrun(hf: Holdfast) -> None:
    """It covers a part; what came later is folded onto it."""
    await hf.journal.save_checkpoint("notes", 2, ["a", "b"])


async def ahead(hf: Holdfast) -> None:
    """It covers more than there is, as after a restore of an older backup."""
    await hf.journal.save_checkpoint("notes", 99, ["from the future"])


async def corrupt(hf: Holdfast) -> None:
    await hf.journal.store.execute(("UPDATE {s}checkpoints SET state = $1", ('["changed"]',)))


async def torn(hf: Holdfast) -> None:
    await hf.journal.store.execute(("UPDATE {s}checkpoints SET state = $1", ('["a',)))


async def moved(hf: Holdfast) -> None:
    """The state is whole but is said to cover another revision."""
    await hf.journal.store.execute(("UPDATE {s}checkpoints SET rev = 1", ()))


async def deleted(hf: Holdfast) -> None:
    await hf.journal.store.execute(("DELETE FROM {s}checkpoints", ()))


@pytest.mark.clause("S-12", "S-13", "S-06")
@pytest.mark.parametrize("damage", [left_alone, outrun, ahead, corrupt, torn, moved, deleted], ids=lambda d: d.__name__)
async def test_no_checkpoint_changes_an_answer(hf: Holdfast, damage: Damage) -> None:
    await hf.journal.append("notes", [note(text) for text in "abcd"])
    await hf.journal.save_checkpoint("notes", 4, ["a", "b", "c", "d"])

    await damage(hf)

    assert await hf.journal.project("notes", [], collect) == ["a", "b", "c", "d"]


@pytest.mark.clause("S-12")
async def test_a_checkpoint_is_a_state_with_the_revision_it_covers_and_the_last_one_counts(hf: Holdfast) -> None:
    await hf.journal.append("notes", [note(text) for text in "abc"])

    await hf.journal.save_checkpoint("notes", 1, {"seen": ["a"]})
    await hf.journal.save_checkpoint("notes", 2, {"seen": ["a", "b"]})

    assert await hf.journal.load_checkpoint("notes") == (2, {"seen": ["a", "b"]})
    assert await hf.journal.load_checkpoint("other") is None


@pytest.mark.clause("S-12")
async def test_a_good_checkpoint_is_where_the_fold_begins(hf: Holdfast) -> None:
    await hf.journal.append("notes", [note(text) for text in "abc"])

    await hf.journal.save_checkpoint("notes", 2, ["short for a and b"])

    assert await hf.journal.project("notes", [], collect) == ["short for a and b", "c"]


@pytest.mark.clause("S-14")
async def test_a_run_is_inspected_and_finished_from_entries_alone(hf: Holdfast) -> None:
    claim = await active(hf)
    await hf.journal.save_checkpoint(f"run:{claim.run_id}", 2, {"anything": True})

    await deleted(hf)

    assert (await look(hf, claim.run_id)).status == "active"
    assert (await hf.complete(claim, Done(7))).output == 7
    assert await kinds(hf, claim.run_id) == ["run_created", "attempt_claimed", "run_terminal"]


@pytest.mark.clause("C-28", "C-3")
async def test_a_runs_rows_are_its_checkpoint_and_are_rebuilt_from_the_entries(hf: Holdfast) -> None:
    claim = await active(hf)
    await hf.signal(claim.run_id, "next")
    waiting = await create(hf, key="k1")
    before = [await look(hf, claim.run_id), await look(hf, waiting.run_id)]
    await hf.journal.store.execute(
        ("UPDATE {s}runs SET status = 'idle', rev = 1, attempt = 9", ()),
        ("DELETE FROM {s}signals", ()),
        ("DELETE FROM {s}keys", ()),
        ("UPDATE {s}work SET visible_at = 0, lease_until = lease_until + 9", ()),
    )
    assert not (await hf.fsck()).ok

    report = await hf.rebuild()

    assert report.ok
    assert [await look(hf, claim.run_id), await look(hf, waiting.run_id)] == before
    await hf.complete(claim, Done(1))
    assert (await claim_one(hf)).run_id == waiting.run_id
