"""The outbox of one user: what they add is theirs, and rows of others are unknown to them."""

from __future__ import annotations

from datetime import timedelta

import pytest

from holdfast import Conflict, Context, Done, Holdfast, NotFound
from tests.conftest import FakeClock
from tests.outbox.post import letterbox, only, reasons, row
from tests.runtime.clogs import answering


@pytest.mark.clause("X-03")
async def test_what_a_user_adds_is_theirs(hf: Holdfast) -> None:
    outbox_id = await hf.as_user("ada").outbox.enqueue({"to": "ann"}, "email", key="k")

    assert (await row(hf, outbox_id)).user_id == "ada"
    assert await hf.as_user("ada").outbox.get(outbox_id) == await row(hf, outbox_id)
    assert await hf.as_user("ada").outbox.enqueue({"to": "ann"}, "email", key="k") == outbox_id


async def test_a_row_of_a_run_belongs_to_the_runs_user(hf: Holdfast) -> None:
    async def advance(given: object, ctx: Context) -> Done:
        return Done(await ctx.outbox("email", {"to": "ann"}))

    answering(hf, advance)
    run = await hf.as_user("ada").create_run(session_id="s", clog_id="chat", input=1)
    await hf.advance()
    outbox_id = (await hf.get_run(run.run_id)).output  # type: ignore[union-attr]

    assert (await hf.as_user("ada").outbox.get(outbox_id)) is not None
    assert (await hf.as_user("bob").outbox.get(outbox_id)) is None


async def test_rows_of_others_are_unknown(hf: Holdfast, clock: FakeClock) -> None:
    letterbox(hf)
    ada, bob = hf.as_user("ada").outbox, hf.as_user("bob").outbox
    outbox_id = await ada.enqueue({"n": 1}, "email", key="k")
    later = clock.now() + timedelta(seconds=60)

    assert await bob.get(outbox_id) is None
    assert await bob.claim_outbox("w1") == []
    assert await bob.flush_once() == only()
    (held,) = await hf.outbox.claim_outbox("w1")
    assert await bob.renew_lease(outbox_id, "w1", held.token) is False
    assert await bob.renew_lease_batch([outbox_id], "w1") == 0
    assert await bob.ack_sent(outbox_id, "w1", token=held.token) is False
    assert await bob.fail_retry(outbox_id, "w1", "no", later, held.token) is False
    assert await bob.mark_dead_by_worker(outbox_id, "w1", "no", held.token) is False
    assert (await row(hf, outbox_id)).locked_by == "w1"
    with pytest.raises(Conflict) as refused:
        await bob.enqueue({"n": 1}, "email", key="k")
    assert refused.value.code == "key_reused"
    assert await hf.outbox.ack_sent(outbox_id, "w1", "m-1", held.token) is True
    assert await bob.check_dedup("email", held.payload_sha) is None
    assert (await ada.check_dedup("email", held.payload_sha)).outbox_id == outbox_id  # type: ignore[union-attr]


async def test_dead_letters_of_others_are_neither_shown_counted_nor_tried_again(hf: Holdfast) -> None:
    ada, bob = hf.as_user("ada").outbox, hf.as_user("bob").outbox
    outbox_id = await ada.enqueue({"n": 1}, "email")
    await hf.outbox.claim_outbox("w1")
    await hf.outbox.mark_dead_by_worker(outbox_id, "w1", "no such person")

    assert (await bob.reconcile()).found == 0
    assert (await ada.reconcile()).fixed == 1

    assert [each.outbox_id for each in await ada.rows("dead")] == [outbox_id]
    assert await bob.rows("dead") == []
    assert await reasons(hf.as_user("ada")) == await reasons(hf.as_user("ada"), outbox_id) == ["dead"]
    assert await reasons(hf.as_user("bob")) == await reasons(hf.as_user("bob"), outbox_id) == []
    assert (await ada.report()).statuses["dead"] == (await ada.report()).actions["reject"] == 1
    assert (await bob.report()).statuses == {"pending": 0, "sent": 0, "dead": 0}
    assert (await bob.report()).reasons == {}
    with pytest.raises(NotFound):
        await bob.requeue(outbox_id)
    assert (await row(hf, await ada.requeue(outbox_id))).user_id == "ada"


async def test_a_pass_for_one_user_delivers_their_rows_and_spares_what_anyone_sent(hf: Holdfast) -> None:
    box = letterbox(hf, last="m-1")
    ada, bob = hf.as_user("ada").outbox, hf.as_user("bob").outbox
    for outbox in (ada, bob):
        await outbox.enqueue("same", "email")
        await outbox.enqueue({"of": outbox is ada}, "email")

    assert await ada.flush_once() == only(success=2)
    assert await bob.flush_once() == only(success=1, dedup_hit=1)

    assert len(box.calls) == 3


def test_one_users_outbox_is_there_without_an_event_loop() -> None:
    with Holdfast(":memory:").sync as hf:
        outbox_id = hf.as_user("ada").outbox.enqueue("x", "email")

        assert hf.outbox.get(outbox_id).user_id == "ada"
        assert hf.as_user("bob").outbox.get(outbox_id) is None
