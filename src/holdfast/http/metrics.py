"""What Prometheus reads: counts of this process, and what the database holds at the moment of the scrape.

Labels are words of the library, never ids: their number does not grow with the load.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import choose_encoder

from holdfast.facade import Holdfast
from holdfast.http.counting import Counts
from holdfast.journal import Journal

_DELAYS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
# Asked through what is open, which stays small however many runs have ended or rest. Those have no rows there, and no
# index: one by status would make every change of a run dearer.
_OPEN = """
    SELECT r.status, count(*)
    FROM {s}runs r
    WHERE r.run_id IN (
        SELECT w.run_id FROM {s}work w
        UNION
        SELECT q.run_id FROM {s}runs q WHERE q.boundary_step IS NOT NULL
    )
    GROUP BY r.status
"""
_OLDEST = """
    SELECT min(w.visible_at) FROM {s}work w WHERE w.claim_id IS NULL AND w.blocked = 0 AND w.visible_at <= $1
"""
_QUESTIONS = "SELECT count(*) FROM {s}runs WHERE boundary_step IS NOT NULL"
_UNSENT = """
    SELECT 'pending', count(*) FROM {s}outbox WHERE status = 'pending'
    UNION ALL
    SELECT 'dead', count(*) FROM {s}outbox WHERE status = 'dead'
"""
OPEN = ("pending", "active", "waiting", "paused")


class Metrics:
    """The instruments of one app, in a registry of its own: two apps in a process do not count together."""

    def __init__(self, hf: Holdfast) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(Counts.of(hf))
        told: dict[str, Any] = {"registry": self.registry}
        self.requests = Counter("holdfast_http_requests", "Requests answered.", ["method", "status"], **told)
        self.seconds = Histogram(
            "holdfast_http_request_duration_seconds", "Time to answer a request, streams left out.", **told
        )
        self.streams = Gauge("holdfast_sse_connections", "Event streams that are open in this process.", **told)
        self.resumes = Counter("holdfast_sse_resumes", "Event streams that went on after a cursor.", **told)
        self.dropped = Counter("holdfast_sse_dropped", "Event streams ended because their reader was too slow.", **told)
        self.delivered = Counter("holdfast_events_delivered", "Events put into streams.", **told)
        self.lag = Histogram(
            "holdfast_event_delivery_lag_seconds", "From an event's commit to its streams.", buckets=_DELAYS, **told
        )
        self.missed = Counter("holdfast_notify_missed", "Events that a poll found before any hint did.", **told)
        self._runs = Gauge("holdfast_runs_open", "Runs in the database with work or a question.", ["status"], **told)
        self._oldest = Gauge("holdfast_queue_oldest_age_seconds", "How long the oldest due work has waited.", **told)
        self._questions = Gauge("holdfast_approvals_pending", "Runs that wait for a person.", **told)
        self._outbox = Gauge("holdfast_outbox_rows", "Rows of the outbox that are not sent.", ["status"], **told)

    async def scrape(self, journal: Journal, accept: str = "") -> tuple[bytes, str]:
        """Everything as text and the kind of text: OpenMetrics for who accepts it, otherwise Prometheus' own.

        What describes the database is asked now, so every process tells the same.
        """
        store = journal.store
        counts: dict[str, int] = dict(await store.fetch(_OPEN))
        for status in OPEN:
            self._runs.labels(status).set(counts.get(status, 0))
        now = await store.now()
        ((oldest,),) = await store.fetch(_OLDEST, now)
        self._oldest.set(0 if oldest is None else max(0, now - oldest) / 1e6)
        self._questions.set((await store.fetch(_QUESTIONS))[0][0])
        for status, count in await store.fetch(_UNSENT):
            self._outbox.labels(status).set(count)
        encode: Callable[[CollectorRegistry], bytes]
        encode, kind = choose_encoder(accept)
        return encode(self.registry), kind
