"""One row, from claim to its end: dedup → renew → deliver → renew → ack | retry | dead. Every end leaves an audit.

A delivery may happen more than once: its process may die before the ack. The receiver is given the same key each time.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Self

from holdfast.errors import DatabaseError, DeadLetter
from holdfast.moments import from_us
from holdfast.outbox.leases import Leases
from holdfast.outbox.records import (
    CONFLICT,
    DB_ERROR,
    DB_TIMEOUT,
    DEAD,
    DEDUP_HIT,
    RETRY,
    SUCCESS,
    OutboxRow,
    new_audit,
)
from holdfast.outbox.sinks import Call, Sink, delivery_key, error_kind, retry_after_s
from holdfast.protocol.values import canonical, clean
from holdfast.redaction import logger

log = logger("holdfast.outbox")

MAX_RETRIES = 5
SOURCE = "outbox_worker"
DELIVER = "deliver"
_DEADEST_S = 1 << 31


class Trip(NamedTuple):
    """What the rows of one claim have in common."""

    worker_id: str
    lease_seconds: float
    max_retries: int
    correlation_id: str


class Verdict(NamedTuple):
    """What the sink's answer means for the row."""

    code: str
    status: str
    result_ref: str | None = None
    error: str | None = None
    error_kind: str | None = None
    retry_in_s: float | None = None


class Beats:
    """Keeps the leases of rows alive while their sinks take their time: all of them at once, every third of a lease."""

    def __init__(self, leases: Leases, lease_seconds: float) -> None:
        self._leases = leases
        self._every_s = max(lease_seconds / 3, 0.05)
        # By token too: a row that we lost and took again is held twice for a while.
        self._held: dict[tuple[str, str | None], tuple[OutboxRow, str]] = {}
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._beat_for_ever())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    @contextlib.contextmanager
    def holding(self, row: OutboxRow, worker_id: str) -> Iterator[None]:
        self._held[row.outbox_id, row.token] = (row, worker_id)
        try:
            yield
        finally:
            del self._held[row.outbox_id, row.token]

    async def _beat_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            beats = [self._leases.renew(row.outbox_id, worker_id, row.token) for row, worker_id in self._held.values()]
            for error in await asyncio.gather(*beats, return_exceptions=True):
                # The next beat may come through; if none does, the fence refuses what the delivery brings back.
                if isinstance(error, BaseException):
                    log.warning("an outbox lease could not be renewed: %s", error)


class Deliveries:
    """Delivers claimed rows through their sinks."""

    def __init__(self, leases: Leases, call: Call) -> None:
        self._leases = leases
        self._call = call

    async def begin(self, rows: Sequence[OutboxRow], trip: Trip) -> tuple[list[Attempt], list[str]]:
        """Dedup and renew all rows of a claim; answer those that may be delivered, and the ends that others met."""
        attempts = [Attempt(self._leases, row, trip, number) for number, row in enumerate(rows, start=1)]
        try:
            originals = await self._leases.originals(rows)
            fresh = [attempt for attempt, original in zip(attempts, originals, strict=True) if original is None]
            renewed = await self._leases.renew_to_begin([attempt.row for attempt in fresh], trip.worker_id)
        except DatabaseError as error:
            return [], self._noted(await _all(attempt.database_trouble(error, DELIVER) for attempt in attempts))
        ready = [attempt for attempt, is_ours in zip(fresh, renewed, strict=True) if is_ours]
        ends = [attempt.repeat(original) for attempt, original in zip(attempts, originals, strict=True) if original]
        ends += [attempt.conflict(DELIVER) for attempt, is_ours in zip(fresh, renewed, strict=True) if not is_ours]
        return ready, self._noted(await _all(ends))

    async def finish(self, attempt: Attempt, sink: Sink, beats: Beats) -> str:
        """Deliver, and see the row through to its end; answer the result code. Only a cancellation is raised."""
        with beats.holding(attempt.row, attempt.trip.worker_id):
            verdict = await self._deliver(attempt.row, sink, attempt.trip)
        return self._noted([await attempt.end(verdict)])[0]

    def _noted(self, codes: list[str]) -> list[str]:
        """The same, told to whoever counts."""
        if (observer := self._leases.observer) is not None:
            for code in codes:
                observer.delivered(code)
        return codes

    async def _deliver(self, row: OutboxRow, sink: Sink, trip: Trip) -> Verdict:
        """Whatever a sink does is a verdict on its row, and no reason for the others to stop."""
        try:
            result = await sink.deliver(
                self._call,
                row.payload,
                idempotency_key=delivery_key(row.target_space, row.payload_sha),
                target_space=row.target_space,
                outbox_id=row.outbox_id,
            )
            return Verdict(SUCCESS, "sent", result_ref=self._reference(result))
        except DeadLetter as error:
            return Verdict(DEAD, "dead", error=self._leases.for_people(error), error_kind=error.code)
        except Exception as error:
            return _failed(row, sink, trip, error, self._leases.for_people(error))

    def _reference(self, result: Any) -> str | None:
        """What a sink answered, as text; what cannot be kept is no reason to deliver again."""
        if result is None:
            return None
        if isinstance(result, str):
            return str(clean(result)[0])
        try:
            return canonical(clean(result)[0])
        except ValueError:
            return self._leases.for_people(repr(result))


def _failed(row: OutboxRow, sink: Sink, trip: Trip, error: Exception, told_as: str) -> Verdict:
    """Again later, unless this try was the last. A limit of the row's own comes first, then the sink's."""
    limits = (row.max_retries, sink.max_retries, trip.max_retries)
    limit = next(limit for limit in limits if limit is not None)
    told = Verdict(DEAD, "dead", error=told_as, error_kind=error_kind(error))
    count = row.retry_count + 1
    if count >= limit:
        return told
    after_s = retry_after_s(error)
    delay_s = sink.backoff_s(count) if after_s is None else min(after_s, _DEADEST_S)
    return told._replace(code=RETRY, status="pending", retry_in_s=delay_s)


class Attempt:
    """One try of one row, and the words about it. A database that fails is an end like others."""

    def __init__(self, leases: Leases, row: OutboxRow, trip: Trip, number: int) -> None:
        self._leases = leases
        self.row = row
        self.trip = trip
        # Asking for chance costs more than all else here; one trip's is enough for its rows.
        self._attempt_id = f"{trip.correlation_id}-{number}"

    async def repeat(self, original: OutboxRow) -> str:
        """It was sent before: it ends as that did."""
        verdict = Verdict(DEDUP_HIT, "sent", result_ref=original.result_ref)
        try:
            return await self.settle(verdict, original_outbox_id=original.outbox_id)
        except DatabaseError as error:
            return await self.database_trouble(error, _action(DEDUP_HIT))

    async def end(self, verdict: Verdict) -> str:
        """Renew once more, so that the end is not refused for a lease that ran out meanwhile; then settle."""
        intended = _action(verdict.code)
        try:
            if not await self._leases.renew(self.row.outbox_id, self.trip.worker_id, self.row.token):
                return await self.conflict(intended)
            return await self.settle(verdict)
        except DatabaseError as error:
            # The row stays ours until the lease ends, uncounted; whoever takes it next finds out what is true.
            return await self.database_trouble(error, intended)

    async def settle(self, verdict: Verdict, **more: Any) -> str:
        """Let go of the row as the verdict says, with its audit in the same commit; or find that it is lost."""
        due_at = None if verdict.retry_in_s is None else await self._leases.now() + round(verdict.retry_in_s * 1e6)
        if due_at is not None:
            more["next_attempt_at"] = from_us(due_at).isoformat()
        counted = 0 if verdict.status == "sent" else 1
        evidence = self._evidence(_action(verdict.code), verdict, counted, **more)
        settled = await self._leases.settle(
            self.row.outbox_id,
            self.trip.worker_id,
            self.row.token,
            status=verdict.status,
            counted=int(verdict.code == RETRY),
            next_attempt_at=due_at,
            error=verdict.error,
            error_kind=verdict.error_kind,
            result_ref=verdict.result_ref,
            audit=new_audit(verdict.code, evidence, self._attempt_id),
        )
        return verdict.code if settled else await self.conflict(_action(verdict.code))

    async def conflict(self, intended: str) -> str:
        """The row is no longer ours: say what we saw, and leave it alone."""
        try:
            seen = await self._leases.get(self.row.outbox_id)
            evidence = self._evidence(
                intended,
                observed_status=seen.status if seen else None,
                observed_locked_by=seen.locked_by if seen else None,
                observed_last_error=seen.last_error if seen else None,
            )
            await self._leases.note(self.row.outbox_id, new_audit(CONFLICT, evidence))
        except DatabaseError as error:
            log.warning("a conflict over row %s could not be noted: %s", self.row.outbox_id, error)
        return CONFLICT

    async def database_trouble(self, error: DatabaseError, intended: str) -> str:
        code = DB_TIMEOUT if error.code == "database_timeout" else DB_ERROR
        log.warning("the database failed while row %s was delivered: %s", self.row.outbox_id, error)
        try:
            audit = new_audit(
                code, self._evidence(intended, error=self._leases.for_people(error), error_kind=error.code)
            )
            await self._leases.note(self.row.outbox_id, audit)
        except DatabaseError:
            log.warning("nor can it keep an audit of that (attempt %s)", self._attempt_id)
        return code

    def _evidence(self, intended: str, verdict: Verdict | None = None, counted: int = 0, **more: Any) -> dict[str, Any]:
        told = {} if verdict is None or verdict.error is None else {"error": verdict.error}
        kind = {} if verdict is None or verdict.error_kind is None else {"error_kind": verdict.error_kind}
        return {
            "outbox_id": self.row.outbox_id,
            "source": SOURCE,
            "correlation_id": self.trip.correlation_id,
            "payload_sha": self.row.payload_sha,
            "target_space": self.row.target_space,
            "memory_id": verdict.result_ref if verdict else None,
            "retry_count": self.row.retry_count + counted,
            "worker_id": self.trip.worker_id,
            "attempt_id": self._attempt_id,
            "intended_action": intended,
            **told,
            **kind,
            **more,
        }


async def _all(ends: Iterable[Awaitable[str]]) -> list[str]:
    return list(await asyncio.gather(*ends))


def _action(code: str) -> str:
    return code.removeprefix("outbox_flush_")
