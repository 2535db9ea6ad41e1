"""One pass of the worker's flow: claim → dedup → renew → deliver → renew → ack | retry | dead, each with its audit."""

from __future__ import annotations

import asyncio
import inspect
import json
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from holdfast import DeadLetter, DeliveryFailed, Holdfast, InvalidValue
from holdfast.outbox import (
    RESULT_CODES,
    Outbox,
    OutboxRelay,
    Webhook,
    calculate_backoff_with_jitter,
    delivery_key,
)
from holdfast.store import outbox_rows, outbox_sql
from holdfast.store.types import Busy
from tests.conftest import FakeClock, Opener
from tests.outbox.post import Letterbox, claimed, letterbox, only, reasons, row, send, shared
from tests.worker.places import seam_under


@pytest.mark.clause("X-34")
def test_the_result_codes_are_exactly_seven() -> None:
    ends = ("success", "retry", "dead", "conflict", "dedup_hit", "db_timeout", "db_error")

    assert sorted(RESULT_CODES) == sorted(f"outbox_flush_{end}" for end in ends)


@pytest.mark.clause("X-32", "XB-7", "H-X5", "H-X11", "XB-6")
async def test_a_delivery_is_handed_its_key_and_leaves_its_reference_and_one_audit(hf: Holdfast) -> None:
    box = letterbox(hf, "m-1")
    (outbox_id,) = await send(hf)

    assert await hf.outbox.flush_once() == only(success=1)

    found = await row(hf, outbox_id)
    key = delivery_key("email", found.payload_sha)
    assert box.calls == [{"payload": {"n": 0}, "key": key, "space": "email", "outbox_id": outbox_id}]
    assert (found.status, found.result_ref, found.deliveries, found.attempts_made) == ("sent", "m-1", 1, 1)
    (audit,) = await hf.outbox.audits(outbox_id)
    assert (audit.action, audit.reason, audit.status) == ("allow", "outbox_flush_success", "success")
    told = audit.evidence
    assert (told["outbox_id"], told["payload_sha"], told["memory_id"]) == (outbox_id, found.payload_sha, "m-1")
    assert (told["retry_count"], told["intended_action"], told["source"]) == (0, "success", "outbox_worker")
    assert told["worker_id"].startswith("worker-")
    assert len(told["worker_id"]) == len("worker-") + 8
    assert told["attempt_id"]
    assert told["correlation_id"]


@pytest.mark.clause("X-32", "X-21")
async def test_the_order_is_claim_dedup_renew_deliver_renew_ack(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    seam = seam_under(hf)
    steps: list[str] = []
    names = {id(outbox_sql.RENEW): "renew", id(outbox_sql.SETTLE_AND_NOTE): "ack"}
    change, twins = seam._real.change, hf._store.outbox.twins

    async def noted(given: Any, *params: Any) -> Any:
        steps.append(names.get(id(given), "claim"))
        return await change(given, *params)

    async def compared(pairs: Any) -> Any:
        steps.append("dedup")
        return await twins(pairs)

    await send(hf)
    monkeypatch.setattr(seam._real, "change", noted)
    monkeypatch.setattr(hf._store.outbox, "twins", compared)

    @hf.deliver("email")
    async def deliver(payload: Any) -> None:
        steps.append("deliver")

    assert await hf.outbox.flush_once() == only(success=1)

    assert steps == ["claim", "dedup", "renew", "deliver", "renew", "ack"]


@pytest.mark.clause("X-33", "X-31", "X-02", "H-X9", "XB-5", "H-X11")
async def test_the_fifth_failure_is_the_last(hf: Holdfast, clock: FakeClock) -> None:
    box = letterbox(hf, last=OSError("no route"), jitter_factor=0)
    (outbox_id,) = await send(hf)
    waits = []

    for number in range(4):
        assert await hf.outbox.flush_once() == only(retry=1)
        found = await row(hf, outbox_id)
        assert (found.status, found.retry_count, found.error_kind) == ("pending", number + 1, "connection_error")
        waits.append((found.next_attempt_at - clock.now()).total_seconds())
        assert await hf.outbox.flush_once() == only()
        clock.advance(waits[-1])
    assert await hf.outbox.flush_once() == only(dead=1)

    found = await row(hf, outbox_id)
    assert waits == [120, 240, 480, 960]
    assert (found.status, found.retry_count, found.last_error) == ("dead", 4, "no route")
    assert (found.deliveries, found.attempts_made, len(box.calls)) == (5, 5, 5)
    assert await reasons(hf) == ["retry"] * 4 + ["dead"]
    last = (await hf.outbox.audits(outbox_id))[-1]
    assert (last.action, last.status, last.evidence["retry_count"]) == ("reject", "failed", 5)
    clock.advance(10**6)
    assert await hf.outbox.flush_once() == only()


@pytest.mark.clause("H-X9")
@pytest.mark.parametrize("where", ["row", "sink", "pass"])
async def test_the_limit_of_the_row_comes_before_the_sinks_and_the_passes(hf: Holdfast, where: str) -> None:
    letterbox(hf, last=ValueError("no"), max_retries=1 if where == "sink" else None)
    await hf.outbox.enqueue("x", "email", max_retries=1 if where == "row" else None)

    assert await hf.outbox.flush_once(max_retries=1 if where == "pass" else 9) == only(dead=1)


@pytest.mark.clause("X-18", "XB-9")
async def test_a_dead_letter_dies_at_once_and_lives_again_as_another(hf: Holdfast) -> None:
    box = letterbox(hf, DeadLetter("no such person"), last="m-2")
    (outbox_id,) = await send(hf)

    assert await hf.outbox.flush_once() == only(dead=1)
    found = await row(hf, outbox_id)
    assert (found.status, found.last_error, found.retry_count) == ("dead", "no such person", 0)
    again = await hf.outbox.requeue(outbox_id)
    assert await hf.outbox.flush_once() == only(success=1)

    assert (await row(hf, again)).result_ref == "m-2"
    assert [call["key"] for call in box.calls] == [box.calls[0]["key"]] * 2


@pytest.mark.clause("XB-9")
@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ConnectionRefusedError("no"), "connection_error"),
        (TimeoutError(), "connection_error"),
        (DeliveryFailed("busy", status=503), "api_error:503"),
        (KeyError("x"), "KeyError"),
    ],
)
async def test_errors_are_classified_and_tried_again(hf: Holdfast, error: Exception, kind: str) -> None:
    letterbox(hf, error)
    (outbox_id,) = await send(hf)

    assert await hf.outbox.flush_once() == only(retry=1)

    found = await row(hf, outbox_id)
    assert (found.status, found.error_kind) == ("pending", kind)
    (audit,) = await hf.outbox.audits(outbox_id)
    assert (audit.action, audit.status, audit.evidence["error_kind"]) == ("redirect", "redirected", kind)
    assert audit.evidence["next_attempt_at"] == found.next_attempt_at.isoformat()


@pytest.mark.clause("C-7")
async def test_a_receiver_may_say_when_to_come_back(hf: Holdfast, clock: FakeClock) -> None:
    letterbox(hf, DeliveryFailed("slow down", status=429, retry_after=7))
    (outbox_id,) = await send(hf)

    await hf.outbox.flush_once()

    assert (await row(hf, outbox_id)).next_attempt_at == clock.now() + timedelta(seconds=7)


@pytest.mark.clause("X-24", "XB-3", "H-X5")
async def test_a_sent_twin_spares_the_outside_call(hf: Holdfast) -> None:
    box = letterbox(hf, "m-1", last="never")
    first, second = [await hf.outbox.enqueue("same", "email") for _ in range(2)]

    assert await hf.outbox.flush_once() == only(success=1)
    assert await hf.outbox.flush_once() == only(dedup_hit=1)

    assert len(box.calls) == 1
    found = await row(hf, second)
    assert (found.status, found.result_ref, found.attempts_made) == ("sent", "m-1", 0)
    (audit,) = await hf.outbox.audits(second)
    assert (audit.reason, audit.action, audit.status) == ("outbox_flush_dedup_hit", "allow", "success")
    assert audit.evidence["original_outbox_id"] == first
    assert audit.evidence["memory_id"] == "m-1"


@pytest.mark.clause("X-23")
async def test_pending_dead_and_foreign_twins_are_no_reason_not_to_deliver(hf: Holdfast, clock: FakeClock) -> None:
    box = letterbox(hf, OSError("later"), DeadLetter("no"), "m-3")
    other = letterbox(hf, last="m-4", space="sms")
    for _ in range(3):
        await hf.outbox.enqueue("same", "email")
    await hf.outbox.enqueue("same", "sms")

    counts = [await hf.outbox.flush_once() for _ in range(3)]

    assert counts == [only(retry=1, success=1), only(dead=1), only(success=1)]
    assert (len(box.calls), len(other.calls)) == (3, 1)


@pytest.mark.clause("H-X5")
@shared
async def test_two_workers_cannot_both_pass_the_dedup(hf: Holdfast, another: Opener) -> None:
    box = Letterbox()
    workers = [hf, *[await another() for _ in range(3)]]
    for worker in workers:
        worker.deliver("email")(box)
    twins = [await hf.outbox.enqueue({"n": n % 20}, "email") for n in range(100)]

    async def drain(worker: Holdfast) -> None:
        while (await hf.outbox.report()).statuses["pending"]:
            await worker.outbox.flush_once(limit=5)

    await asyncio.gather(*(drain(worker) for worker in workers))

    assert sorted(payload["n"] for payload in box.payloads) == list(range(20))
    assert (await hf.outbox.report()).statuses == {"pending": 0, "sent": len(twins), "dead": 0}
    assert (await hf.outbox.report()).reasons == {"outbox_flush_success": 20, "outbox_flush_dedup_hit": 80}


@pytest.mark.clause("X-26", "X-27", "X-28", "XB-7")
@pytest.mark.parametrize("outcome", ["m-1", OSError("no"), DeadLetter("no")], ids=["success", "retry", "dead"])
async def test_a_lease_stolen_during_delivery_leaves_a_conflict_and_nothing_else(
    hf: Holdfast, clock: FakeClock, outcome: Any
) -> None:
    async def stolen(payload: Any) -> Any:
        clock.advance(121)
        await hf.outbox.claim_outbox("thief")
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    letterbox(hf, stolen)
    (outbox_id,) = await send(hf)

    assert await hf.outbox.flush_once("victim") == only(conflict=1)

    found = await row(hf, outbox_id)
    assert (found.status, found.locked_by, found.retry_count, found.result_ref) == ("pending", "thief", 0, None)
    (audit,) = await hf.outbox.audits(outbox_id)
    assert audit.reason == "outbox_flush_conflict"
    assert audit.evidence["intended_action"] == {"m-1": "success"}.get(str(outcome)) or audit.evidence[
        "intended_action"
    ] in ("retry", "dead")
    assert (audit.evidence["observed_status"], audit.evidence["observed_locked_by"]) == ("pending", "thief")
    assert audit.evidence["worker_id"] == "victim"


@pytest.mark.clause("H-X3", "H-X4", "X-27")
async def test_a_renewal_that_fails_stops_the_delivery(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    box = letterbox(hf)
    await send(hf, 2)
    twins = hf._store.outbox.twins

    async def slow(pairs: Any) -> Any:
        # Between the claim and the delivery somebody frees the locks by force.
        free = "UPDATE {s}outbox SET locked_by = NULL, locked_at = NULL, lease_until = NULL, claim_token_hash = NULL"
        await hf.journal.store.execute((free, ()))
        return await twins(pairs)

    monkeypatch.setattr(hf._store.outbox, "twins", slow)

    assert await hf.outbox.flush_once() == only(conflict=2)

    assert box.calls == []
    assert await reasons(hf) == ["conflict", "conflict"]


@pytest.mark.clause("X-21", "X-20", "H-X4")
@shared
async def test_heartbeats_keep_others_out_while_a_delivery_takes_its_time(database_url: str, schema: str) -> None:
    async with Holdfast(database_url, schema=schema) as hf, Holdfast(database_url, schema=schema) as other:
        stolen: list[Any] = []

        async def slow(payload: Any) -> str:
            for _ in range(20):
                await asyncio.sleep(0.1)
                stolen.extend(await other.outbox.claim_outbox("thief"))
            return "m-1"

        letterbox(hf, slow)
        (outbox_id,) = await send(hf)

        assert await hf.outbox.flush_once(lease_seconds=0.6) == only(success=1)

        assert stolen == []
        assert (await row(hf, outbox_id)).deliveries == 1


@pytest.mark.clause("X-26", "X-08")
async def test_without_heartbeats_another_takes_over_and_the_first_is_refused(hf: Holdfast, clock: FakeClock) -> None:
    held = await claimed(hf, "slow", lease_seconds=10)
    letterbox(hf, "m-2")
    clock.advance(10)

    assert await hf.outbox.flush_once("quick") == only(success=1)

    assert await hf.outbox.ack_sent(held.outbox_id, "slow", "m-1") is False
    assert (await row(hf, held.outbox_id)).result_ref == "m-2"


class TestDatabaseTrouble:
    """The database fails for one call, in the middle of a pass."""

    @pytest.fixture(autouse=True)
    def no_patience(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(outbox_rows, "PATIENCE_S", 0.0)

    @staticmethod
    def fail(hf: Holdfast, monkeypatch: pytest.MonkeyPatch, method: str, error: Exception) -> None:
        """The next call fails, and none after it."""
        seam = seam_under(hf)
        real = getattr(seam._real, method)

        async def failing(*args: Any) -> Any:
            monkeypatch.setattr(seam._real, method, real)
            raise error

        monkeypatch.setattr(seam._real, method, failing)

    TROUBLES = pytest.mark.parametrize(
        ("error", "code"),
        [(Busy("statement timeout", timed_out=True), "db_timeout"), (Busy("too many clients"), "db_error")],
        ids=["timeout", "error"],
    )

    @pytest.mark.clause("XB-8", "H-X10")
    @TROUBLES
    async def test_before_the_delivery_nothing_is_delivered(
        self, hf: Holdfast, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, error: Exception, code: str
    ) -> None:
        box = letterbox(hf, last="m-1")
        (outbox_id,) = await send(hf)
        twins = hf._store.outbox.twins

        async def first_fails(pairs: Any) -> Any:
            monkeypatch.setattr(hf._store.outbox, "twins", twins)
            self.fail(hf, monkeypatch, "fetch", error)
            return await twins(pairs)

        monkeypatch.setattr(hf._store.outbox, "twins", first_fails)

        assert await hf.outbox.flush_once("w1") == only(**{code: 1})

        assert box.calls == []
        await self._stays_ours_then_succeeds(hf, clock, outbox_id, code)

    @pytest.mark.clause("XB-8", "H-X10")
    @TROUBLES
    async def test_after_the_delivery_it_is_delivered_again_with_the_same_key(
        self, hf: Holdfast, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, error: Exception, code: str
    ) -> None:
        async def breaks(payload: Any) -> None:
            self.fail(hf, monkeypatch, "change", error)

        box = letterbox(hf, breaks, last="m-1")
        (outbox_id,) = await send(hf)

        assert await hf.outbox.flush_once("w1") == only(**{code: 1})

        await self._stays_ours_then_succeeds(hf, clock, outbox_id, code)
        assert len({call["key"] for call in box.calls}) == 1
        assert len(box.calls) == 2

    async def _stays_ours_then_succeeds(self, hf: Holdfast, clock: FakeClock, outbox_id: str, code: str) -> None:
        found = await row(hf, outbox_id)
        assert (found.status, found.locked_by, found.retry_count) == ("pending", "w1", 0)
        assert await reasons(hf) == [code]
        assert await hf.outbox.flush_once("w2") == only()
        clock.advance(120)
        assert await hf.outbox.flush_once("w2") == only(success=1)
        found = await row(hf, outbox_id)
        assert (found.status, found.deliveries, found.retry_count) == ("sent", 2, 0)

    @pytest.mark.clause("XB-8")
    @pytest.mark.parametrize("configuration", ["postgres"], indirect=True)
    async def test_a_real_lock_timeout_is_a_timeout(self, hf: Holdfast, database_url: str, schema: str) -> None:
        connection = await asyncpg.connect(database_url)
        locked = connection.transaction()

        async def locks(payload: Any) -> None:
            await locked.start()
            await connection.fetch(f'SELECT 1 FROM "{schema}".outbox FOR UPDATE')

        letterbox(hf, locks)
        await send(hf)
        try:
            assert await hf.outbox.flush_once() == only(db_timeout=1)
        finally:
            await locked.rollback()
            await connection.close()

    @pytest.mark.clause("XB-7")
    @pytest.mark.parametrize("answer", ["m-1", OSError("no"), DeadLetter("no")], ids=["ack", "retry", "dead"])
    async def test_an_audit_that_cannot_be_written_does_not_hold_up_the_row(self, hf: Holdfast, answer: Any) -> None:
        letterbox(hf, answer)
        (outbox_id,) = await send(hf)
        await hf.journal.store.execute(("ALTER TABLE {s}outbox_audits RENAME TO elsewhere", ()))

        counts = await hf.outbox.flush_once()

        await hf.journal.store.execute(("ALTER TABLE {s}elsewhere RENAME TO outbox_audits", ()))
        assert sum(counts.values()) == 1
        assert counts["outbox_flush_db_error"] == 0
        found = await row(hf, outbox_id)
        assert found.locked_by is None
        ended = found.status != "pending"
        assert (await hf.outbox.reconcile()).fixed == int(ended)
        assert len(await hf.outbox.audits(outbox_id)) == int(ended)


class TestSinks:
    async def test_rows_without_a_sink_stay_pending(self, hf: Holdfast) -> None:
        letterbox(hf)
        (outbox_id,) = await send(hf, space="nowhere")

        assert await hf.outbox.flush_once() == only()

        found = await row(hf, outbox_id)
        assert (found.status, found.locked_by) == ("pending", None)

    async def test_the_most_exact_sink_delivers(self, hf: Holdfast) -> None:
        every, some, one = (letterbox(hf, space=space) for space in ("mail:*", "mail:eu:*", "mail:eu:ann"))
        for space in ("mail:us", "mail:eu:bob", "mail:eu:ann", "mailbox"):
            await hf.outbox.enqueue(space, space)

        assert await hf.outbox.flush_once() == only(success=3)

        assert (every.payloads, some.payloads, one.payloads) == (["mail:us"], ["mail:eu:bob"], ["mail:eu:ann"])

    async def test_a_sink_takes_what_it_names_and_may_block(self, hf: Holdfast) -> None:
        seen: list[Any] = []

        @hf.deliver("a")
        def plain(payload: Any) -> None:
            seen.append(payload)

        @hf.deliver("b")
        async def some(payload: Any, *, outbox_id: str) -> dict[str, str]:
            seen.append(outbox_id)
            return {"id": outbox_id}

        @hf.deliver("c")
        async def everything(payload: Any, **extras: Any) -> object:
            seen.append(sorted(extras))
            return object

        ids = [await hf.outbox.enqueue(space, space) for space in "abc"]

        assert await hf.outbox.flush_once() == only(success=3)

        assert "a" in seen
        assert ids[1] in seen
        assert ["idempotency_key", "outbox_id", "target_space"] in seen
        assert json.loads((await row(hf, ids[1])).result_ref or "") == {"id": ids[1]}
        assert "object" in ((await row(hf, ids[2])).result_ref or "")

    @pytest.mark.parametrize("space", ["", "*", "a*", "a:*:b", "a\x00"])
    async def test_a_pattern_that_is_none_is_refused(self, hf: Holdfast, space: str) -> None:
        with pytest.raises(InvalidValue):
            hf.deliver(space)(lambda payload: None)

    async def test_one_space_has_one_sink(self, hf: Holdfast) -> None:
        letterbox(hf)

        with pytest.raises(InvalidValue, match="has a sink already"):
            letterbox(hf)

    async def test_a_sink_that_takes_too_long_is_tried_again(self, hf: Holdfast) -> None:
        async def hangs(payload: Any) -> None:
            await asyncio.sleep(60)

        letterbox(hf, hangs, timeout=0.05)
        (outbox_id,) = await send(hf)

        assert await hf.outbox.flush_once() == only(retry=1)

        assert (await row(hf, outbox_id)).error_kind == "connection_error"

    async def test_a_pass_keeps_to_the_sinks_concurrency(self, hf: Holdfast) -> None:
        running = most = 0

        async def deliver(payload: Any) -> None:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(0.01)
            running -= 1

        hf.deliver("email", concurrency=3)(deliver)
        await send(hf, 10)

        assert await hf.outbox.flush_once() == only(success=10)
        assert most == 3


def test_it_blocks_for_code_without_a_loop() -> None:
    with Holdfast(":memory:").sync as hf:
        outbox_id = hf.outbox.enqueue("x", "email")

        assert [each.outbox_id for each in hf.outbox.claim_outbox("w1")] == [outbox_id]


@pytest.mark.clause("XB-6", "H-X9", "X-29")
def test_the_defaults_are_the_documented_ones() -> None:
    def defaults(function: Any) -> dict[str, Any]:
        found = inspect.signature(function).parameters.values()
        return {each.name: each.default for each in found if each.default is not inspect.Parameter.empty}

    assert defaults(Outbox.flush_once) == {"worker_id": None, "limit": 10, "lease_seconds": 120, "max_retries": 5}
    assert defaults(Outbox.claim_outbox) == {"limit": 10, "lease_seconds": 60}
    assert defaults(OutboxRelay) | {"drain_s": None} == {
        "worker_id": None,
        "lease_seconds": 120,
        "max_retries": 5,
        "idle_max_s": 5,
        "drain_s": None,
    }
    assert defaults(calculate_backoff_with_jitter) == {"base_seconds": 60, "max_seconds": 3_600, "jitter_factor": 0.3}
    assert defaults(Webhook)["timeout"] == 30
