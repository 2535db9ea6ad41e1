"""Advance one claimed tick: load → context → handler → outcome → commit."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec

from holdfast import tracing
from holdfast.errors import Conflict, HoldfastError, InvalidValue, LeaseLost
from holdfast.handlers import BegunTick, ClaimedTick, Context, ReceivedSignal, Registry, Tick
from holdfast.handlers.context import BlockingContext
from holdfast.handlers.spans import attempt
from holdfast.handlers.threads import in_thread, is_async
from holdfast.handlers.ticks import check_begun
from holdfast.handlers.tools import Asked
from holdfast.identity import check_id, check_name, child_id, new_id
from holdfast.journal import Executed
from holdfast.logs import subject
from holdfast.protocol import commands, facts
from holdfast.protocol.commands import ChildStart
from holdfast.protocol.decide import not_begun
from holdfast.protocol.evolve import ON_CANCEL, evolve
from holdfast.protocol.facts import ROOT
from holdfast.protocol.outcomes import Continue, Done, Fail, Ok, Outcome, Retry, Wait
from holdfast.protocol.state import NEVER, RunState
from holdfast.runtime import RunInfo, Upkeep
from holdfast.runtime.claims import Taken, clean_outcome
from holdfast.runtime.creation import creation
from holdfast.runtime.pulse import Hold, Pulse
from holdfast.runtime.records import run_info
from holdfast.store import Beat
from holdfast.store.gathering import Gathering
from holdfast.store.store import PLACES_MAX

T = TypeVar("T")
GRACE_S = 1.0
UNSTORABLE = frozenset({"invalid_value", "invalid_id", "write_rejected"})
"""Why nothing of a tick can be kept as it is: a value, or a delivery whose key another run used meanwhile."""
NO_HANDLER = "no onAdvance handler"
WORDS: dict[type[Any], str] = {
    Ok: "ok",
    Done: "done",
    Continue: "continue",
    Wait: "wait",
    Retry: "retry",
    Fail: "failed",
}


class TickResult(msgspec.Struct, frozen=True, kw_only=True):
    """A tick that ended: the outcome as the handler returned it, and the run's status after it."""

    run_id: str
    tick_id: str
    outcome: str
    status: str
    due_in_s: float | None = None
    """When the run's next tick is due, seen from this one's commit (before it: negative); None if not by itself."""


class Executor:
    """Runs ticks of the registered clogs. One for each runtime; safe for any number of ticks at once."""

    def __init__(self, runs: Upkeep, registry: Registry, pulse: Pulse) -> None:
        self._runs = runs
        self._registry = registry
        self._pulse = pulse
        self._looking: Gathering[str, bool] = Gathering(self._are_used, PLACES_MAX, about=str)

    async def run(
        self,
        taken: Taken,
        *,
        lease_us: int,
        since: float,
        every_s: float | None = None,
        on_handled: Callable[[str], None] | None = None,
    ) -> TickResult | None:
        """Run the tick to its end; None if its lease was lost. Cancelled from outside, it gives its claim back.

        `on_handled` is told the claim's id once the handler has answered and only the disk is waited for. Who asks for
        it promises to cancel nothing from then on.
        """
        claim = taken.claim
        beat = Beat(claim.run_id, claim.runnable_key, claim.claim_id, _token_hash(taken))
        hold = Hold(beat, lease_us, since, every_s=every_s)
        tick = ClaimedTick(self._runs.journal, taken.state, hold, _signal(taken), self._runs.audit)
        self._pulse.keep(hold)
        around = subject.get()
        subject.set(taken)
        try:
            if not tracing.is_on():
                return await self._advance(taken, tick, on_handled)
            async with attempt(tick):
                return await self._advance(taken, tick, on_handled)
        except LeaseLost:
            # Another worker has the run or will have it; nothing that this tick staged is kept.
            return None
        except Asked:
            # A person decides how it goes on; until then the run is theirs, and this tick was none.
            await self._release(tick)
            return None
        except asyncio.CancelledError:
            await asyncio.shield(self._release(tick))
            raise
        finally:
            self._pulse.drop(hold)
            # A thread cannot be stopped: one that outlives its tick is told at its next call.
            hold.lost = True
            hold.holder = None
            tick.close()
            subject.set(around)

    async def begin_tick(self, run_id: str, tick_id: str | None = None) -> str:
        """Open a tick for direct calls; the same id again is the same tick."""
        chosen = new_id() if tick_id is None else check_id(tick_id, "tick_id")
        executed = await self._runs.command(run_id, commands.BeginTick(tick_id=chosen))
        check_begun(executed.decision.refusal, run_id, chosen)
        return chosen

    async def call_clog(self, *, run_id: str, tick_id: str, clog_id: str, method: str, payload: Any = None) -> Any:
        """Call an endpoint in a tick of `begin_tick` and answer what it returns; what it wrote is then on disk."""
        handler = self._registry.endpoint(clog_id, method)
        state = await self._state(run_id, check_name(tick_id, "tick_id"))
        check_begun(not_begun(state, tick_id), run_id, tick_id)
        tick = BegunTick(self._runs.journal, state, tick_id)
        try:
            result = await _invoke(handler, payload, self._context(tick, clog_id))
        except Exception as error:
            await tick.settle(clog_id, method, _text(error))
            raise
        finally:
            tick.close()
        await tick.settle(clog_id, method, None)
        return result

    async def _advance(self, taken: Taken, tick: ClaimedTick, on_handled: Callable[[str], None] | None) -> TickResult:
        outcome, raised = await self._handle(taken, tick)
        settling = self._settle(tick, outcome, keep_staged=not raised)
        if on_handled is None:
            return await to_its_end(settling)
        on_handled(taken.claim.claim_id)
        return await settling

    async def _handle(self, taken: Taken, tick: ClaimedTick) -> tuple[Outcome, bool]:
        """What the handler answered, and whether it raised."""
        if taken.state.cancel_requested_at is not None:
            # Asked to stop before it began: the handler is not called, and any outcome ends the run.
            return Ok(), True
        handler = self._registry.clog(taken.state.clog_id).advance_handler
        if handler is None:
            return Fail(NO_HANDLER, kind="no_handler"), False
        tick.parent = await self._parent(taken)
        context = self._context(tick, taken.state.clog_id)
        tick.hold.check()
        work = asyncio.create_task(_invoke(handler, taken.claim.input, context))
        tick.hold.holder = work
        # What became known before anybody was told is not told again.
        tick.hold.interrupt()
        await _ended(work)
        try:
            return _outcome(work.result()), False
        except asyncio.CancelledError:
            return self._stopped(tick.hold), True
        except Asked:
            raise
        except BaseException as error:
            if isinstance(error, BaseExceptionGroup) and error.subgroup(Asked) is not None:
                # A handler's own task group wrapped it up.
                raise Asked(str(error)) from error
            if isinstance(error, LeaseLost):
                # Ours, unless the handler spoke for another claim.
                tick.hold.check()
            kind = error.code if isinstance(error, HoldfastError) else "exception"
            return Retry(_text(error), kind=kind), True

    def _stopped(self, hold: Hold) -> Outcome:
        """The handler was cancelled: the lease is lost, someone wants the run to stop, or it did so itself."""
        if hold.lost:
            hold.check()
        return Ok() if hold.cancel_requested else Retry("the handler cancelled itself", kind="cancelled")

    async def _settle(self, tick: ClaimedTick, outcome: Outcome, *, keep_staged: bool) -> TickResult:
        try:
            cleaned, repaired = clean_outcome(outcome)
            executed = await tick.settle(cleaned, repaired=repaired, keep_staged=keep_staged)
        except HoldfastError as error:
            if error.code not in UNSTORABLE:
                raise
            outcome = Retry(str(error), kind=error.code)
            executed = await tick.settle(outcome, keep_staged=False)
        result = TickResult(
            run_id=tick.state.run_id,
            tick_id=tick.tick_id,
            outcome=_counted(executed) or WORDS[type(outcome)],
            status=executed.state.status,
            due_in_s=_due_in_s(executed),
        )
        if tick.span is not None:
            tick.span.tell({tracing.OUTCOME: result.outcome, tracing.STATUS: result.status})
            if isinstance(outcome, Retry | Fail):
                tick.span.fail(outcome.kind or result.outcome)
        return result

    async def _release(self, tick: ClaimedTick) -> None:
        try:
            await tick.release()
        except HoldfastError:
            # The lease ends by itself; letting go early is a courtesy.
            return

    def _context(self, tick: Tick, clog_id: str) -> Context:
        return Context(tick, clog_id, call=self._call, start_child=self._start_child)

    async def _call(self, tick: Tick, clog_id: str, method: str, payload: Any) -> Any:
        """An endpoint inside a tick: its clog's storage and budget, everything else shared with its caller."""
        handler = self._registry.endpoint(clog_id, method)
        return await _invoke(handler, payload, self._context(tick, clog_id))

    async def _start_child(self, tick: Tick, clog_id: str, key: str, options: dict[str, Any]) -> RunInfo:
        tick.check()
        state = tick.state
        on_cancel = _policy(options.pop("on_cancel", "cancel"))
        given = {"session_id": state.session_id, "queue": state.queue, "user_id": state.user_id, **options}
        fact = creation(clog_id=clog_id, **{**self._registry.options(clog_id), **given}).fact
        child_run_id = child_id(state.run_id, tick.key, clog_id, check_name(key, "key"))
        if await self._looking.ask(child_run_id):
            return await self._existing_child(child_run_id, state.run_id, f"child {key!r} of clog {clog_id}")
        start = {name: value for name, value in msgspec.to_builtins(fact).items() if name not in ("clog_id", "v")}
        begun = evolve(RunState(run_id=child_run_id), fact, state.at)
        info = run_info(begun, pending_input=fact.input, output=None)
        return tick.start_child(
            ChildStart(
                child_run_id=child_run_id,
                clog_id=clog_id,
                child_key=key,
                step=tick.key,
                start=start,
                on_cancel=on_cancel,
                repaired=fact.repaired,
            ),
            msgspec.structs.replace(info, parent_run_id=state.run_id, rev=0),
        )

    async def _are_used(self, run_ids: Sequence[str]) -> list[bool]:
        """Whether these ids are taken. Children that are started side by side are looked for together."""
        used = set(await self._runs.journal.store.used_among(run_ids))
        return [run_id in used for run_id in run_ids]

    async def _existing_child(self, child_run_id: str, parent_run_id: str, name: str) -> RunInfo:
        known = await self._runs.get_run(child_run_id)
        if known is None:
            raise Conflict(f"{name} was deleted; use another key", code="id_reused")
        if known.parent_run_id != parent_run_id:
            text = f"run {child_run_id} is there already and is no child of this run; use another key"
            raise Conflict(text, code="conflicting_child_run")
        return known

    async def _parent(self, taken: Taken) -> facts.Parent | None:
        """Whose child the run is. Its first tick knows the fact that says so; later ones read it."""
        state, first = taken.state, taken.fact
        if state.parent_run_id is None:
            return None
        if not isinstance(first, facts.RunCreated):
            first = (await self._runs.journal.facts_at([(state.run_id, 1)]))[state.run_id, 1]
        return first.parent if isinstance(first, facts.RunCreated) else None

    async def _state(self, run_id: str, tick_id: str) -> RunState:
        states = await self._runs.journal.slices([run_id], tick_id=tick_id) if await self._runs.owns(run_id) else {}
        return states.get(run_id, RunState(run_id=run_id))


def _policy(on_cancel: Any) -> str:
    if isinstance(on_cancel, str) and on_cancel in ON_CANCEL:
        return on_cancel
    raise InvalidValue(f"on_cancel is {on_cancel!r}; use 'cancel' or 'abandon'")


def _counted(executed: Executed) -> str | None:
    """What the commit made of the outcome: `retry` where rows had changed; None where it was not asked."""
    for fact in executed.decision.facts:
        if isinstance(fact, facts.TickSettled | facts.RunTerminal):
            return fact.outcome
    return None


def _due_in_s(executed: Executed) -> float | None:
    root = executed.state.work.get(ROOT)
    if root is None or root.claim or root.blocked or root.visible_at >= NEVER or executed.at is None:
        return None
    return (root.visible_at - executed.at) / 1e6


def _token_hash(taken: Taken) -> str:
    held = taken.state.work[taken.claim.runnable_key].claim
    assert held is not None
    return held.claim_token_hash


def _signal(taken: Taken) -> ReceivedSignal | None:
    """The signal that brought the input, if one did."""
    fact, seq = taken.fact, taken.state.work[taken.claim.runnable_key].input_rev
    if not isinstance(fact, facts.SignalReceived) or seq is None:
        return None
    return ReceivedSignal(seq=seq, name=fact.name, has_input=fact.has_input, key=fact.key)


async def _ended(work: asyncio.Task[Any]) -> None:
    """Wait for a handler. Cancelled, it is cancelled too; an outcome that it still returns in its grace counts."""
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    work.add_done_callback(partial(_tell, ended))
    try:
        # Not `await work`: a handler that holds out against its end must not hold up ours.
        await ended
    except asyncio.CancelledError:
        work.cancel()
        await asyncio.wait([work], timeout=GRACE_S)
        if not work.done():
            # A loop that ends waits for its tasks, and for this one it might wait for ever.
            asyncio._unregister_task(work)
            work.add_done_callback(lambda late: late.cancelled() or late.exception())
        if not work.done() or work.cancelled() or work.exception() is not None:
            raise


def _tell(ended: asyncio.Future[None], work: asyncio.Future[Any]) -> None:
    if not ended.done():
        ended.set_result(None)


async def to_its_end(settling: Coroutine[Any, Any, T]) -> T:
    """An outcome on its way to disk is waited for, also by whoever is just being cancelled; only not twice."""
    task = asyncio.ensure_future(settling)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        return await task


async def _invoke(handler: Callable[..., Any], value: Any, context: Context) -> Any:
    try:
        if is_async(handler):
            return await handler(value, context)
        loop = asyncio.get_running_loop()
        result = await in_thread(handler, value, BlockingContext(context, loop))
        return await result if inspect.isawaitable(result) else result
    except (KeyboardInterrupt, SystemExit) as error:
        # Out of a task these would end the event loop, and with it every other tick.
        raise RuntimeError(f"the handler raised {type(error).__name__}: {error}") from error


def _outcome(answer: Any) -> Outcome:
    if answer is None:
        return Ok()
    if isinstance(answer, Ok | Done | Continue | Wait | Retry | Fail):
        return answer
    text = f"the handler returned a {type(answer).__name__}, which is no outcome; return Ok(), Done(…), Wait(…) …"
    return Retry(text, kind="invalid_outcome")


def _text(error: BaseException) -> str:
    try:
        return str(error) or type(error).__name__
    except Exception:
        return type(error).__name__
