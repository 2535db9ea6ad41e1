"""`Counts`: what one runtime does in this process, as plain numbers; they become Prometheus' words when it asks.

Adding happens in the middle of ticks, so it is an addition and no more. Labels are names that a program registered or
words of the library, never ids; whatever else comes is `other`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from weakref import WeakSet

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from holdfast.facade import Holdfast
from holdfast.journal import Executed, Journal
from holdfast.journal.observing import Slotted
from holdfast.outbox.records import RESULT_CODES
from holdfast.protocol import facts
from holdfast.protocol.commands import Claim, ClaimCommand, Command
from holdfast.protocol.events import is_shown
from holdfast.protocol.state import RunState
from holdfast.runtime.claims import LOST

OTHER = "other"
TOOLS_MAX = 200
"""So many names of tools are told apart; nothing registers them, so a program could make new ones for ever."""
SHORT_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
LONG_S = (0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 900, 3_600, 6 * 3_600, 24 * 3_600, 7 * 24 * 3_600)
CLAIMS = ("claimed", "taken_over", "lost", "empty")
SLOTS = ("busy", "settling", "free")
_ASKED = """
    SELECT at
    FROM {s}journal
    WHERE thread = $1 AND rev < $2 AND kind = 'manual_step_paused'
    ORDER BY rev DESC
    LIMIT 1
"""


class Timings:
    """How long things took: how many in each bucket, and all of them together."""

    def __init__(self, bounds_s: Sequence[float]) -> None:
        self._bounds_s = bounds_s
        self._counts = [0] * (len(bounds_s) + 1)
        self._sum_s = 0.0

    def add(self, seconds: float) -> None:
        self._counts[bisect_left(self._bounds_s, seconds)] += 1
        self._sum_s += seconds

    @property
    def count(self) -> int:
        return sum(self._counts)

    def tell(self, family: HistogramMetricFamily, *labels: str) -> None:
        below = 0
        buckets: list[tuple[str, float]] = []
        for bound, count in zip((*self._bounds_s, float("inf")), self._counts, strict=True):
            below += count
            buckets.append(("+Inf" if bound == float("inf") else str(float(bound)), below))
        family.add_metric(labels, buckets, self._sum_s)


class Counts(Collector):
    """The observer of one runtime. Two apps of one runtime tell the same counts, since they are of one process."""

    def __init__(self, hf: Holdfast) -> None:
        self._hf = hf
        self._journal: Journal = hf.journal
        self._events = 0
        self._fenced = 0
        self._expired = 0
        self._claims = dict.fromkeys(CLAIMS, 0)
        self._deliveries = dict.fromkeys(RESULT_CODES, 0)
        self._anomalies: dict[str, int] = {}
        self._runs: dict[tuple[str, str], Timings] = {}
        self._tools: dict[tuple[str, str], int] = {}
        self._tool_names: set[str] = set()
        self._tool_seconds: dict[str, Timings] = {}
        self._answers: dict[str, Timings] = {}
        self._queued = Timings(SHORT_S)
        self._late = Timings(SHORT_S)
        self._workers: WeakSet[Any] = WeakSet()
        self._notes: dict[type[facts.Fact], Callable[[Any, Executed, int], None]] = {
            facts.RunTerminal: self._ended,
            facts.ToolAnswered: self._answered,
            facts.TickAbandoned: self._abandoned,
            facts.ManualStepResolved: self._resolved,
            facts.Anomaly: self._anomaly,
        }

    @classmethod
    def of(cls, hf: Holdfast) -> Counts:
        """The one that counts for this runtime, which begins to if nobody has."""
        known = hf.journal.observer
        if isinstance(known, Counts):
            return known
        made = cls(hf)
        hf.observe(made)
        return made

    def executed(self, command: Command, executed: Executed) -> None:
        decision, _, at, _ = executed
        if decision.refusal in LOST and isinstance(command, ClaimCommand) and type(command) is not Claim:
            self._fenced += 1
        if at is None:
            return
        for fact in decision.facts:
            # Most claims are no commands, so all of them are told by `claimed`.
            if is_shown(fact) and type(fact) is not facts.AttemptClaimed:
                self._events += 1
            note = self._notes.get(type(fact))
            if note is not None:
                note(fact, executed, at)

    def created(self, count: int) -> None:
        self._events += count

    def claimed(self, waited_us: Sequence[int], *, taken_over: int, lost: int) -> None:
        for wait_us in waited_us:
            self._queued.add(max(0, wait_us) / 1e6)
        # Each began a tick, which streams show.
        self._events += len(waited_us) + taken_over
        self._claims["claimed"] += len(waited_us)
        self._claims["taken_over"] += taken_over
        self._claims["lost"] += lost
        if not (waited_us or taken_over or lost):
            self._claims["empty"] += 1

    def beat(self, late_s: float) -> None:
        self._late.add(late_s)

    def delivered(self, code: str) -> None:
        self._deliveries[code] += 1

    def began(self, worker: Slotted) -> None:
        self._workers.add(worker)

    def left(self, worker: Slotted) -> None:
        self._workers.discard(worker)

    def _ended(self, fact: facts.RunTerminal, executed: Executed, at: int) -> None:
        state = executed.state
        key = (self._clog(state), fact.status)
        timings = self._runs.get(key)
        if timings is None:
            timings = self._runs[key] = Timings(LONG_S)
        timings.add((at - (state.created_at or at)) / 1e6)

    def _answered(self, fact: facts.ToolAnswered, executed: Executed, at: int) -> None:
        name = self._tool(fact.name)
        self._tools[name, fact.status] = self._tools.get((name, fact.status), 0) + 1
        tool = executed.state.tools.get(fact.slot)
        if tool is not None:
            self._tool_seconds.setdefault(name, Timings(SHORT_S)).add((at - tool.asked_at) / 1e6)

    def _abandoned(self, fact: facts.TickAbandoned, executed: Executed, at: int) -> None:
        if fact.reason == "expired":
            self._expired += 1

    def _anomaly(self, fact: facts.Anomaly, executed: Executed, at: int) -> None:
        self._anomalies[fact.reason] = self._anomalies.get(fact.reason, 0) + 1

    def _resolved(self, fact: facts.ManualStepResolved, executed: Executed, at: int) -> None:
        rev = executed.first_rev + executed.decision.facts.index(fact)
        self._journal.soon(self._look_when_it_was_asked(executed.state.run_id, rev, fact.action, at))

    async def _look_when_it_was_asked(self, run_id: str, rev: int, action: str, at: int) -> None:
        for (asked_at,) in await self._journal.store.fetch(_ASKED, f"run:{run_id}", rev):
            self._answers.setdefault(action, Timings(LONG_S)).add((at - asked_at) / 1e6)

    def _clog(self, state: RunState) -> str:
        return state.clog_id if self._hf.is_registered(state.clog_id) else OTHER

    def _tool(self, name: str) -> str:
        if name not in self._tool_names:
            if len(self._tool_names) >= TOOLS_MAX:
                return OTHER
            self._tool_names.add(name)
        return name

    def collect(self) -> Iterator[Metric]:
        """Everything as families. Called by a scrape, which is in the same loop."""
        yield from self._of_runs()
        yield from self._of_leases()
        yield from self._of_tools_and_people()
        yield _counter("events_appended", "Events that this process appended to runs.", self._events)
        yield _counters("anomalies", "Refused facts and commands, by reason.", "reason", self._anomalies)
        yield _counters("outbox_deliveries", "Tries to deliver, by result code.", "code", self._deliveries)

    def _of_runs(self) -> Iterator[Metric]:
        ended = CounterMetricFamily(
            "holdfast_runs", "Runs that this process saw to their end.", labels=("clog", "outcome")
        )
        lasted = _histogram("run_duration", "From a run's creation to its end, waits included.", "clog", "outcome")
        for (clog, outcome), timings in self._runs.items():
            ended.add_metric((clog, outcome), timings.count)
            timings.tell(lasted, clog, outcome)
        queued = _histogram("run_queue_wait", "From the moment that work was due to its claim.")
        self._queued.tell(queued)
        yield from (ended, lasted, queued)

    def _of_leases(self) -> Iterator[Metric]:
        yield _counters("claims", "Items of work by what a look for them brought.", "result", self._claims)
        yield _counter("lease_expired", "Ticks that were given up because their lease ran out.", self._expired)
        yield _counter("fenced_writes", "Writes that were refused because their claim was lost.", self._fenced)
        late = _histogram("heartbeat_lag", "How long after their time claims were kept alive.")
        self._late.tell(late)
        yield late
        slots = GaugeMetricFamily(
            "holdfast_worker_slots", "Slots of this process's workers, by what is in them.", labels=("state",)
        )
        told = [worker.slots for worker in tuple(self._workers)]
        # Without a worker there are no slots, which is not the same as none that is free.
        for state in SLOTS if told else ():
            slots.add_metric((state,), sum(each[state] for each in told))
        yield slots

    def _of_tools_and_people(self) -> Iterator[Metric]:
        calls = CounterMetricFamily("holdfast_tool_calls", "Tools that answered.", labels=("tool", "status"))
        for labels, count in self._tools.items():
            calls.add_metric(labels, count)
        lasted = _histogram("tool_call_duration", "From a tool's request to its answer.", "tool")
        for name, timings in self._tool_seconds.items():
            timings.tell(lasted, name)
        waited = _histogram("approval_wait", "From a question to a person to its end, by what ended it.", "action")
        for action, timings in self._answers.items():
            timings.tell(waited, action)
        yield from (calls, lasted, waited)


def _counter(name: str, text: str, count: int) -> CounterMetricFamily:
    return CounterMetricFamily(f"holdfast_{name}", text, value=count)


def _counters(name: str, text: str, label: str, counts: dict[str, int]) -> CounterMetricFamily:
    family = CounterMetricFamily(f"holdfast_{name}", text, labels=(label,))
    for word, count in counts.items():
        family.add_metric((word,), count)
    return family


def _histogram(name: str, text: str, *labels: str) -> HistogramMetricFamily:
    return HistogramMetricFamily(f"holdfast_{name}_seconds", text, labels=labels)
