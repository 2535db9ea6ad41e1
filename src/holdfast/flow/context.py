"""`FlowContext`: what the body of a flow may do, each thing once however often the body runs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime, timedelta
from typing import Any, TypeVar

from holdfast import ambient
from holdfast.errors import Conflict, HoldfastError, InvalidValue, LeaseLost, RunCancelled, RunFailed
from holdfast.flow.answers import Decision, FlowChanged, StepFailed, Suspended, decision_of
from holdfast.flow.memory import Answer, Memory, result_of
from holdfast.flow.replay import Turns, let_others_begin
from holdfast.handlers import ClaimedTick, Context
from holdfast.handlers.speech import Seqs, speaker
from holdfast.handlers.threads import call
from holdfast.handlers.tools import Asked, OnUnknown
from holdfast.identity import UUID, check_name, random_uuid
from holdfast.journal import Executed
from holdfast.moments import from_us, to_us
from holdfast.protocol import commands, facts
from holdfast.protocol.backoff import Backoff, RetryPolicy
from holdfast.protocol.commands import NOTHING_STAGED, ChildStart, OutboxRow, Staged
from holdfast.protocol.flows import APPROVAL, OURS, RECEIVE, TOOL, UNANSWERED
from holdfast.protocol.outcomes import UNSET
from holdfast.protocol.values import clean
from holdfast.runtime import RunInfo
from holdfast.runtime.records import run_info

T = TypeVar("T")
VERBS = frozenset({"INSERT", "UPDATE", "DELETE", "REPLACE", "MERGE", "WITH", "SELECT"})
"""What a statement of `tx` may begin with: nothing that would end the transaction or change the tables."""

_WAITING_SIGNAL = """
    SELECT min(seq) FROM {s}signals WHERE run_id = $1 AND tick_id IS NULL AND coalesce(name, '') = $2 AND seq <> $3
"""


class _Scope:
    """A step that is just running: what is said and staged inside it belongs to it."""

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.said: Seqs = []
        self.outbox: list[OutboxRow] = []
        self.children: list[ChildStart] = []

    def staged(self) -> Staged:
        if not self.outbox and not self.children:
            return NOTHING_STAGED
        return Staged(outbox=tuple(self.outbox), children=tuple(self.children))

    def add(self, row: OutboxRow) -> str:
        """Stage a delivery; the same key and payload again is the same delivery."""
        for other in self.outbox if row.idempotency_key is not None else ():
            if (other.target_space, other.idempotency_key) == (row.target_space, row.idempotency_key):
                if other.payload_sha != row.payload_sha:
                    text = f"key {row.idempotency_key!r} was used in {row.target_space} for another payload"
                    raise Conflict(f"{text}; choose a new key", code="key_reused")
                return other.outbox_id
        self.outbox.append(row)
        return row.outbox_id


_scope: ContextVar[_Scope | None] = ContextVar("holdfast_step", default=None)


class FlowContext:
    """One tick's view of a flow. What was recorded before is answered from memory; the rest happens now."""

    def __init__(self, context: Context, tick: ClaimedTick, memory: Memory, retry: RetryPolicy) -> None:
        self._context = context
        self._tick = tick
        self._memory = memory
        self._retry = retry
        self._turns = Turns()
        self._awaits: set[str] = set()
        self._until: int | None = None
        self.run_id = context.run_id
        self.session_id = context.session_id
        self.user_id = context.user_id
        self.tick_id = context.tick_id
        self.clog_id = context.clog_id
        self.parent = context.parent
        self.attempt = context.attempt
        self.deliveries = context.deliveries
        self.signal = context.signal

    @property
    def cancelled(self) -> bool:
        """Someone wants the run to stop; the body is also cancelled at its next await."""
        return self._context.cancelled

    def step(
        self,
        name: str,
        function: Callable[..., Any],
        *args: Any,
        retry: RetryPolicy | None = None,
        timeout: float | None = None,
        irreversible: bool = False,
        **options: Any,
    ) -> Coroutine[Any, Any, Any]:
        """Call the function once; whenever the body comes here again, its recorded result is the answer.

        A `def` runs in a thread. A call that raises is tried again later, without a worker, as often as `retry`
        allows; then `StepFailed` is recorded and raised, now and in every replay. Once an `irreversible` step has
        begun, which is on disk before the call, `hf.replay` refuses the run unless it is told otherwise.
        """
        # Counted where it is called, not where it is awaited, so that gathered steps keep their numbers.
        number = self._numbered(name)
        policy = retry or self._retry
        return self._step(name, number, lambda: call(function, *args, **options), policy, timeout, irreversible)

    def tx(
        self,
        name: str,
        statements: Sequence[tuple[str, Sequence[Any]]] = (),
        *,
        result: Any = None,
        outbox: Sequence[tuple[Any, ...]] = (),
        events: Sequence[tuple[str, Any]] = (),
        retry: RetryPolicy | None = None,
    ) -> Coroutine[Any, Any, Any]:
        """A step that is nothing but its commit: these statements, deliveries, events and the result, all or none.

        Statements are SQL of your own on this database, with parameters $1, $2 …; a delivery is `(target_space,
        payload)` or `(target_space, payload, key)`. Nobody reads what a statement answers: the result is the given one.
        """
        number = self._numbered(name)
        for text, _ in statements:
            if text.lstrip().partition(" ")[0].partition("\n")[0].upper() not in VERBS:
                raise InvalidValue(f"a statement of tx begins with one of {', '.join(sorted(VERBS))}; got {text!r}")
        chosen = tuple((text, tuple(params)) for text, params in statements)
        return self._tx(name, number, chosen, result, list(outbox), list(events), retry or self._retry)

    async def gather(self, *branches: Awaitable[Any]) -> list[Any]:
        """All of these side by side; their results in the order given, once none of them waits any more.

        In a replay each gets its answers in the order in which they were recorded. An error is raised when all have
        come to an end or to a wait.
        """
        self._turns.branches += len(branches)
        tasks = [asyncio.ensure_future(_settled(branch)) for branch in branches]
        try:
            ends = await asyncio.gather(*tasks)
        finally:
            self._turns.branches -= len(branches)
            for task in tasks:
                task.cancel()
        stops = [end.error for end in ends if isinstance(end, _Stopped)]
        for error in stops:
            # An error counts before a wait: nobody should sleep on a failure that is already there.
            if not isinstance(error, Suspended):
                raise error
        for wait in stops:
            raise wait
        return list(ends)

    async def sleep(
        self,
        seconds: float = 0,
        *,
        minutes: float = 0,
        hours: float = 0,
        days: float = 0,
        until: datetime | None = None,
    ) -> None:
        """Sleep without a worker. No signal shortens it."""
        self._outside_steps("sleep")
        delay = timedelta(seconds=seconds, minutes=minutes, hours=hours, days=days)
        microseconds = delay // timedelta(microseconds=1)
        due = await self._recorded("@sleep", lambda now: to_us(until) if until else now + microseconds)
        if due > self._tick.state.at:
            raise self._rest(until=due)

    async def receive(self, name: str | None = None, timeout: float | None = None) -> Any:
        """The next signal of this name (of none), first in, first out; `TimeoutError` if it does not come in time."""
        self._outside_steps("receive")
        step = f"{RECEIVE}{check_name(name, 'name') if name is not None else ''}"
        number = self._memory.occurrence(step)
        answer = self._memory.answer(step, number)
        deadline = self._memory.answer(f"@deadline:{name or ''}", number)
        if answer is not None:
            await self._turns.wait(answer.rev)
            return _received(answer)
        await self._begin(step)
        signal = await self._waiting_signal(name)
        if signal is not None:
            await self._tick.order(commands.TakeSignal, known=False, name=name, occurrence=number)
            return signal.input
        due: int | None = None
        if timeout is not None:
            due = result_of(deadline.fact) if deadline else await self._deadline(name, number, timeout)
            if due <= self._tick.state.at:
                text = f"no signal {name or ''} came within {timeout} s"
                await self._record(step, number, status="failed", error=text, error_kind="timeout")
                raise TimeoutError(text)
        raise self._rest(f"signal:{name or ''}", until=due)

    async def approval(
        self, step: str, *, details: dict[str, Any] | None = None, expires: float | timedelta | None = None
    ) -> Decision:
        """Ask a person; the worker is free until they answer, or until it expires."""
        return await self._ask("approval", step, details, expires)

    async def pause(
        self, step: str, *, details: dict[str, Any] | None = None, expires: float | timedelta | None = None
    ) -> Decision:
        """Stop here until somebody resumes the run, or until it expires; either way the body goes on."""
        return await self._ask("pause", step, details, expires)

    async def _ask(
        self, kind: str, step: str, details: dict[str, Any] | None, expires: float | timedelta | None
    ) -> Decision:
        self._outside_steps(kind)
        name = f"{APPROVAL}{check_name(step, 'step')}"
        number = self._memory.occurrence(name)
        answer = self._memory.answer(name, number)
        if answer is not None:
            await self._turns.wait(answer.rev)
            return decision_of(answer.fact, answer.at)
        await self._begin(name)
        seconds = expires.total_seconds() if isinstance(expires, timedelta) else expires
        notes, repaired = clean(details or {})
        executed = await self._tick.order(
            commands.OpenBoundary,
            step=step,
            boundary=kind,
            occurrence=number,
            metadata=notes,
            expires_us=None if seconds is None else round(seconds * 1e6),
            repaired=repaired,
        )
        boundary = executed.state.boundary
        # Another question may be open already; then ours is asked once that one is answered.
        raise self._rest(f"approval:{boundary.step if boundary else step}")

    async def run(self, flow: Any, *, key: str, input: Any = None, **options: Any) -> Any:
        """Start a child run with this input and wait for its output without a worker.

        A child that failed raises `RunFailed`, one that was cancelled `RunCancelled`. Whoever cancels this run cancels
        the child, unless `on_cancel="abandon"` leaves it to itself.
        """
        self._outside_steps("run")
        clog_id = flow if isinstance(flow, str) else flow.name
        end = self._memory.child_ends.get((clog_id, key))
        if end is None:
            await self._begin(f"@run:{clog_id}")
            child_run_id = self._memory.open_children.get((clog_id, key))
            if child_run_id is None:
                child_run_id = (await self._context.child(clog_id, key=key, input=input, **options)).run_id
            raise self._rest(f"child:{child_run_id}")
        await self._turns.wait(end.rev)
        if end.fact.status == "done":
            return end.fact.output
        wrong = RunCancelled if end.fact.status == "cancelled" else RunFailed
        text = f"child {end.fact.child_run_id} is {end.fact.status}: {end.fact.error or ''}"
        raise wrong(text, run=await self._run_info(end.fact.child_run_id))

    async def child(self, clog_id: str, *, key: str, input: Any = UNSET, **options: Any) -> RunInfo:
        """Start a child run and go on; the same clog and key is the same child. In a step it starts with its result.

        It is cancelled with this run, unless `on_cancel="abandon"` leaves it to itself.
        """
        info = await self._context.child(clog_id, key=key, input=input, **options)
        scope = _scope.get()
        start = self._tick.hand_over_child(info.run_id) if scope is not None else None
        if scope is not None and start is not None:
            scope.children.append(start)
        return info

    async def emit(self, type: str, data: Any = None) -> int:
        """Show something to whoever watches, once; answers its seq."""
        if _scope.get() is not None:
            return await self._context.emit(type, data)
        name = f"@emit:{check_name(type, 'type', longest=128)}"
        number = self._memory.occurrence(name)
        answer = self._memory.answer(name, number)
        if answer is not None:
            await self._turns.wait(answer.rev)
            return int(result_of(answer.fact))
        await self._begin(name)
        said: Seqs = []
        with _speaking(said):
            seq = await self._context.emit(type, data)
        await self._tick.conclude(said)
        await self._record(name, number, result=seq, said=tuple(said))
        return seq

    def stream(self, type: str, text: str) -> None:
        """Add a piece of text to the stream; inside a step only, since a body that runs again must not repeat it."""
        if _scope.get() is None:
            raise Conflict("stream inside a step; what a flow says between its steps is said with emit")
        self._context.stream(type, text)

    async def outbox(self, target_space: str, payload: Any, *, key: str | None = None) -> str:
        """Enqueue a delivery, once. Inside a step it commits with the step's result."""
        scope = _scope.get()
        if scope is not None:
            row, is_known = await self._tick.outbox_row(target_space, payload, key)
            return row.outbox_id if is_known else scope.add(row)
        name = f"@outbox:{check_name(target_space, 'target_space')}"
        number = self._memory.occurrence(name)
        answer = self._memory.answer(name, number)
        if answer is not None:
            await self._turns.wait(answer.rev)
            return str(result_of(answer.fact))
        await self._begin(name)
        row, is_known = await self._tick.outbox_row(target_space, payload, key)
        await self._record(name, number, result=row.outbox_id, staged=Staged(outbox=() if is_known else (row,)))
        return row.outbox_id

    @property
    def tool_key(self) -> str | None:
        """The key of the tool that is just running: the same however often this call is begun."""
        return self._context.tool_key

    def tool(
        self, name: str, args: Any, fn: Callable[..., Any], *, on_unknown: OnUnknown = "retry", **options: Any
    ) -> Coroutine[Any, Any, Any]:
        """Run `fn(args)`, or `fn(args, key)`, through the ledger, once. In a step it belongs to the step.

        Between steps a tool that fails raises `StepFailed`, now and in every replay.
        """
        if _scope.get() is not None:
            return self._use_tool(name, args, fn, on_unknown=on_unknown, **options)
        step = f"{TOOL}{check_name(name, 'name', longest=128)}"
        # Counted where it is called, like a step.
        number = self._memory.occurrence(step)

        async def work() -> Any:
            return await self._use_tool(name, args, fn, on_unknown=on_unknown, **options)

        return self._step(step, number, work, RetryPolicy(max_attempts=1), None, irreversible=False)

    async def _use_tool(self, name: str, args: Any, fn: Callable[..., Any], **options: Any) -> Any:
        scope = _scope.get()
        assert scope is not None
        try:
            return await self._tick.use_tool(name, args, fn, scope=scope.name, kept=True, **options)
        except Asked as asked:
            raise self._rest(f"approval:{asked.step}") from asked

    async def now(self) -> datetime:
        """The time when the body first came here."""
        return from_us(await self._recorded("@now", lambda now: now))

    async def random(self) -> float:
        """A number in [0, 1), the same whenever the body comes here."""
        return float(await self._recorded("@random", lambda now: ambient.random_bits(53) / (1 << 53)))

    async def uuid(self) -> UUID:
        """A random UUID, the same whenever the body comes here."""
        return UUID(await self._recorded("@uuid", lambda now: str(random_uuid())))

    def rest(self) -> tuple[int | None, tuple[str, ...]]:
        """Until when the body sleeps, and what else wakes it."""
        return self._until, tuple(sorted(self._awaits))

    def _numbered(self, name: str) -> int:
        """Which occurrence of this step the body has come to."""
        self._outside_steps("step")
        check_name(name, "step")
        if name.startswith(OURS):
            raise InvalidValue(f"a step's name must not begin with {OURS}, that is ours; got {name!r}")
        return self._memory.occurrence(name)

    def _outside_steps(self, what: str) -> None:
        if _scope.get() is not None:
            raise Conflict(f"{what} belongs into the body of a flow, not inside a step; a step is one piece of work")

    async def _begin(self, name: str) -> None:
        """Something that was not recorded is about to happen; so everything that was must have come by now."""
        if self._turns.branches > 1:
            await self._turns.quiet()
        if self._memory.unvisited() is None or self._turns.branches > 1:
            return
        await let_others_begin()
        missed = self._memory.unvisited()
        if missed is not None:
            raise FlowChanged(f"step {missed!r} was recorded, and the code comes to {name!r} before it")

    async def _step(
        self,
        name: str,
        number: int,
        work: Callable[[], Awaitable[Any]],
        retry: RetryPolicy,
        timeout: float | None,
        irreversible: bool,
    ) -> Any:
        known, attempt = await self._recall(name, number)
        if known is not None:
            return _result(known)
        if irreversible and self._memory.answer(name, number) is None:
            # Whoever looks after a crash must find it: what it did cannot be taken back, and may have been done.
            await self._record(name, number, status="begun", irreversible=True)
        scope = _Scope(f"{name}#{number}")
        try:
            with _Inside(scope):
                result = await (work() if timeout is None else _timed(work, timeout))
        except LeaseLost:
            raise
        except Exception as error:
            await self._tick.conclude(scope.said)
            return await self._failed(name, number, attempt + 1, retry, error, irreversible=irreversible)
        await self._tick.conclude(scope.said)
        told = {"attempt": attempt, "said": tuple(scope.said), "irreversible": irreversible}
        try:
            value, repaired = clean(result)
            await self._record(
                name, number, result=value, staged=scope.staged(), repaired=repaired, checked=True, **told
            )
        except InvalidValue as error:
            # It would come to the same whenever it is tried again.
            return await self._failed(name, number, retry.max_attempts, retry, error, irreversible=irreversible)
        return value

    async def _tx(
        self,
        name: str,
        number: int,
        statements: tuple[tuple[str, tuple[Any, ...]], ...],
        result: Any,
        outbox: list[tuple[Any, ...]],
        events: list[tuple[str, Any]],
        retry: RetryPolicy,
    ) -> Any:
        known, attempt = await self._recall(name, number)
        if known is not None:
            return _result(known)
        value, repaired = clean(result)
        said = [(check_name(kind, "type", longest=128), *clean(data)) for kind, data in events]
        scope = _Scope()
        for space, payload, *keys in outbox:
            row, is_known = await self._tick.outbox_row(space, payload, keys[0] if keys else None)
            if not is_known:
                scope.add(row)
        await self._tick.speech.flush()
        try:
            await self._tick.order(
                commands.RecordStep,
                known=False,
                name=name,
                occurrence=number,
                result=value,
                attempt=attempt,
                events=tuple((kind, data) for kind, data, _ in said),
                repairs=tuple(place for place, (_, _, changed) in enumerate(said) if changed),
                staged=scope.staged(),
                statements=statements,
                repaired=repaired,
            )
        except LeaseLost:
            raise
        except HoldfastError as error:
            return await self._failed(name, number, attempt + 1, retry, error)
        return value

    async def _recall(self, name: str, number: int) -> tuple[facts.StepRecorded | None, int]:
        """The answer of a step that has one; else how often it failed, once it may be tried (again)."""
        answer = self._memory.answer(name, number)
        attempt = 0
        if answer is not None:
            fact = answer.fact
            assert isinstance(fact, facts.StepRecorded)
            if fact.status not in UNANSWERED:
                await self._turns.wait(answer.rev)
                return fact, fact.attempt
            attempt = fact.attempt
            if fact.status == "retry" and fact.result > self._tick.state.at:
                raise self._rest(until=fact.result)
        await self._begin(name)
        self._tick.check()
        return None, attempt

    async def _failed(
        self, name: str, number: int, attempt: int, retry: RetryPolicy, error: Exception, *, irreversible: bool = False
    ) -> Any:
        """Try again later, without a worker, or remember that it failed for good."""
        kind = error.code if isinstance(error, HoldfastError) else type(error).__name__
        text, _ = clean(str(error) or type(error).__name__)
        told = {"error": text, "error_kind": kind, "attempt": attempt, "irreversible": irreversible}
        if attempt >= retry.max_attempts:
            await self._record(name, number, status="failed", **told)
            raise StepFailed(name, text, kind) from error
        backoff = Backoff(retry.backoff_ms * 1_000, retry.backoff_max_ms * 1_000)
        due = await self._tick.journal.store.now() + backoff.delay_us(attempt)
        await self._record(name, number, status="retry", result=due, **told)
        raise self._rest(until=due)

    async def _recorded(self, name: str, make: Callable[[int], Any]) -> Any:
        """A value that was recorded when the body first came here. A step's own values need no memory but its own."""
        if _scope.get() is not None:
            return make(await self._tick.journal.store.now())
        number = self._memory.occurrence(name)
        answer = self._memory.answer(name, number)
        if answer is not None:
            await self._turns.wait(answer.rev)
            return result_of(answer.fact)
        await self._begin(name)
        value = make(await self._tick.journal.store.now())
        await self._record(name, number, result=value)
        return value

    async def _deadline(self, name: str | None, number: int, timeout: float) -> int:
        due = await self._tick.journal.store.now() + round(timeout * 1e6)
        await self._record(f"@deadline:{name or ''}", number, result=due)
        return due

    def _record(self, name: str, number: int, **fields: Any) -> Coroutine[Any, Any, Executed]:
        return self._tick.order(commands.RecordStep, name=name, occurrence=number, **fields)

    async def _waiting_signal(self, name: str | None) -> facts.SignalReceived | None:
        """The signal that is to be received next. Only the holder of the claim takes any, so it stays the next one.

        Read before it is taken: whoever took it goes on at once, in the order of the commits.
        """
        bound = self._tick.state.input_rev or 0
        ((seq,),) = await self._tick.journal.store.fetch(_WAITING_SIGNAL, self.run_id, name or "", bound)
        if seq is None:
            return None
        fact = (await self._tick.journal.facts_at([(self.run_id, seq)]))[self.run_id, seq]
        assert isinstance(fact, facts.SignalReceived)
        return fact

    async def _run_info(self, run_id: str) -> RunInfo | None:
        states = await self._tick.journal.slices([run_id])
        return run_info(states[run_id], pending_input=None, output=None) if run_id in states else None

    def _rest(self, *awaits: str, until: int | None = None) -> Suspended:
        """Remember what ends the wait; raising the answer ends the tick."""
        self._awaits.update(awaits)
        if until is not None:
            self._until = until if self._until is None else min(self._until, until)
        return Suspended()


class _Inside:
    """What happens here belongs to this step."""

    __slots__ = ("_scope", "_tokens")

    def __init__(self, scope: _Scope) -> None:
        self._scope = scope

    def __enter__(self) -> None:
        self._tokens = _scope.set(self._scope), speaker.set(self._scope.said)

    def __exit__(self, *_: object) -> None:
        scope, spoke = self._tokens
        speaker.reset(spoke)
        _scope.reset(scope)


@contextmanager
def _speaking(said: Seqs) -> Iterator[None]:
    token = speaker.set(said)
    try:
        yield
    finally:
        speaker.reset(token)


async def _timed(work: Callable[[], Awaitable[Any]], timeout: float) -> Any:
    async with asyncio.timeout(timeout):
        return await work()


class _Stopped:
    """What ended a branch before its result."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


async def _settled(branch: Awaitable[T]) -> T | _Stopped:
    """The branch's result, or what stopped it; a cancellation from outside is no result."""
    try:
        return await branch
    except (Exception, Suspended, FlowChanged) as stopped:
        return _Stopped(stopped)


def _result(fact: facts.StepRecorded) -> Any:
    if fact.status == "failed":
        raise StepFailed(fact.name, fact.error or "", fact.error_kind or "")
    return fact.result


def _received(answer: Answer) -> Any:
    if isinstance(answer.fact, facts.StepRecorded):
        raise TimeoutError(answer.fact.error)
    assert answer.signal is not None
    return answer.signal.input
