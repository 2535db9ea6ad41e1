"""`RunWorker`: claims what is due, runs it, and lets go of it cleanly when it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextvars import Context, copy_context
from typing import Any, Protocol

from holdfast import ambient
from holdfast.errors import HoldfastError
from holdfast.executor import Executor, TickResult, to_its_end
from holdfast.identity import check_id, new_id
from holdfast.journal.schedules import TOPIC as SCHEDULES
from holdfast.logs import subject
from holdfast.outbox import OutboxRelay
from holdfast.protocol.facts import RunCreated
from holdfast.protocol.values import whole_number
from holdfast.redaction import logger
from holdfast.runtime import Upkeep
from holdfast.runtime.chores import LOOK_S, Chores
from holdfast.runtime.claims import Taken
from holdfast.runtime.stickiness import Stickiness
from holdfast.slots import AHEAD_S, Slots

log = logger("holdfast.worker")

IDLE_FIRST_S = 0.02
IDLE_MAX_S = 1.0
EXPECT_MAX_S = 60.0
SWEEP_S = 5.0
WINDOW_S = 0.1
NEWS_S = 1.0
GIVE_UP_S = 5.0
CROWD_FIRST_S = 0.002
CROWD_DOUBLINGS = 6
CLAIM_MIN = 4
CLAIM_MAX = 100
SUSPECT_AT = 4
SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Known(Protocol):
    """The clogs whose runs this process can advance."""

    @property
    def names(self) -> tuple[str, ...]: ...


class RunWorker:
    """Many ticks at once. A slot that becomes free is filled at once; work of unknown clogs is left for others."""

    def __init__(
        self,
        runs: Upkeep,
        executor: Executor,
        registry: Known,
        relay: OutboxRelay,
        chores: Chores,
        *,
        queues: Sequence[str] = ("default",),
        concurrency: int = 64,
        lease_ms: int | None = None,
        drain_s: float = 30.0,
        sticky_ttl_s: float | None = None,
    ) -> None:
        self._runs = runs
        self._executor = executor
        self._registry = registry
        self._relay = relay
        self._chores = chores
        self.queues = tuple(check_id(queue, "queue") for queue in queues)
        many = whole_number(concurrency, "concurrency", 1, 10_000)
        self._lease_ms = runs.lease_ms if lease_ms is None else whole_number(lease_ms, "lease_ms", 1, 1 << 40)
        self._drain_s = drain_s
        # Unique for each start: a process that comes back under its old name would hold leases it knows nothing of.
        self.owner_id = f"worker-{new_id()}"
        self._sticky = None if sticky_ttl_s is None else Stickiness(runs.journal.store, self.owner_id, sticky_ttl_s)
        self._running: dict[asyncio.Task[None], str] = {}
        self._slots = Slots(
            many,
            # A session would keep to us that we then give back.
            looks_ahead=runs.journal.store.is_apart and sticky_ttl_s is None,
            patience_s=min(AHEAD_S, self._lease_ms / 4_000),
        )
        self._wake = asyncio.Event()
        self._stopping = asyncio.Event()
        self._at_once = False
        self._is_hinted = False
        self._in_vain = 0
        self._later: asyncio.TimerHandle | None = None
        self._batch = CLAIM_MAX
        self._is_sated = False
        self._suspect: str | None = None
        self._aside: set[str] = set()
        self.ticks = 0
        self._context = Context()
        """What is known where the worker runs."""

    async def run(self) -> None:
        """Work until told to stop: by `stop`, or by SIGTERM or SIGINT where nobody else in the process hears them."""
        around = subject.get()
        subject.set(self)
        self._context = copy_context()
        listener = self._runs.journal.store.listen(*(f"queue:{queue}" for queue in self.queues))
        claiming = asyncio.create_task(self._claim_for_ever())
        news = self._runs.journal.store.listen(SCHEDULES)
        relaying = asyncio.create_task(self._relay.run())
        listener.on_news = self._hear
        observer = self._runs.journal.observer
        if observer is not None:
            observer.began(self)
        self._runs.takers.append(self._take_new)
        beside = (self._sweep_for_ever(news), self._look_after())
        helpers = [claiming, *(asyncio.create_task(work) for work in beside)]
        with self._signals():
            try:
                await self._stopping.wait()
            except asyncio.CancelledError:
                self._relay.stop()
                self._at_once = True
                raise
            finally:
                self._stopping.set()
                self._runs.takers.remove(self._take_new)
                self._relay.stop()
                await self._drain(claiming)
                await self._end(relaying)
                await self._let_go()
                for helper in helpers:
                    helper.cancel()
                await asyncio.gather(*helpers, return_exceptions=True)
                listener.close()
                news.close()
                if observer is not None:
                    observer.left(self)
                subject.set(around)

    async def _end(self, relaying: asyncio.Task[None]) -> None:
        """Deliveries have had as long as ticks; their leases end by themselves where the rest failed."""
        (error,) = await asyncio.gather(relaying, return_exceptions=True)
        if isinstance(error, Exception):
            log.error("the outbox's relay was lost", exc_info=error)

    async def _let_go(self) -> None:
        """Sessions that kept to us are anybody's at once; without a database their time ends by itself."""
        if self._sticky is None:
            return
        try:
            async with asyncio.timeout(GIVE_UP_S):
                await self._sticky.let_go()
        except Exception as error:
            _complain("cannot let go of sessions", error)

    def stop(self) -> None:
        """Take nothing more; ticks have `drain_s` to end, the rest are given back. Called again: give back now."""
        if self._stopping.is_set():
            self._at_once = True
            self._relay.stop()
        self._stopping.set()
        self._wake.set()

    async def _claim_for_ever(self) -> None:
        idle_s = IDLE_FIRST_S
        while not self._stopping.is_set():
            self._wake.clear()
            self._is_sated = False
            await self._give_back(self._slots.overdue())
            # One by one, while a run may be next that should be tried alone.
            asked = min(self._room, 1 if self._aside and self._suspect is None else self._batch)
            hinted, self._is_hinted = self._is_hinted, False
            taken = await self._take(asked) if asked else []
            if taken:
                idle_s, self._in_vain = IDLE_FIRST_S, 0
            elif hinted and asked:
                self._in_vain = min(self._in_vain + 1, CROWD_DOUBLINGS)
            if asked and len(taken) == asked:
                # There may be more.
                self._batch = min(self._batch * 4, CLAIM_MAX)
                continue
            if asked:
                self._is_sated = True
                # Each that we ask for costs its id and token, given or not: an idle worker asks for few.
                self._batch = max(CLAIM_MIN, min(2 * len(taken), CLAIM_MAX))
            # Full: the next free slot wakes us. Sated: a hint, a timer of our own, or the next look.
            await self._pause(self._slots.patience(idle_s - ambient.jitter(idle_s / 5) if asked else None))
            idle_s = min(idle_s * 2, IDLE_MAX_S)

    @property
    def _room(self) -> int:
        """How many to claim. What may have ended a worker before is not held up by what is ahead of it."""
        return self._slots.free if self._aside or self._suspect else self._slots.room

    @property
    def about(self) -> dict[str, str]:
        """What lines of the log say of the worker."""
        return {"worker_id": self.owner_id}

    @property
    def slots(self) -> dict[str, int]:
        """How many ticks are in their handlers, how many wait for the disk alone, and how many more could begin."""
        return self._slots.counts

    async def _take(self, limit: int) -> list[Taken]:
        since = ambient.monotonic()
        try:
            taken = await self._runs.take(
                self.queues,
                clogs=self._registry.names,
                owner=self.owner_id,
                lease_ms=self._lease_ms,
                limit=limit,
                passed=() if self._suspect is None else sorted(self._aside),
                sticky=self._sticky is not None,
            )
        except Exception as error:
            _complain("cannot claim work", error)
            return []
        await self._keep_sessions(taken)
        begin, later = self._chosen(taken)
        # First: one that we begin on may take this process with it.
        await self._give_back(later)
        if self._stopping.is_set():
            await self._give_back(begin)
            return []
        self._slots.queue(begin, since)
        self._fill()
        return taken

    def _fill(self) -> None:
        """Begin on what was claimed, as far as there are slots."""
        if not self._stopping.is_set():
            for item, since in self._slots.turns():
                self._begin(item.claim.claim_id, self._run_one(item, since))

    async def _keep_sessions(self, taken: Sequence[Taken]) -> None:
        """Sessions that come here come here again. A preference that fails to be written is no reason to wait."""
        if self._sticky is None or not taken:
            return
        try:
            await self._sticky.keep([item.claim.run_id for item in taken])
        except Exception as error:
            log.warning("cannot keep sessions here: %s", error, exc_info=not isinstance(error, HoldfastError))

    def _take_new(self, run_id: str, created: RunCreated) -> bool:
        """Take a run that is just being created here, as the claim loop would do when it hears of it; only sooner.

        Not while others may be waiting: a new run does not overtake them.
        """
        if not self._is_sated or self._wake.is_set() or self._slots.free <= 0 or self._stopping.is_set():
            return False
        if self._sticky is not None:
            # Its session may keep to another worker, which only a claim finds out.
            return False
        if created.queue not in self.queues or created.clog_id not in self._registry.names:
            return False
        since = ambient.monotonic()
        claim_id = new_id()
        taking = self._runs.take_new(run_id, created, claim_id=claim_id, owner=self.owner_id, lease_ms=self._lease_ms)
        self._begin(claim_id, self._run_new(run_id, claim_id, taking, since))
        return True

    def _begin(self, claim_id: str, running: Coroutine[Any, Any, None]) -> None:
        self._slots.begin(claim_id)
        # In our own context: a run may be begun where it is created, in a request or in the tool of another run, and
        # what is known there is none of its business.
        task = asyncio.create_task(running, context=self._context.copy())
        self._running[task] = claim_id
        task.add_done_callback(self._ended, context=self._context)

    async def _run_new(
        self, run_id: str, claim_id: str, taking: Coroutine[Any, Any, Taken | None], since: float
    ) -> None:
        try:
            taken = await to_its_end(taking)
        except Exception as error:
            # Its creator is told as well. If the run is there after all, its lease ends or the next look finds it.
            _complain(f"cannot take run {run_id} as it is created", error)
            taken = None
        if taken is not None and not self._stopping.is_set():
            await self._run_one(taken, since)
            return
        self._slots.handled(claim_id)
        await self._give_back([taken] if taken else [])

    def _chosen(self, taken: Sequence[Taken]) -> tuple[list[Taken], list[Taken]]:
        """What to begin on now, and what later.

        One that was lost with its worker again and again may be what ends them, or may only have been beside it. Those
        are tried one at a time, so that the one that does it meets its limit alone.
        """
        begin: list[Taken] = []
        later: list[Taken] = []
        if self._suspect is None and not taken:
            self._aside.clear()
        for item in taken:
            if not _is_suspect(item):
                begin.append(item)
            elif self._suspect is None:
                self._suspect = item.claim.claim_id
                self._aside.discard(item.claim.run_id)
                begin.append(item)
            else:
                self._aside.add(item.claim.run_id)
                later.append(item)
        return begin, later

    async def _give_back(self, taken: Sequence[Taken]) -> None:
        """Nobody has begun on these. Where that fails, their leases end by themselves."""
        for item in taken:
            self._forget(item.claim.claim_id)
        await asyncio.gather(*(self._runs.release(item.claim) for item in taken), return_exceptions=True)

    def _forget(self, claim_id: str) -> None:
        """Whatever it was suspected of, it is not here any more."""
        if self._suspect == claim_id:
            self._suspect = None

    async def _run_one(self, taken: Taken, since: float) -> None:
        """One tick; whatever happens to it is no reason for the others to stop."""
        claim_id = taken.claim.claim_id
        try:
            result = await self._executor.run(
                taken, lease_us=self._lease_ms * 1_000, since=since, on_handled=self._handled
            )
        except asyncio.CancelledError:
            return
        except Exception:
            # Its lease ends and it is tried again, here or elsewhere, until its limit.
            log.exception("tick %s of run %s was lost", taken.claim.tick_id, taken.claim.run_id, extra=taken.about)
            return
        finally:
            self._slots.handled(claim_id)
            self._forget(claim_id)
        if result is None:
            told = (taken.claim.tick_id, taken.claim.run_id)
            log.warning("tick %s of run %s lost its lease", *told, extra=taken.about)
            return
        self.ticks += 1
        self._expect(result)

    def _expect(self, result: TickResult) -> None:
        """A run of ours that is due soon is not left to the next look."""
        if result.due_in_s is not None and result.due_in_s < EXPECT_MAX_S:
            asyncio.get_running_loop().call_later(result.due_in_s, self._wake.set)

    def _handled(self, claim_id: str) -> None:
        self._slots.handled(claim_id)
        self._has_room()

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._running[task]
        self._slots.end()
        self._has_room()

    def _has_room(self) -> None:
        """A slot is free: fill it, and look for more, unless the last look found less than there was room for."""
        self._fill()
        if not self._is_sated or self._aside or self._stopping.is_set():
            self._wake.set()

    async def _pause(self, seconds: float | None) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()

    def _hear(self) -> None:
        """News of work: look at once; later, if others were faster the last times."""
        if not self._in_vain:
            self._look()
        elif self._later is None:
            # A fleet that runs for every piece of news would do little else. What is heard meanwhile is one look.
            delay_s = ambient.jitter(CROWD_FIRST_S * 2**self._in_vain)
            self._later = asyncio.get_running_loop().call_later(delay_s, self._look)

    def _look(self) -> None:
        self._later = None
        self._is_hinted = True
        self._wake.set()

    async def _sweep_for_ever(self, news: _Listener) -> None:
        """What a crash left between two commits is found here, for ever, not at start-up; so is what is scheduled."""
        while not self._stopping.is_set():
            if await news.wait(await self._sweep()):
                # Perhaps a window that comes sooner than we knew. Changes that come in a row are one piece of news.
                await asyncio.sleep(NEWS_S)

    async def _sweep(self) -> float:
        """Sweep once; answer how long to wait before the next time."""
        delay_s = SWEEP_S + ambient.jitter(SWEEP_S / 2)
        try:
            found, window_us = await self._runs.journal.sweep_and_look()
        except Exception as error:
            _complain("cannot sweep", error)
            return delay_s
        if found:
            self._wake.set()
        if window_us is None:
            return delay_s
        # A little apart, since everybody waits for the same instant and one of us is enough.
        return min(delay_s, window_us / 1_000_000 + ambient.jitter(WINDOW_S))

    async def _look_after(self) -> None:
        while not self._stopping.is_set():
            try:
                delay_s = await self._chores.turn()
            except Exception as error:
                _complain("cannot look after the database", error)
                delay_s = LOOK_S
            await asyncio.sleep(delay_s)

    async def _drain(self, claiming: asyncio.Task[None]) -> None:
        """Let ticks end, then give back the claims of those that did not: claimable at once, nothing counted."""
        deadline = ambient.monotonic() + self._drain_s
        giving_back = asyncio.create_task(self._give_back(self._slots.let_go()))
        while self._running and not self._at_once and (left := deadline - ambient.monotonic()) > 0:
            self._wake.clear()
            await self._pause(left)
        for task, claim_id in self._running.items():
            # One that only waits for the disk has nothing to give back.
            if self._slots.is_handling(claim_id):
                task.cancel()
        # A claim on its way is given back too. All this is a courtesy: without a database their leases end it.
        await asyncio.wait([claiming, giving_back, *self._running], timeout=GIVE_UP_S)
        giving_back.cancel()

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Stop on SIGTERM and SIGINT while we run, unless someone else in this process already waits for them."""
        is_main = threading.current_thread() is threading.main_thread()
        if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
            yield
            return
        with hearing_signals(self.stop):
            yield


@contextlib.contextmanager
def hearing_signals(tell: Callable[[], None]) -> Iterator[None]:
    """Be told of SIGTERM and SIGINT, for as long as this lasts. Only a main thread can hear them."""
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in SIGNALS}
    for number in SIGNALS:
        loop.add_signal_handler(number, tell)
    try:
        yield
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)


def _complain(what: str, error: Exception) -> None:
    """A database that is away is said in a line; anything else is somebody's mistake, and shown whole."""
    log.warning("%s, trying again: %s", what, error, exc_info=not isinstance(error, HoldfastError))


def _is_suspect(taken: Taken) -> bool:
    """It has one chance left after this, or none, or was lost often enough."""
    work = taken.state.work[taken.claim.runnable_key]
    return work.deliveries >= max(2, min(SUSPECT_AT, taken.state.max_deliveries - 1))


class _Listener(Protocol):
    async def wait(self, timeout: float) -> bool: ...
