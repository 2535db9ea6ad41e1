"""What the journal asked for has its row: lost rows are found and made again, and copies of runs send nothing twice."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Context, Done, Holdfast
from tests.conftest import FakeClock
from tests.contract.builders import assert_sound
from tests.outbox.post import letterbox, only, reasons, row
from tests.runtime.clogs import answering


async def sender(hf: Holdfast, payload: Any = "hello") -> tuple[str, str]:
    """A run that is done and has asked for a delivery: its id, and the row's."""

    async def advance(given: Any, ctx: Context) -> Done:
        return Done(await ctx.outbox("email", payload, key="k"))

    answering(hf, advance)
    run = await hf.create_run(session_id="s", clog_id="chat", input=1)
    await hf.advance()
    found = await hf.get_run(run.run_id)
    assert found is not None
    return run.run_id, found.output


async def lose(hf: Holdfast) -> None:
    await hf.journal.store.execute(("DELETE FROM {s}outbox", ()))


@pytest.mark.clause("C-3", "C-19", "C-28")
@pytest.mark.parametrize("alone", [False, True], ids=["everything", "one run"])
async def test_a_lost_row_is_found_and_made_again(hf: Holdfast, clock: FakeClock, alone: bool) -> None:
    run_id, outbox_id = await sender(hf)
    before = await row(hf, outbox_id)
    clock.advance(60)
    await lose(hf)

    chosen = run_id if alone else None
    (problem,) = (await hf.fsck(chosen)).problems
    assert (problem.law, problem.where, problem.detail) == ("O1", f"run:{run_id}", f"outbox[{outbox_id!r}] is missing")
    assert (await hf.rebuild(chosen)).ok

    assert await row(hf, outbox_id) == before


@pytest.mark.clause("C-3", "C-7")
@pytest.mark.parametrize("end", ["sent", "dead", "waiting"])
async def test_audits_tell_a_rebuilt_row_what_became_of_it(hf: Holdfast, end: str) -> None:
    _, outbox_id = await sender(hf)
    box = letterbox(hf, "m-1" if end == "sent" else OSError("no route"))
    await hf.outbox.flush_once(max_retries=1 if end == "dead" else 5)
    before = await row(hf, outbox_id)
    await lose(hf)

    assert (await hf.rebuild()).ok

    found = await row(hf, outbox_id)
    assert (found.status, found.result_ref, found.last_error) == (before.status, before.result_ref, before.last_error)
    assert (found.retry_count, found.next_attempt_at) == (before.retry_count, before.next_attempt_at)
    assert (found.settled_at, found.error_kind) == (before.settled_at, before.error_kind)
    assert await hf.outbox.flush_once() == only()
    assert len(box.calls) == 1


async def test_a_row_that_says_something_else_than_its_entry_is_put_right(hf: Holdfast) -> None:
    run_id, outbox_id = await sender(hf)
    before = await row(hf, outbox_id)
    await hf.journal.store.execute(("UPDATE {s}outbox SET payload = '\"bye\"', target_space = 'sms'", ()))

    (problem,) = (await hf.fsck()).problems
    assert (problem.law, problem.where) == ("O1", f"run:{run_id}")
    assert (await hf.rebuild()).ok

    assert await row(hf, outbox_id) == before


async def test_a_row_that_no_run_asked_for_is_removed(hf: Holdfast) -> None:
    run_id, outbox_id = await sender(hf)
    invented = """
        INSERT INTO {s}outbox (
            outbox_id, run_id, user_id, target_space, payload, payload_sha, next_attempt_at, created_at
        )
        VALUES ('ghost', $1, 'local', 'email', '1', 'x', 0, 0)
    """
    await hf.journal.store.execute((invented, (run_id,)))

    (problem,) = (await hf.fsck()).problems
    assert (problem.law, problem.detail) == ("O1", "outbox['ghost'] is not in the journal")
    assert (await hf.rebuild()).ok

    assert await hf.outbox.get("ghost") is None
    assert await hf.outbox.get(outbox_id) is not None


@pytest.mark.parametrize("configuration", ["memory", "postgres"], indirect=True)
async def test_where_the_journal_has_lost_its_end_no_row_is_removed(
    database_url: str, schema: str, clock: FakeClock
) -> None:
    async with Holdfast(database_url, schema=schema, clock=clock) as damaged:
        run_id, outbox_id = await sender(damaged)
        lost = "DELETE FROM {s}journal WHERE thread = $1 AND rev > 2"
        await damaged.journal.store.execute((lost, (f"run:{run_id}",)))

        assert not (await damaged.rebuild()).ok

        assert (await row(damaged, outbox_id)).status == "pending"


async def test_rows_of_nobody_and_requeued_ones_are_nobodys_problem(hf: Holdfast) -> None:
    _, outbox_id = await sender(hf)
    letterbox(hf, OSError("no"))
    await hf.outbox.flush_once(max_retries=1)
    await hf.outbox.requeue(outbox_id)
    await hf.outbox.enqueue("plain", "email")

    await assert_sound(hf)
    assert (await hf.rebuild()).ok

    assert (await hf.outbox.report()).statuses == {"pending": 2, "sent": 0, "dead": 1}


async def test_a_fork_sends_nothing_again(hf: Holdfast) -> None:
    run_id, outbox_id = await sender(hf)
    await hf.fork(run_id)
    await lose(hf)

    assert (await hf.rebuild()).ok

    assert [each.outbox_id for each in await hf.outbox.rows("pending")] == [outbox_id]


@pytest.fixture
async def elsewhere() -> AsyncIterator[Holdfast]:
    async with Holdfast(":memory:") as holdfast:
        yield holdfast


async def test_an_imported_run_leaves_its_deliveries_to_where_it_came_from(
    hf: Holdfast, elsewhere: Holdfast, tmp_path: Path
) -> None:
    run_id, outbox_id = await sender(hf)
    await hf.export_run(run_id, tmp_path / "run.file")
    box = letterbox(elsewhere)

    await elsewhere.import_run(tmp_path / "run.file")

    assert await elsewhere.outbox.flush_once() == only()
    found = await row(elsewhere, outbox_id)
    assert found.status == "dead"
    assert "requeue it" in (found.last_error or "")
    await assert_sound(elsewhere)
    await elsewhere.outbox.requeue(outbox_id)
    assert await elsewhere.outbox.flush_once() == only(success=1)
    assert box.payloads == ["hello"]


@pytest.mark.clause("C-12")
async def test_a_run_takes_what_is_settled_along_and_leaves_what_must_still_be_sent(hf: Holdfast) -> None:
    run_id, outbox_id = await sender(hf)
    letterbox(hf, "m-1")

    await hf.purge(run_id)
    assert await hf.outbox.flush_once() == only(success=1)

    assert (await row(hf, outbox_id)).status == "sent"
    await assert_sound(hf)


@pytest.mark.clause("C-12")
async def test_with_a_run_go_its_sent_rows_and_their_audits(hf: Holdfast) -> None:
    run_id, outbox_id = await sender(hf)
    letterbox(hf, "m-1")
    await hf.outbox.flush_once()

    await hf.purge(run_id)

    assert await hf.outbox.get(outbox_id) is None
    assert await reasons(hf, outbox_id) == []
