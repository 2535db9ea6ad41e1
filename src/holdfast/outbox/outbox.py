"""`Outbox`: what callers reach as `hf.outbox`, the protocol and the parts that use it in one object."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Self, TypeVar

from holdfast.identity import new_id
from holdfast.journal import Journal
from holdfast.outbox import reconciling
from holdfast.outbox.deliveries import MAX_RETRIES, Deliveries, Trip
from holdfast.outbox.leases import RETRIES_MAX, Leases
from holdfast.outbox.reconciling import STALE_S, WINDOW_S
from holdfast.outbox.records import OutboxReport, ReconcileReport
from holdfast.outbox.relay import LEASE_S, OutboxRelay, flush_once, new_worker_id
from holdfast.outbox.sinks import Call, Deliver, Sink, Sinks
from holdfast.protocol.values import whole_number

D = TypeVar("D", bound=Deliver)


class Outbox(Leases):
    """The outbox of one database. Its sinks are those of the process, whoever asks; its rows are everybody's."""

    def __init__(self, journal: Journal, call: Call) -> None:
        super().__init__(journal)
        self.sinks = Sinks()
        self._call = call

    def as_user(self, user_id: str) -> Self:
        """The same outbox for one user: what they add is theirs, and the rows of others are unknown to them."""
        scoped = copy.copy(self)
        scoped._user_id = user_id
        return scoped

    @property
    def _deliveries(self) -> Deliveries:
        return Deliveries(self, self._call)

    def deliver(self, target_space: str, **options: Any) -> Callable[[D], D]:
        """A decorator: this function delivers what is sent to this space, or to all of a prefix (`"mail:*"`).

        Options: `concurrency`, `rate` (a second), `timeout` (seconds), `max_retries`, and the backoff's `base_seconds`,
        `max_seconds` and `jitter_factor`.
        """

        def add(function: D) -> D:
            self.sinks.add(Sink(target_space, function, **options))
            return function

        return add

    async def flush_once(
        self,
        worker_id: str | None = None,
        limit: int = 10,
        lease_seconds: float = LEASE_S,
        max_retries: int = MAX_RETRIES,
    ) -> dict[str, int]:
        """One pass without a worker: claim, deliver, settle; answer how many rows met each result code."""
        tries = whole_number(max_retries, "max_retries", 1, RETRIES_MAX)
        trip = Trip(worker_id or new_worker_id(), lease_seconds, tries, new_id())
        return await flush_once(self, self.sinks, self._deliveries, trip, limit)

    def relay(self, **options: Any) -> OutboxRelay:
        """A loop that delivers until it is told to stop; workers run one of their own."""
        return OutboxRelay(self, self.sinks, self._deliveries, **options)

    async def reconcile(
        self, report: bool = False, *, window_s: float = WINDOW_S, stale_s: float = STALE_S, delay_s: float = 0
    ) -> ReconcileReport:
        """Find ended rows without their audit and locks that nobody came back for, and put both right.

        With `report=True` nothing is changed. Each missing audit is written once, however many look for it.
        """
        return await reconciling.reconcile(
            self,
            self._journal.store,
            user_id=self._user_id,
            report=report,
            window_s=window_s,
            stale_s=stale_s,
            delay_s=delay_s,
        )

    async def report(self) -> OutboxReport:
        """Rows by status, audits by action and reason, what is held and how long the oldest has waited."""
        return await reconciling.report(self._journal.store, self._user_id)
