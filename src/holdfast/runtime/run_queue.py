"""Queue and event store as two small interfaces, for programs that should not know what stands behind them.

`RunQueue` and `RunEventStore` say what such a program may rely on; `StoredRunQueue` and `StoredRunEvents` keep them
with this runtime and its database. Another backend is another pair of classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from holdfast.errors import LeaseLost, NotFound
from holdfast.identity import check_id
from holdfast.protocol.values import whole_number
from holdfast.runtime.claims import CLAIMS_MAX
from holdfast.runtime.questions import Questions
from holdfast.runtime.records import Claim
from holdfast.runtime.sequences import SEQ_MAX


class StoredEvent(NamedTuple):
    """An event as watchers see it: its place in the run, its type and what it carries."""

    seq: int
    type: str
    payload: Any


@runtime_checkable
class RunQueue(Protocol):
    """Where runs wait for a worker."""

    async def enqueue(self, session_id: str, message: str) -> str:
        """Queue a run; answers its id once that cannot be lost."""
        ...

    async def claim(self, worker_id: str) -> Claim | None:
        """The next run that is due, this worker's alone until the lease ends; None if there is none."""
        ...

    async def renew_lease(self, run_id: str, worker_id: str) -> bool:
        """Start the lease anew; False if this worker does not hold the run, or no longer."""
        ...

    async def request_cancel(self, run_id: str) -> None:
        """Ask the run to stop. A run that is over stays as it is."""
        ...


@runtime_checkable
class RunEventStore(Protocol):
    """What runs have shown, in order."""

    async def append(self, run_id: str, type: str, payload: Any, *, expected_seq: int | None = None) -> int:
        """Add an event of a run that is held here; answers its seq.

        With `expected_seq` only after the event of that seq: a `Conflict` if there are others since, but the answer of
        the first time if what follows is this very event.
        """
        ...

    async def list_after(self, run_id: str, seq: int, limit: int) -> Sequence[StoredEvent]:
        """Up to `limit` events after a seq, in order."""
        ...


class StoredRunQueue:
    """A `RunQueue` on this runtime. It remembers the claims it gave out: their holders are known by name alone."""

    def __init__(self, runs: Questions, *, clog_id: str = "chat", queue: str | None = None) -> None:
        self._runs = runs
        self._clog_id = check_id(clog_id, "clog_id")
        self._queue = check_id(runs.queue if queue is None else queue, "queue")
        self._held: dict[str, tuple[str, Claim]] = {}

    async def enqueue(self, session_id: str, message: str) -> str:
        run = await self._runs.create_run(
            session_id=session_id, clog_id=self._clog_id, input={"text": message}, queue=self._queue, lane="session"
        )
        return run.run_id

    async def claim(self, worker_id: str) -> Claim | None:
        for claim in await self._runs.claim_next(self._queue, owner=worker_id, clogs=[self._clog_id]):
            self._remember(worker_id, claim)
            return claim
        return None

    async def renew_lease(self, run_id: str, worker_id: str) -> bool:
        owner, claim = self._held.get(run_id, ("", None))
        if claim is None or owner != worker_id:
            return False
        try:
            await self._runs.heartbeat(claim)
        except LeaseLost:
            self._held.pop(run_id, None)
            return False
        self._remember(worker_id, claim)
        return True

    async def request_cancel(self, run_id: str) -> None:
        await self._runs.cancel(run_id)

    @property
    def events(self) -> StoredRunEvents:
        """The events of these runs; who holds one may add to it."""
        return StoredRunEvents(self._runs, self)

    def _remember(self, worker_id: str, claim: Claim) -> None:
        """Nobody says here when a run is over, so of too many the one is forgotten that was renewed longest ago."""
        self._held.pop(claim.run_id, None)
        self._held[claim.run_id] = (worker_id, claim)
        if len(self._held) > CLAIMS_MAX:
            del self._held[next(iter(self._held))]

    def held(self, run_id: str) -> Claim | None:
        """The claim that was given out here for this run."""
        return self._held.get(run_id, ("", None))[1]


class StoredRunEvents:
    """A `RunEventStore` on this runtime. Every append is fenced by the claim of its run."""

    def __init__(self, runs: Questions, queue: StoredRunQueue) -> None:
        self._runs = runs
        self._queue = queue

    async def append(self, run_id: str, type: str, payload: Any, *, expected_seq: int | None = None) -> int:
        claim = self._queue.held(check_id(run_id, "run_id"))
        if claim is None:
            raise NotFound(f"nobody holds run {run_id} here; claim it first, then add to it")
        return await self._runs.emit(claim, type, payload, expected_seq=expected_seq)

    async def list_after(self, run_id: str, seq: int, limit: int) -> Sequence[StoredEvent]:
        after = whole_number(seq, "seq", 0, SEQ_MAX)
        events = self._runs.events(run_id, after, limit=limit)
        return [StoredEvent(event.seq, event.type, event.data) async for event in events]
