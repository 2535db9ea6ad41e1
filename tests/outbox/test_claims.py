"""Who gets which rows: limit, order, time, locks, and many claimers at once."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import asyncpg
import pytest

from holdfast import Context, Done, Holdfast, InvalidValue
from holdfast.store import Change
from holdfast.store.outbox_rows import ClaimTerms, _claim_change
from tests.conftest import FakeClock, Opener
from tests.outbox.post import claimed, row, send, shared
from tests.runtime.clogs import answering


@pytest.mark.clause("X-03", "X-01", "XB-1")
async def test_a_new_row_has_the_fields_and_defaults_of_the_protocol(hf: Holdfast, clock: FakeClock) -> None:
    outbox_id = await hf.outbox.enqueue({"to": "ann"}, "team:a")

    found = await row(hf, outbox_id)

    assert (found.status, found.retry_count, found.target_space, found.payload) == (
        "pending",
        0,
        "team:a",
        {"to": "ann"},
    )
    assert (found.locked_by, found.locked_at, found.last_error, found.lease_until) == (None, None, None, None)
    assert found.next_attempt_at == found.created_at == clock.now()
    assert len(found.payload_sha) == 64
    assert found["status"] == "pending"


@pytest.mark.clause("XB-1")
async def test_nothing_and_nowhere_are_refused(hf: Holdfast) -> None:
    refused: list[tuple[object, str]] = [
        *((None, "a"), ("", "a"), ({}, "a"), ([], "a")),
        *(("x", ""), ("x", "a\x00"), (b"x", "a")),
    ]
    for payload, space in refused:
        with pytest.raises(InvalidValue):
            await hf.outbox.enqueue(payload, space)

    assert (await hf.outbox.report()).statuses == {"pending": 0, "sent": 0, "dead": 0}


@pytest.mark.clause("X-07", "X-10", "C-5")
async def test_a_claim_locks_at_once_and_answers_at_most_its_limit(hf: Holdfast, clock: FakeClock) -> None:
    ids = await send(hf, 5)

    rows = await hf.outbox.claim_outbox("w1", limit=3, lease_seconds=30)

    assert [each.outbox_id for each in rows] == ids[:3]
    for each in rows:
        stored = await row(hf, each.outbox_id)
        assert (stored.status, stored.locked_by, stored.locked_at) == ("pending", "w1", clock.now())
        assert stored.lease_until == each.lease_until == clock.now() + timedelta(seconds=30)
        assert each.token is not None
        assert stored.token is None
    hashes = await hf.journal.store.fetch("SELECT claim_token_hash FROM {s}outbox WHERE locked_by = 'w1'")
    assert rows[0].token not in {hash_ for (hash_,) in hashes}


@pytest.mark.clause("XB-2", "H-X12")
async def test_the_longest_due_comes_first_then_the_oldest(hf: Holdfast, clock: FakeClock) -> None:
    ids = await send(hf, 3)
    clock.advance(10)
    young = await hf.outbox.enqueue("young", "email")
    (first,) = await hf.outbox.claim_outbox("w1", limit=1)
    await hf.outbox.fail_retry(first.outbox_id, "w1", "later", clock.now())
    clock.advance(1)

    rows = await hf.outbox.claim_outbox("w1")

    assert [each.outbox_id for each in rows] == [ids[1], ids[2], ids[0], young]


@pytest.mark.clause("X-05", "X-09")
async def test_rows_of_the_future_are_not_there_yet(hf: Holdfast, clock: FakeClock) -> None:
    held = await claimed(hf)
    due_at = clock.now() + timedelta(seconds=60)
    await hf.outbox.fail_retry(held.outbox_id, "w1", "later", due_at)

    clock.advance(59.999_999)
    assert await hf.outbox.claim_outbox("w1") == []
    clock.advance(0.000_001)
    assert [each.outbox_id for each in await hf.outbox.claim_outbox("w1")] == [held.outbox_id]


@pytest.mark.clause("X-05", "X-08", "C-16")
async def test_a_live_lock_is_passed_over_and_an_expired_one_is_taken(hf: Holdfast, clock: FakeClock) -> None:
    held = await claimed(hf, "w1", lease_seconds=60)

    clock.advance(59.999_999)
    assert await hf.outbox.claim_outbox("w2") == []
    clock.advance(0.000_001)
    (taken,) = await hf.outbox.claim_outbox("w2")

    assert (taken.outbox_id, taken.locked_by, taken.deliveries) == (held.outbox_id, "w2", 2)


@pytest.mark.clause("H-X2", "XB-2")
async def test_the_holders_lease_counts_not_the_next_claimers(hf: Holdfast, clock: FakeClock) -> None:
    await claimed(hf, "w1", lease_seconds=120)
    clock.advance(61)

    assert await hf.outbox.claim_outbox("w2", lease_seconds=60) == []
    assert await hf.outbox.claim_outbox("w2", lease_seconds=0) == []
    clock.advance(59)
    assert len(await hf.outbox.claim_outbox("w2", lease_seconds=60)) == 1


@pytest.mark.clause("XB-2", "H-X2")
async def test_a_lease_of_nothing_can_be_taken_at_once_and_one_of_a_second_cannot(hf: Holdfast) -> None:
    await claimed(hf, "w1", lease_seconds=0)

    assert len(await hf.outbox.claim_outbox("w2", lease_seconds=1)) == 1
    assert await hf.outbox.claim_outbox("w3") == []


@pytest.mark.clause("H-X5")
async def test_a_row_waits_while_its_twin_is_held(hf: Holdfast, clock: FakeClock) -> None:
    ids = [await hf.outbox.enqueue("same", "email") for _ in range(3)]
    other = await hf.outbox.enqueue("same", "sms")

    rows = await hf.outbox.claim_outbox("w1")

    assert [each.outbox_id for each in rows] == [ids[0], other]
    assert await hf.outbox.claim_outbox("w2") == []
    await hf.outbox.ack_sent(ids[0], "w1")
    assert [each.outbox_id for each in await hf.outbox.claim_outbox("w2")] == [ids[1]]
    clock.advance(61)
    assert [each.outbox_id for each in await hf.outbox.claim_outbox("w3")] == [ids[1], other]


async def test_the_database_itself_keeps_two_twins_from_being_held(hf: Holdfast) -> None:
    for _ in range(2):
        await hf.outbox.enqueue("same", "email")
    await hf.outbox.claim_outbox("w1")
    sql = "UPDATE {s}outbox SET locked_by = 'w2', lease_until = 1, claim_token_hash = 'x'"

    with pytest.raises(Exception, match=r"(?i)unique"):
        await hf.journal.store.execute((sql, ()))


@pytest.mark.clause("X-06", "C-18")
@shared
@pytest.mark.parametrize(("claimers", "rows", "limit"), [(2, 200, 7), (4, 2_000, 50)])
async def test_claimers_get_disjoint_rows_and_all_of_them(
    hf: Holdfast, another: Opener, claimers: int, rows: int, limit: int
) -> None:
    ids = set(await asyncio.gather(*(hf.outbox.enqueue({"n": n}, f"space:{n % 3}") for n in range(rows))))
    others = [hf, *[await another() for _ in range(claimers - 1)]]

    async def claim_all(number: int, instance: Holdfast) -> list[str]:
        got: list[str] = []
        while found := await instance.outbox.claim_outbox(f"w{number}", limit=limit):
            got += [each.outbox_id for each in found]
        return got

    shares = await asyncio.gather(*(claim_all(number, instance) for number, instance in enumerate(others)))
    # A claim may find rows locked by others only for a moment; nobody waits for them.
    shares.append(await claim_all(claimers, hf))

    taken = [outbox_id for share in shares for outbox_id in share]
    assert len(taken) == len(set(taken)) == rows
    assert set(taken) == ids


@pytest.mark.clause("X-06")
@pytest.mark.parametrize("configuration", ["postgres"], indirect=True)
async def test_a_row_that_somebody_locks_is_not_waited_for(hf: Holdfast, database_url: str, schema: str) -> None:

    ids = await send(hf, 2)
    connection = await asyncpg.connect(database_url)
    try:
        async with connection.transaction():
            await connection.fetch(f'SELECT 1 FROM "{schema}".outbox WHERE outbox_id = $1 FOR UPDATE', ids[0])

            rows = await asyncio.wait_for(hf.outbox.claim_outbox("w1"), 2)

        assert [each.outbox_id for each in rows] == [ids[1]]
    finally:
        await connection.close()


@shared
@pytest.mark.parametrize("spaces", [None, ("email",)], ids=["all spaces", "one space"])
async def test_a_claim_walks_along_the_due_rows_and_sorts_no_backlog(
    hf: Holdfast, spaces: tuple[str, ...] | None
) -> None:
    await send(hf, 50)
    terms = ClaimTerms("w", 1, "c", "t", 5, spaces=spaces)
    change, params = _claim_change(terms)
    database = hf._store._database
    is_postgres = bool(database.prefix)
    text, explain = (change.postgres, "EXPLAIN ") if is_postgres else (change.sqlite[0], "EXPLAIN QUERY PLAN ")

    plan = await database.change(Change((explain + text,), explain + text), 5, "w", 1, "c", "t", *params)

    shown = "\n".join(str(line[-1]) for line in plan)
    due = shown.partition("CTE due")[2].partition("CTE numbered")[0] if is_postgres else shown.partition("due")[2]
    assert "outbox_due" in due
    before_the_limit = due.partition("outbox_due")[0]
    assert "Sort" not in before_the_limit
    assert "TEMP B-TREE" not in before_the_limit


@pytest.mark.parametrize("given", [{"limit": -1}, {"limit": True}, {"lease_seconds": -1}, {"lease_seconds": "60"}])
async def test_a_claim_that_makes_no_sense_is_refused(hf: Holdfast, given: dict[str, object]) -> None:
    with pytest.raises(InvalidValue):
        await hf.outbox.claim_outbox("w1", **given)  # type: ignore[arg-type]


@pytest.mark.clause("X-03")
async def test_rows_of_a_tick_enter_with_its_commit_and_are_due(hf: Holdfast) -> None:

    async def advance(given: object, ctx: Context) -> Done:
        return Done(await ctx.outbox("email", {"to": "ann"}))

    answering(hf, advance)
    run = await hf.create_run(session_id="s", clog_id="chat", input=1)
    await hf.advance()

    (found,) = await hf.outbox.claim_outbox("w1")

    assert (found.run_id, found.payload, found.user_id) == (run.run_id, {"to": "ann"}, "local")
