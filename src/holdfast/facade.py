"""`Holdfast`: everything callers use, in one object."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, Protocol, Self, TypeVar, runtime_checkable

import msgspec

from holdfast import ambient
from holdfast.credentials import ApiKeys, BrowserSessions, Credentials, Grants, Handshakes, Office, Settings, Vault
from holdfast.credentials.handshakes import Purpose
from holdfast.errors import Conflict, InvalidValue
from holdfast.executor import Executor, TickResult
from holdfast.flow import Flow, Flows
from holdfast.flow.definition import Body
from holdfast.handlers import Clog, Registry
from holdfast.handlers.threads import call
from holdfast.identity import check_id
from holdfast.journal.observing import Observer
from holdfast.moments import from_us
from holdfast.outbox import Outbox
from holdfast.protocol.backoff import RetryPolicy
from holdfast.protocol.graphs import CHANGED
from holdfast.protocol.values import whole_number
from holdfast.runtime import RunInfo, StoredRunQueue, Upkeep
from holdfast.runtime.blocking import Blocking
from holdfast.runtime.chores import Chores
from holdfast.runtime.pulse import Pulse
from holdfast.runtime.retention import check_ttl
from holdfast.runtime.schedules import Schedules
from holdfast.runtime.sessions import Sessions
from holdfast.worker import RunWorker
from holdfast.workflow import Workflow, Workflows

FOREVER_MS = 1 << 50
EMPTY_PASSES_MAX = 3
D = TypeVar("D", bound=Callable[..., Any])


class AdvanceResult(msgspec.Struct, frozen=True, kw_only=True):
    """One pass over what was due. `next_wake_at` is when to come back; it may be now, if the pass was cut short."""

    advanced: int
    results: tuple[TickResult, ...]
    budget_exhausted: bool
    next_wake_at: datetime | None


class Holdfast(Upkeep):
    """A durable runtime on one database: a path, `sqlite:///…`, `:memory:` or `postgresql://…`.

    Use it as an async context manager, or call `open` and `close`. Opening migrates; that is safe to repeat. Nothing is
    ever removed unless asked for; with a `retention` its workers run `gc` with it.
    """

    def __init__(self, url: str = "holdfast.db", *, retention: float | timedelta | None = None, **options: Any) -> None:
        super().__init__(url, **options)
        self.retention = check_ttl(retention)
        self._registry = Registry()
        self._flows: dict[str, Flows] = {}
        self._workflows: dict[str, Workflows] = {}
        self._pulse = Pulse(self._store.beside)
        self.outbox = Outbox(self.journal, call)
        vault = Vault(self._store, self.redaction)
        self.office = Office(vault, Grants(self._store, vault))
        """Where secrets are kept: the vault and the providers."""
        self.sync = Blocking(self)

    async def close(self) -> None:
        await self._pulse.close()
        await self.office.renewing.close()
        await super().close()

    def as_user(self, user_id: str) -> Self:
        scoped = super().as_user(user_id)
        scoped.outbox = self.outbox.as_user(user_id)
        scoped.sync = Blocking(scoped, beside=self.sync)
        return scoped

    @property
    def schedules(self) -> Schedules:
        """What is started by itself: by a cron text, or once at an instant."""
        return Schedules(self)

    @property
    def sessions(self) -> Sessions:
        """What groups runs: listed, created, read as a conversation, cancelled."""
        return Sessions(self)

    def run_queue(self, *, clog_id: str = "chat", queue: str | None = None) -> StoredRunQueue:
        """This runtime as a `RunQueue`, and its `events` as a `RunEventStore`, for programs that take any backend."""
        return StoredRunQueue(self, clog_id=clog_id, queue=queue)

    @property
    def credentials(self) -> Credentials:
        """What OAuth providers have granted to users, and access tokens that work."""
        return Credentials(self.office, self._user_id)

    @property
    def api_keys(self) -> ApiKeys:
        """The keys that programs call the API with."""
        return ApiKeys(self._store, self._user_id)

    @property
    def settings(self) -> Settings:
        """Which provider and model a user has chosen, and their keys for them."""
        return Settings(self._store, self.office.vault, self._user_id)

    @property
    def browser_sessions(self) -> BrowserSessions:
        """Who has logged in with which browser."""
        return BrowserSessions(self._store)

    def handshakes(self, purpose: Purpose) -> Handshakes:
        """Authorizations at OAuth providers, from their beginning to their end."""
        return Handshakes(self._store, self.office, purpose)

    def register(self, *clogs: Clog | Workflow) -> None:
        """Make clogs and workflows known here. Runs of clogs that no process knows wait until one does."""
        for clog in clogs:
            self._registry.add(self._workflow_clog(clog) if isinstance(clog, Workflow) else clog)
        self._known_clogs = frozenset(self._registry.names)

    def _workflow_clog(self, workflow: Workflow) -> Clog:
        known = self._workflows.get(workflow.name) or Workflows(workflow.name)
        # Checked before anything is known of it.
        known.add(workflow)
        return self._workflows.setdefault(workflow.name, known).clog

    def flow(self, name: str, *, version: int | str = 1, retry: RetryPolicy | None = None) -> Callable[[Body], Flow]:
        """A durable function: `async def body(ctx, input)`, known to runs by this name."""

        def add(body: Body) -> Flow:
            made = Flow(name, body, version=version, retry=retry)
            flows = self._flows.get(name) or Flows(name)
            self._registry.add(flows.clog)
            self._flows[name] = flows
            flows.add(made)
            # Not only the flow is new here, perhaps, but always its version.
            self.register()
            return made

        return add

    def observe(self, observer: Observer | None) -> None:
        """Have this one told what happens here from now on, in place of whoever was told before."""
        self.journal.observer = self._pulse.observer = observer

    def is_registered(self, clog_id: str) -> bool:
        """Is this a clog, flow or workflow of this process?"""
        return self._registry.knows(clog_id)

    def deliver(self, target_space: str, **options: Any) -> Callable[[D], D]:
        """A sink of the outbox: this function delivers what is sent to this space, or to a prefix as in `"mail:*"`."""
        return self.outbox.deliver(target_space, **options)

    async def start(
        self, flow: Flow | Workflow | str, input: Any = None, *, session_id: str, **options: Any
    ) -> RunInfo:
        """Create a run of a flow or workflow (or of a clog by its name) with this input."""
        if isinstance(flow, Flow):
            options.setdefault("retry", flow.retry)
        elif isinstance(flow, Workflow):
            flow.given(input)
        clog_id = flow if isinstance(flow, str) else flow.name
        return await self.create_run(session_id=session_id, clog_id=clog_id, input=input, **options)

    async def replay(self, run_id: str, *, new_run_id: str | None = None, allow_irreversible: bool = False) -> RunInfo:
        """As for any run; a workflow whose definition has changed since is a `Conflict` (`workflow_changed`)."""
        state = (await self.journal.slices([check_id(run_id, "run_id")])).get(run_id)
        known = self._workflows.get(state.clog_id) if state else None
        if state and known and state.definition not in (None, known.newest):
            text = f"workflow {state.clog_id} has changed since run {run_id} began; start a new run of it instead"
            raise Conflict(text, code=CHANGED)
        return await super().replay(run_id, new_run_id=new_run_id, allow_irreversible=allow_irreversible)

    async def advance(
        self, budget_ms: int | None = None, max_runs: int | None = None, queues: Sequence[str] | None = None
    ) -> AdvanceResult:
        """One pass: every run that is due now gets at most one tick, the oldest first.

        No tick is begun once the budget is used up; one that runs is never cut.
        """
        budget = whole_number(FOREVER_MS if budget_ms is None else budget_ms, "budget_ms", 0, FOREVER_MS)
        most = whole_number(FOREVER_MS if max_runs is None else max_runs, "max_runs", 0, FOREVER_MS)
        chosen = None if queues is None else [check_id(queue, "queue") for queue in queues]
        deadline = ambient.monotonic() + budget / 1_000
        await self.journal.sweep()
        due_by = await self._store.now()
        results: list[TickResult] = []
        passed: list[str] = []
        exhausted = False
        while len(results) < most:
            exhausted = ambient.monotonic() >= deadline
            result = None if exhausted else await self._advance_one(chosen, due_by, passed)
            if result is None:
                break
            results.append(result)
        timers = await self._store.next_timers()
        next_due = await self._next_due(chosen, timers.question, timers.window)
        return AdvanceResult(
            advanced=len(results),
            results=tuple(results),
            budget_exhausted=exhausted,
            next_wake_at=None if next_due is None else from_us(max(next_due, due_by)),
        )

    async def execute_next(
        self,
        queue: str | None = None,
        *,
        owner: str | None = None,
        lease_ms: int | None = None,
        heartbeat_interval_ms: int | None = None,
    ) -> TickResult | None:
        """Claim one item and run it to its end, its claim kept alive; None if nothing is due or the lease was lost."""
        queues = [check_id(self.queue if queue is None else queue, "queue")]
        every_s = None
        if heartbeat_interval_ms is not None:
            every_s = whole_number(heartbeat_interval_ms, "heartbeat_interval_ms", 1, FOREVER_MS) / 1_000
        since = ambient.monotonic()
        for taken in await self.take(queues, clogs=self._registry.names, owner=owner, lease_ms=lease_ms):
            return await self._executor.run(taken, lease_us=self._lease_us(lease_ms), since=since, every_s=every_s)
        return None

    async def begin_tick(self, run_id: str, tick_id: str | None = None) -> str:
        """Open a tick in which endpoints of the run can be called; the same id again is the same tick."""
        return await self._executor.begin_tick(run_id, tick_id)

    async def call_clog(self, *, run_id: str, tick_id: str, clog_id: str, method: str, payload: Any = None) -> Any:
        """Call an endpoint and answer what it returns; the run's own state is not touched."""
        return await self._executor.call_clog(
            run_id=run_id, tick_id=tick_id, clog_id=clog_id, method=method, payload=payload
        )

    async def drain(self, max_ticks: int = 10_000) -> int:
        """Run what is due until nothing is, jumping an injected clock to the next due time; answer how many ticks.

        A cron has no end, so nothing jumps to its next window; those that are passed on the way are started.
        """
        ticks = empty = 0
        while ticks < max_ticks:
            result = await self.advance(max_runs=max_ticks - ticks)
            ticks += result.advanced
            empty = 0 if result.advanced else empty + 1
            if result.advanced:
                continue
            timers = await self._store.next_timers()
            due_at = await self._next_due(None, timers.question, timers.one_shot)
            # A pass without a tick may have made something due: a lost claim that it ended, a question that it closed.
            is_due = due_at is not None and due_at <= await self._store.now()
            if not (is_due and empty <= EMPTY_PASSES_MAX) and not self._jump(due_at):
                break
        return ticks

    def worker(
        self,
        queues: Sequence[str] | None = None,
        concurrency: int = 64,
        lease_ms: int | None = None,
        drain_s: float = 30.0,
        sticky_ttl_s: float | None = None,
    ) -> RunWorker:
        """A worker on this runtime; `await worker.run()` works until it is told to stop.

        With `sticky_ttl_s` (10 s to 24 h) a session keeps to the worker that claimed for it last, for so long: that
        worker prefers it, and others that are sticky too leave it alone.
        """
        chosen = [self.queue] if queues is None else queues
        if not chosen:
            raise InvalidValue("a worker serves the queues it names; name at least one")
        return RunWorker(
            self,
            self._executor,
            self._registry,
            self.outbox.relay(drain_s=drain_s),
            Chores(self, self.outbox, self.retention, is_sticky=sticky_ttl_s is not None),
            queues=chosen,
            concurrency=concurrency,
            lease_ms=lease_ms,
            drain_s=drain_s,
            sticky_ttl_s=sticky_ttl_s,
        )

    @property
    def _executor(self) -> Executor:
        return Executor(self, self._registry, self._pulse)

    async def _advance_one(self, queues: Sequence[str] | None, due_by: int, passed: list[str]) -> TickResult | None:
        """One tick of a run that had none in this pass, or None if there is none left."""
        while True:
            since = ambient.monotonic()
            taken = await self.take(queues, clogs=self._registry.names, due_by=due_by, passed=passed)
            if not taken:
                return None
            result = await self._executor.run(taken[0], lease_us=self._lease_us(None), since=since)
            if self._clock is not None or result is None or (result.due_in_s or 0) < 0:
                # It had its turn. Where time stands still, what became due since the pass began looks no younger,
                # and what is due in the past always looks old.
                passed.append(taken[0].claim.run_id)
            if result is not None:
                return result

    async def _next_due(self, queues: Sequence[str] | None, *others: int | None) -> int | None:
        """When the next item of work that we know can be claimed, or another of these times comes."""
        dues = (await self._store.next_due(queues, self._registry.names), *others)
        return min((due for due in dues if due is not None), default=None)

    def _jump(self, due_at: int | None) -> bool:
        clock = self._clock
        if due_at is None or clock is None or not isinstance(clock, _Movable):
            return False
        ahead = (from_us(due_at) - clock.now()).total_seconds()
        if ahead <= 0:
            return False
        clock.advance(seconds=ahead)
        return True

    def _options(self, given: dict[str, Any]) -> dict[str, Any]:
        options = super()._options(given)
        return {**self._registry.options(str(options.get("clog_id"))), **options}


@runtime_checkable
class _Movable(Protocol):
    def advance(self, seconds: float) -> None: ...
