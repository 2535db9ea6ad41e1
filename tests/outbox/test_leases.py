"""What a holder may do with a row, and nobody else: ack, retry, dead, renew; and what none of them may undo."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from holdfast import Conflict, Holdfast, InvalidValue, NotFound
from holdfast.outbox import OutboxRow
from tests.conftest import FakeClock
from tests.contract.faulty import with_faults
from tests.outbox.post import claimed, row, send

Act = Callable[..., Awaitable[bool]]


async def ack(hf: Holdfast, held: OutboxRow, worker_id: str = "w1", token: str | None = None) -> bool:
    return await hf.outbox.ack_sent(held.outbox_id, worker_id, "m-1", token=token)


async def retry(hf: Holdfast, held: OutboxRow, worker_id: str = "w1", token: str | None = None) -> bool:
    due_at = held.created_at + timedelta(hours=1)
    return await hf.outbox.fail_retry(held.outbox_id, worker_id, "boom", due_at, token=token)


async def dead(hf: Holdfast, held: OutboxRow, worker_id: str = "w1", token: str | None = None) -> bool:
    return await hf.outbox.mark_dead_by_worker(held.outbox_id, worker_id, "never", token=token)


async def renew(hf: Holdfast, held: OutboxRow, worker_id: str = "w1", token: str | None = None) -> bool:
    return await hf.outbox.renew_lease(held.outbox_id, worker_id, token=token)


ACTS = pytest.mark.parametrize("act", [ack, retry, dead, renew])
ENDS = pytest.mark.parametrize("end", [ack, dead])


@pytest.mark.clause("X-02", "X-11", "X-12", "XB-3", "H-X6")
async def test_an_ack_sends_frees_and_keeps_the_reference(hf: Holdfast, clock: FakeClock) -> None:
    held = await claimed(hf)

    assert await hf.outbox.ack_sent(held.outbox_id, "w1", "m-1") is True

    found = await row(hf, held.outbox_id)
    assert (found.status, found.result_ref, found.memory_id) == ("sent", "m-1", "m-1")
    assert found.last_error == "memory_id=m-1"
    assert (found.locked_by, found.locked_at, found.lease_until) == (None, None, None)
    assert found.settled_at == clock.now()


@pytest.mark.clause("XB-3", "H-X6")
async def test_an_ack_without_a_reference_shows_no_error_and_the_column_keeps_the_last_one(
    hf: Holdfast, clock: FakeClock
) -> None:
    held = await claimed(hf)
    await hf.outbox.fail_retry(held.outbox_id, "w1", "boom", clock.now())
    await hf.outbox.claim_outbox("w1")

    assert await hf.outbox.ack_sent(held.outbox_id, "w1")

    found = await row(hf, held.outbox_id)
    assert (found.last_error, found.result_ref, found.retry_count) == (None, None, 1)
    stored = await hf.journal.store.fetch("SELECT last_error FROM {s}outbox")
    assert stored == [("boom",)]


@pytest.mark.clause("X-02", "X-14", "X-15", "X-16")
@pytest.mark.parametrize("as_text", [False, True], ids=["datetime", "ISO text"])
async def test_a_retry_counts_stores_the_given_time_and_frees(hf: Holdfast, clock: FakeClock, as_text: bool) -> None:
    held = await claimed(hf)
    due_at = clock.now() + timedelta(seconds=77, microseconds=5)

    assert await hf.outbox.fail_retry(held.outbox_id, "w1", "boom", due_at.isoformat() if as_text else due_at)

    found = await row(hf, held.outbox_id)
    assert (found.status, found.retry_count, found.next_attempt_at) == ("pending", 1, due_at)
    assert (found.last_error, found.locked_by, found.lease_until) == ("boom", None, None)


@pytest.mark.clause("X-15")
@pytest.mark.parametrize("given", ["tomorrow", "2030-01-01T00:00:00", 5, None])
async def test_a_time_that_is_none_is_refused_and_changes_nothing(hf: Holdfast, given: Any) -> None:
    held = await claimed(hf)

    with pytest.raises(InvalidValue):
        await hf.outbox.fail_retry(held.outbox_id, "w1", "boom", given)

    assert (await row(hf, held.outbox_id)).retry_count == 0


@pytest.mark.clause("X-02", "X-18", "XB-5", "H-X11")
async def test_marking_dead_keeps_the_count_and_the_error(hf: Holdfast) -> None:
    held = await claimed(hf)

    assert await hf.outbox.mark_dead_by_worker(held.outbox_id, "w1", "bad format") is True

    found = await row(hf, held.outbox_id)
    assert (found.status, found.last_error, found.retry_count) == ("dead", "bad format", 0)
    assert (found.locked_by, found.lease_until) == (None, None)


@pytest.mark.clause("X-20")
async def test_a_renewal_begins_the_lease_anew(hf: Holdfast, clock: FakeClock) -> None:
    held = await claimed(hf, lease_seconds=90)
    clock.advance(60)

    assert await hf.outbox.renew_lease(held.outbox_id, "w1") is True

    found = await row(hf, held.outbox_id)
    assert (found.locked_at, found.lease_until) == (clock.now(), clock.now() + timedelta(seconds=90))
    clock.advance(89)
    assert await hf.outbox.claim_outbox("w2") == []


@pytest.mark.clause("X-13", "X-17", "X-19", "X-20", "X-25")
@ACTS
@pytest.mark.parametrize("why", ["another worker", "nobody", "a wrong token", "an unknown row"])
async def test_whoever_does_not_hold_a_row_changes_nothing(hf: Holdfast, act: Act, why: str) -> None:
    held = await claimed(hf)
    if why == "nobody":
        await hf.outbox.fail_retry(held.outbox_id, "w1", "x", held.created_at)
    before = await row(hf, held.outbox_id)
    given = {"another worker": {"worker_id": "w2"}, "a wrong token": {"token": "no"}}.get(why, {})
    asked = OutboxRow(**{**_fields(held), "outbox_id": "999"}) if why == "an unknown row" else held

    assert await act(hf, asked, **given) is False

    assert await row(hf, held.outbox_id) == before


@pytest.mark.clause("X-04", "X-13", "X-19")
@ACTS
@ENDS
async def test_what_is_over_never_changes_again(hf: Holdfast, act: Act, end: Act) -> None:
    held = await claimed(hf)
    assert await end(hf, held)
    before = await row(hf, held.outbox_id)

    assert await act(hf, held) is False
    assert await act(hf, held, token=held.token) is False

    assert await row(hf, held.outbox_id) == before


@pytest.mark.clause("H-X1", "X-26", "C-16", "C-5")
@ACTS
@pytest.mark.parametrize("with_token", [False, True], ids=["owner", "token"])
async def test_an_expired_lease_refuses_its_holder_though_nobody_took_it(
    hf: Holdfast, clock: FakeClock, act: Act, with_token: bool
) -> None:
    held = await claimed(hf, lease_seconds=60)
    clock.advance(60)
    before = await row(hf, held.outbox_id)

    assert await act(hf, held, token=held.token if with_token else None) is False

    assert await row(hf, held.outbox_id) == before


@pytest.mark.clause("X-26", "X-08")
@ACTS
async def test_after_a_takeover_the_first_holder_is_refused(hf: Holdfast, clock: FakeClock, act: Act) -> None:
    held = await claimed(hf, lease_seconds=60)
    clock.advance(60)
    (taken,) = await hf.outbox.claim_outbox("w2")

    assert await act(hf, held) is False

    assert (await row(hf, taken.outbox_id)).locked_by == "w2"
    assert await act(hf, taken, worker_id="w2") is True


@pytest.mark.clause("H-X8", "C-5")
@ACTS
async def test_a_token_fences_a_worker_against_its_former_self(hf: Holdfast, clock: FakeClock, act: Act) -> None:
    old = await claimed(hf, lease_seconds=60)
    clock.advance(60)
    (new,) = await hf.outbox.claim_outbox("w1")

    assert await act(hf, old, token=old.token) is False
    assert await act(hf, new, token=new.token) is True


@pytest.mark.clause("XB-4")
async def test_a_batch_renews_only_the_callers_rows(hf: Holdfast, clock: FakeClock) -> None:
    ids = await send(hf, 4)
    mine = [each.outbox_id for each in await hf.outbox.claim_outbox("w1", limit=2)]
    theirs = [each.outbox_id for each in await hf.outbox.claim_outbox("w2", limit=1)]
    await hf.outbox.ack_sent(mine[1], "w1")
    clock.advance(30)

    assert await hf.outbox.renew_lease_batch([], "w1") == 0
    assert await hf.outbox.renew_lease_batch([*ids, "999"], "w1") == 1

    assert (await row(hf, mine[0])).locked_at == clock.now()
    assert (await row(hf, theirs[0])).locked_at == clock.now() - timedelta(seconds=30)


@pytest.mark.clause("X-22", "X-23")
async def test_dedup_answers_a_sent_twin_of_the_same_space_only(hf: Holdfast) -> None:
    held = await claimed(hf)
    pair = (held.target_space, held.payload_sha)

    assert await hf.outbox.check_dedup(*pair) is None
    await hf.outbox.mark_dead_by_worker(held.outbox_id, "w1", "no")
    assert await hf.outbox.check_dedup(*pair) is None
    twin = await claimed(hf)
    await hf.outbox.ack_sent(twin.outbox_id, "w1", "m-7")

    found = await hf.outbox.check_dedup(*pair)
    assert found is not None
    assert (found.outbox_id, found.result_ref) == (twin.outbox_id, "m-7")
    assert await hf.outbox.check_dedup("sms", held.payload_sha) is None


@pytest.mark.clause("C-26")
async def test_a_key_makes_one_row_and_belongs_to_its_space(hf: Holdfast) -> None:
    first = await hf.outbox.enqueue({"to": "ann"}, "email", key="welcome")

    assert await hf.outbox.enqueue({"to": "ann"}, "email", key="welcome") == first
    assert await hf.outbox.enqueue({"to": "ann"}, "sms", "welcome") != first
    with pytest.raises(Conflict) as refused:
        await hf.outbox.enqueue({"to": "bob"}, "email", key="welcome")
    assert refused.value.code == "key_reused"
    assert (await hf.outbox.report()).statuses["pending"] == 2


@pytest.mark.clause("H-X7", "X-04")
async def test_a_requeue_is_a_new_row_and_the_dead_one_stays(hf: Holdfast) -> None:
    held = await claimed(hf)
    await hf.outbox.mark_dead_by_worker(held.outbox_id, "w1", "no")
    before = await row(hf, held.outbox_id)

    new_id = await hf.outbox.requeue(held.outbox_id)

    assert await hf.outbox.requeue(held.outbox_id) == new_id
    new = await row(hf, new_id)
    assert (new.status, new.retry_count, new.requeued_from, new.payload) == ("pending", 0, held.outbox_id, held.payload)
    assert await row(hf, held.outbox_id) == before


@pytest.mark.clause("H-X7")
async def test_only_dead_rows_are_requeued(hf: Holdfast) -> None:
    held = await claimed(hf)

    with pytest.raises(Conflict) as refused:
        await hf.outbox.requeue(held.outbox_id)
    with pytest.raises(NotFound):
        await hf.outbox.requeue("nobody")

    assert refused.value.code == "not_dead"


@pytest.mark.clause("C-25", "C-13")
async def test_errors_are_kept_without_secrets_and_payloads_as_they_are(hf: Holdfast, clock: FakeClock) -> None:
    await hf.outbox.enqueue({"password": "hunter2"}, "email")
    (held,) = await hf.outbox.claim_outbox("w1")
    error = (
        "POST https://bob:s3cret@host/x failed: Authorization: Bearer abcdef123456; api_key=zzz9999 \x00" + "x" * 9_000
    )

    await hf.outbox.fail_retry(held.outbox_id, "w1", error, clock.now())

    found = await row(hf, held.outbox_id)
    assert found.last_error is not None
    assert not any(secret in found.last_error for secret in ("s3cret", "abcdef123456", "zzz9999", "\x00"))
    assert found.last_error.startswith("POST https://bob:[redacted]@host/x failed")
    assert len(found.last_error.encode()) <= 2_048
    assert found.payload == {"password": "hunter2"}


@ACTS
@pytest.mark.parametrize("fault", ["busy", "lost", "unanswered", "late"])
async def test_a_lost_answer_is_found_out_about(hf: Holdfast, act: Act, fault: Any) -> None:
    held = await claimed(hf)
    faulty = with_faults(hf)
    faulty.strike("change", fault)

    assert await act(hf, held, token=held.token) is True

    assert faulty.is_quiet
    found = await row(hf, held.outbox_id)
    assert found.retry_count == (1 if act is retry else 0)


@pytest.mark.parametrize("fault", ["busy", "lost", "unanswered", "late"])
async def test_a_claim_or_an_enqueue_whose_answer_was_lost_happens_once(hf: Holdfast, fault: Any) -> None:
    faulty = with_faults(hf)
    faulty.strike("change", fault)
    outbox_id = await hf.outbox.enqueue("x", "email")
    faulty.strike("change", fault)

    rows = await hf.outbox.claim_outbox("w1")

    assert [each.outbox_id for each in rows] == [outbox_id]
    assert await hf.outbox.ack_sent(outbox_id, "w1", token=rows[0].token)
    assert (await hf.outbox.report()).statuses == {"pending": 0, "sent": 1, "dead": 0}


def _fields(row: OutboxRow) -> dict[str, Any]:
    return {name: getattr(row, name) for name in row.__struct_fields__}


@pytest.mark.clause("X-13", "X-25", "X-26", "H-X8")
@pytest.mark.parametrize("stale_first", [True, False])
async def test_whoever_lost_a_row_hears_so_even_in_the_same_moment_as_its_holder(
    hf: Holdfast, clock: FakeClock, stale_first: bool
) -> None:
    stale = await claimed(hf, "w1")
    clock.advance(60)
    (live,) = await hf.outbox.claim_outbox("w1")
    order = (stale, live) if stale_first else (live, stale)

    renewed = await asyncio.gather(*(hf.outbox.renew_lease(each.outbox_id, "w1", each.token) for each in order))
    acked = await asyncio.gather(*(hf.outbox.ack_sent(each.outbox_id, "w1", None, each.token) for each in order))

    assert renewed == acked == [each is live for each in order]


@pytest.mark.clause("X-13", "X-17")
async def test_of_two_ends_that_a_holder_gives_at_once_one_counts(hf: Holdfast, clock: FakeClock) -> None:
    held = await claimed(hf, "w1")

    answers = await asyncio.gather(
        hf.outbox.fail_retry(held.outbox_id, "w1", "no", clock.now(), held.token),
        hf.outbox.ack_sent(held.outbox_id, "w1", "m-1", held.token),
        hf.outbox.mark_dead_by_worker(held.outbox_id, "w1", "never", held.token),
    )

    assert list(answers) == [True, False, False]
    found = await row(hf, held.outbox_id)
    assert (found.status, found.retry_count, found.last_error) == ("pending", 1, "no")
