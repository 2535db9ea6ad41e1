"""`OutboxRelay`: claims what is due for the sinks of this process and delivers it, until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Sequence

from holdfast import ambient
from holdfast.errors import HoldfastError
from holdfast.identity import new_id
from holdfast.outbox.deliveries import MAX_RETRIES, Attempt, Beats, Deliveries, Trip
from holdfast.outbox.leases import Leases
from holdfast.outbox.records import RESULT_CODES, OutboxRow
from holdfast.outbox.sinks import Sink, Sinks
from holdfast.redaction import logger
from holdfast.store.hints import Listener

log = logger("holdfast.outbox")

LEASE_S = 120.0
BATCH_MAX = 500
IDLE_FIRST_S = 0.05
IDLE_MAX_S = 5.0
GATHER_S = 0.005
RATE_MIN_S = 0.01
GIVE_UP_S = 5.0


class OutboxRelay:
    """Many deliveries at once, each sink within its own limits. Rows that no sink here takes are left for others."""

    def __init__(
        self,
        leases: Leases,
        sinks: Sinks,
        deliveries: Deliveries,
        *,
        worker_id: str | None = None,
        lease_seconds: float = LEASE_S,
        max_retries: int = MAX_RETRIES,
        drain_s: float = 30.0,
        idle_max_s: float = IDLE_MAX_S,
    ) -> None:
        self._leases = leases
        self._sinks = sinks
        self._deliveries = deliveries
        self.worker_id = worker_id or new_worker_id()
        self._lease_seconds = lease_seconds
        self._max_retries = max_retries
        self._drain_s = drain_s
        self._idle_max_s = idle_max_s
        self._idle_s = IDLE_FIRST_S
        self._running: dict[asyncio.Task[None], OutboxRow] = {}
        self._wake = asyncio.Event()
        self._stopping = asyncio.Event()
        self._at_once = False
        self.counts = dict.fromkeys(RESULT_CODES, 0)

    async def run(self) -> None:
        """Deliver until told to stop; then let deliveries end, and give back the rows of those that do not."""
        listener = self._leases.listen()
        hearing = asyncio.create_task(self._hear(listener))
        try:
            async with Beats(self._leases, self._lease_seconds) as beats:
                try:
                    while not self._stopping.is_set():
                        self._wake.clear()
                        await self._pause(await self._turn(beats))
                except asyncio.CancelledError:
                    self._at_once = True
                    raise
                finally:
                    await self._drain()
        finally:
            hearing.cancel()
            await asyncio.gather(hearing, return_exceptions=True)
            listener.close()

    def stop(self) -> None:
        """Take nothing more; deliveries have `drain_s` to end. Called again: give back what is left now."""
        if self._stopping.is_set():
            self._at_once = True
        self._stopping.set()
        self._wake.set()

    async def _turn(self, beats: Beats) -> float | None:
        """Claim for every sink that can take more; answer how long to wait before the next look."""
        # A slot that becomes free wakes us; a rate does not.
        opens = [seconds for sink in self._sinks if (seconds := sink.opens_in_s) is not None]
        soonest_s = max(min(opens, default=self._idle_max_s), RATE_MIN_S)
        free = [sink for sink in self._sinks if sink.free]
        if not free:
            return soonest_s
        if self._running and not any(sink.is_half_free for sink in free):
            # A few slots more for the same question.
            await asyncio.sleep(GATHER_S)
        try:
            found = await self._claim_for(free, beats)
        except HoldfastError as error:
            log.warning("cannot claim outbox rows, trying again: %s", error)
            return self._idle_max_s
        if found:
            self._idle_s = IDLE_FIRST_S
            return 0.0
        idle_s, self._idle_s = self._idle_s, min(self._idle_s * 2, self._idle_max_s)
        return min(idle_s - ambient.jitter(idle_s / 5), soonest_s)

    async def _claim_for(self, free: list[Sink], beats: Beats) -> int:
        """An idle relay asks one question, whatever the number of sinks."""
        found = 0
        if len(free) > 1 and self._idle_s > IDLE_FIRST_S:
            found = len(rows := await self._claim(None, 1))
            if not rows:
                return 0
            await self._begin(rows, beats)
        for sink in free:
            # Asked again: the row that was found first may be its own.
            rows = await self._claim(sink, min(sink.free, BATCH_MAX))
            found += len(rows)
            await self._begin(rows, beats)
        return found

    async def _claim(self, sink: Sink | None, limit: int) -> list[OutboxRow]:
        terms = self._sinks.all_terms() if sink is None else self._sinks.terms(sink)
        return await self._leases.claim(self.worker_id, limit, self._lease_seconds, terms)

    async def _begin(self, rows: list[OutboxRow], beats: Beats) -> None:
        if not rows:
            return
        trip = Trip(self.worker_id, self._lease_seconds, self._max_retries, new_id())
        try:
            ready, ends = await self._deliveries.begin(rows, trip)
        except asyncio.CancelledError:
            await self._release(rows)
            raise
        for code in ends:
            self.counts[code] += 1
        for attempt in ready:
            sink = self._sinks.of(attempt.row.target_space)
            sink.take()
            task = asyncio.create_task(self._finish(attempt, sink, beats))
            self._running[task] = attempt.row
            task.add_done_callback(functools.partial(self._ended, sink))

    async def _finish(self, attempt: Attempt, sink: Sink, beats: Beats) -> None:
        try:
            self.counts[await self._deliveries.finish(attempt, sink, beats)] += 1
        except Exception:
            # Its lease ends, and it is tried again.
            log.exception("outbox row %s was lost", attempt.row.outbox_id)
        # Only what was cut short is given back.
        current = asyncio.current_task()
        assert current is not None
        self._running.pop(current, None)

    def _ended(self, sink: Sink, _: object) -> None:
        sink.done()
        self._wake.set()

    async def _pause(self, seconds: float | None) -> None:
        if seconds == 0.0:
            await asyncio.sleep(0)
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()

    async def _hear(self, listener: Listener) -> None:
        while True:
            if await listener.wait(60.0):
                self._idle_s = IDLE_FIRST_S
                self._wake.set()

    async def _drain(self) -> None:
        deadline = ambient.monotonic() + self._drain_s
        while self._running and not self._at_once and (left := deadline - ambient.monotonic()) > 0:
            self._wake.clear()
            await self._pause(left)
        cut = dict(self._running)
        for task in cut:
            task.cancel()
        if cut:
            await asyncio.wait(cut, timeout=GIVE_UP_S)
        await self._release([row for task, row in cut.items() if task in self._running])

    async def _release(self, rows: Sequence[OutboxRow]) -> None:
        """Pending and free again, nothing counted. They may have been delivered; the next try carries the same key.

        A courtesy: without a database their leases end by themselves.
        """
        giving = [self._leases.settle(row.outbox_id, self.worker_id, row.token, status="pending") for row in rows]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GIVE_UP_S):
                await asyncio.gather(*giving, return_exceptions=True)


async def flush_once(leases: Leases, sinks: Sinks, deliveries: Deliveries, trip: Trip, limit: int) -> dict[str, int]:
    """Claim once and see every claimed row through; answer how many met each end."""
    counts = dict.fromkeys(RESULT_CODES, 0)
    if not sinks:
        return counts
    rows = await leases.claim(trip.worker_id, limit, trip.lease_seconds, sinks.all_terms())
    ready, ends = await deliveries.begin(rows, trip)
    async with Beats(leases, trip.lease_seconds) as beats, asyncio.TaskGroup() as tasks:
        handled = [
            tasks.create_task(deliveries.finish(attempt, sinks.of(attempt.row.target_space), beats))
            for attempt in ready
        ]
    for code in (*ends, *(task.result() for task in handled)):
        counts[code] += 1
    return counts


def new_worker_id() -> str:
    """Unique for each start, so that a process never meets leases of its former self."""
    return f"worker-{ambient.random_bits(32):08x}"
