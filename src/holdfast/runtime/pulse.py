"""The pulse: one thread that keeps every claim of this process alive, where no busy handler can hold it up.

It beats for all claims in one statement, every third of a lease. It also carries bad news: a lease that is lost and a
cancel that someone asked for reach the event loop of the holder within moments.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import Any

from holdfast import ambient
from holdfast.errors import LeaseLost
from holdfast.journal.observing import Observer
from holdfast.protocol.state import RunState
from holdfast.redaction import logger
from holdfast.store import Beat, Beaten, Store
from holdfast.store.types import Rejected

log = logger("holdfast.pulse")

CANCEL_POLL_S = 0.75
MOURN_S = 0.2
BEATS_MAX = 500
IDLE_S = 3_600.0


class Hold:
    """A claim of this process, with a deadline of its own clock after which no effect may start.

    The deadline is counted from before the claim was asked for, so it is never later than the lease.
    """

    def __init__(self, beat: Beat, lease_us: int, since: float, *, every_s: float | None = None) -> None:
        self.beat = beat
        self.lease_us = lease_us
        self.every_s = lease_us / 3e6 if every_s is None else every_s
        self.renewed(since)
        self.lost = False
        self.cancel_requested = False
        self.holder: asyncio.Task[Any] | None = None
        """What is cancelled when the claim is lost, or someone wants the run to stop."""
        self._loop = asyncio.get_running_loop()

    def check(self) -> None:
        """Raise `LeaseLost` if another worker may have the claim by now."""
        if self.lost or ambient.monotonic() >= self.deadline:
            text = f"the lease on run {self.beat.run_id} has ended; drop the work, another worker has it or will"
            raise LeaseLost(text, code="expired_claim")

    def renewed(self, since: float) -> None:
        self.deadline = since + self.lease_us / 1e6
        self.next_beat = since + self.every_s

    def interrupt(self) -> None:
        """Stop the holder, if there is a reason to."""
        if self.holder is not None and (self.lost or self.cancel_requested):
            self.holder.cancel()

    def tell(self) -> None:
        """Wake the holder in its own loop; called from the pulse's thread."""
        with contextlib.suppress(RuntimeError):
            # A loop that is closed has nobody left to wake.
            self._loop.call_soon_threadsafe(self.interrupt)


class Pulse:
    """Starts its thread with the first claim and ends it when it is closed."""

    def __init__(self, beside: Callable[[], Store[RunState]]) -> None:
        self._beside = beside
        self._holds: dict[str, Hold] = {}
        self._changed = threading.Lock()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._beating: asyncio.Task[None] | None = None
        self._wake: asyncio.Event | None = None
        self._closing = False
        self._next_round = 0.0
        self._next_poll = 0.0
        self.observer: Observer | None = None
        """Who is told, in this thread, how late beats are."""

    def keep(self, hold: Hold) -> None:
        with self._changed:
            self._holds[hold.beat.claim_id] = hold
            is_late = hold.next_beat < self._next_round
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="holdfast-pulse", daemon=True)
                self._thread.start()
        if is_late:
            # Only then: waking a thread costs as much as a short tick.
            self._stir()

    def drop(self, hold: Hold) -> None:
        with self._changed:
            self._holds.pop(hold.beat.claim_id, None)

    async def close(self) -> None:
        """End the thread. Claims that are still held end with their leases."""
        self._closing = True
        thread, self._thread = self._thread, None
        if thread is not None:
            beating = self._beating
            if beating is not None:
                self._call(beating.cancel)
            await asyncio.to_thread(thread.join)
        self._closing = False

    def _stir(self) -> None:
        wake = self._wake
        if wake is not None:
            self._call(wake.set)

    def _call(self, function: Callable[[], object]) -> None:
        """Have it called in the pulse's own thread, if that is there."""
        loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(function)

    def _run(self) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            asyncio.run(self._live())

    async def _live(self) -> None:
        """Beat and mourn, each in its own time: a database that does not answer must not hold up the bad news."""
        self._wake = asyncio.Event()
        self._beating = asyncio.current_task()
        self._loop = asyncio.get_running_loop()
        mourning = asyncio.create_task(self._mourn_for_ever())
        try:
            await self._beat_for_ever(self._wake)
        finally:
            self._loop = self._beating = self._wake = None
            mourning.cancel()

    async def _beat_for_ever(self, wake: asyncio.Event) -> None:
        store: Store[RunState] | None = None
        try:
            while not self._closing:
                wake.clear()
                store = store or await self._opened()
                pause = await self._round(store)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await wake.wait()
        finally:
            if store is not None:
                await store.close()

    async def _opened(self) -> Store[RunState] | None:
        """A store for this thread, or None while the database is away."""
        store = self._beside()
        try:
            await store.open(migrate=False, listen=False)
        except Exception as error:
            log.warning("cannot keep claims alive, trying again: %s", error)
            return None
        return store

    async def _round(self, store: Store[RunState] | None) -> float:
        """Beat where it is time, look for cancels; answer how long nothing needs to be done."""
        holds = self._held()
        now = ambient.monotonic()
        # Paced by the clock, not by how often claims come: what a claim finds is its own news.
        polls = bool(holds) and now >= self._next_poll
        if polls:
            self._next_poll = now + CANCEL_POLL_S
        if holds and store is not None:
            try:
                if any(hold.next_beat <= now for hold in holds):
                    # Those that are due soon come along, so that claims of all ages soon beat together.
                    await self._beat_all(store, [hold for hold in holds if hold.next_beat - hold.every_s / 2 <= now])
                if polls:
                    await self._look_for_cancels(store, [hold for hold in holds if not hold.cancel_requested])
            except Exception as error:
                # Without this thread every claim would be lost, so it outlives whatever happens to a round.
                log.warning("cannot keep claims alive, trying again: %s", error)
        return self._until_next_round()

    def _until_next_round(self) -> float:
        with self._changed:
            # Under the lock: a claim that comes now is either seen here, or sees when we will look again.
            now = ambient.monotonic()
            beats = [hold.next_beat for hold in self._holds.values() if not hold.lost]
            pause = max(0.01, min([self._next_poll - now, *(beat - now for beat in beats)])) if beats else IDLE_S
            self._next_round = now + pause
            return pause

    async def _beat_all(self, store: Store[RunState], due: Sequence[Hold]) -> None:
        for start in range(0, len(due), BEATS_MAX):
            some = due[start : start + BEATS_MAX]
            try:
                await self._beat(store, some)
            except Rejected:
                # One that the database will not have must not cost the others their leases.
                for hold in some:
                    with contextlib.suppress(Rejected):
                        await self._beat_alone(store, hold)

    def _held(self) -> list[Hold]:
        with self._changed:
            return [hold for hold in self._holds.values() if not hold.lost]

    async def _beat(self, store: Store[RunState], due: Sequence[Hold]) -> None:
        for lease_us in {hold.lease_us for hold in due}:
            together = [hold for hold in due if hold.lease_us == lease_us]
            since = ambient.monotonic()
            answers = {beaten.claim_id: beaten for beaten in await self._ask(store, together, lease_us)}
            if self.observer is not None:
                self.observer.beat(max(0.0, ambient.monotonic() - min(hold.next_beat for hold in together)))
            for hold in together:
                beaten = answers.get(hold.beat.claim_id)
                if beaten is not None:
                    self._extend(hold, beaten, since)
                else:
                    await self._beat_alone(store, hold)

    async def _beat_alone(self, store: Store[RunState], hold: Hold) -> None:
        """Not extended among many: it is lost, or its run was being written that very moment."""
        since = ambient.monotonic()
        answers = await self._ask(store, [hold], hold.lease_us)
        if answers:
            self._extend(hold, answers[0], since)
        elif hold.beat.claim_id in self._holds:
            hold.lost = True
            hold.tell()

    async def _ask(self, store: Store[RunState], holds: Sequence[Hold], lease_us: int) -> list[Beaten]:
        return await store.heartbeat([hold.beat for hold in holds], lease_us)

    def _extend(self, hold: Hold, beaten: Beaten, since: float) -> None:
        hold.renewed(since)
        if beaten.cancel_requested_at is not None:
            self._cancel(hold)

    async def _look_for_cancels(self, store: Store[RunState], holds: Sequence[Hold]) -> None:
        by_run: dict[str, list[Hold]] = {}
        for hold in holds:
            by_run.setdefault(hold.beat.run_id, []).append(hold)
        for run_id in await store.cancelled_among(list(by_run)):
            for hold in by_run[run_id]:
                self._cancel(hold)

    def _cancel(self, hold: Hold) -> None:
        if not hold.cancel_requested:
            hold.cancel_requested = True
            hold.tell()

    async def _mourn_for_ever(self) -> None:
        """Leases end by our own clock, whatever the database would say if it answered."""
        while True:
            now = ambient.monotonic()
            for hold in self._held():
                if now >= hold.deadline:
                    hold.lost = True
                    hold.tell()
            nearest = min((hold.deadline for hold in self._held()), default=now + MOURN_S)
            await asyncio.sleep(max(0.001, min(MOURN_S, nearest - now)))
